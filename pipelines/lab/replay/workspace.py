"""The workspace of a replay: its spec and config, the folder with its rows and parts, and how each part is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.features.features import FeatureSet
from exfm.models.engine import StudentEngine
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.planning.family import scaled_teacher
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.models import StudentSettings
from pipelines.core.config.settings import Config
from pipelines.core.config.text import merged
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.delays import feedback_delays
from pipelines.lab.logits.faults import learned_labels
from pipelines.lab.logits.kept import Snapshot, kept_snapshots
from pipelines.lab.logits.starts import known_upto, learned_upto, start_of
from pipelines.lab.logits.stream import LogitsOf, Stream, logged_logits, stored_logits
from pipelines.lab.mapped import release_pages
from pipelines.lab.parts import load_part, part_name
from pipelines.lab.replay.data import places_of
from pipelines.lab.replay.settings import Spec, seeded
from pipelines.lab.rows import Rows, are_copied, rows_of
from pipelines.lab.spec.arms import with_features
from pipelines.lab.spec.conditions import Condition, LogitSource
from pipelines.lab.spec.span import Span, span_of
from pipelines.live.training.unseen_labels import not_yet_learned
from pipelines.live.workers.student.warm import start_warm
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.schema import POSITION_FIELDS

NOT_DECISIVE = {"name", "twin", "checkpoint_every_rows"}
"""Settings of a student that do not change what it learns. Its name stands for its row filter, which does count."""


@dataclass(frozen=True, eq=False)
class Workspace:
    """A replay of `config`, in `folder`; with `run_dir`, over that run's lake. Workspaces of equal settings are equal,
    also in different processes."""

    spec: Spec
    config: Config
    folder: Path
    run_dir: RunDir | None

    def __post_init__(self) -> None:
        windows = [task.window_s for task in self.config.rows.tasks]
        for name, condition in self.spec.conditions.items():
            if (asked := condition.window_s) is None:
                continue
            if asked >= max(windows):
                raise BadInput(
                    f"condition `{name}` has window_s {asked:g}, and no task has a longer one (the longest: "
                    f"{max(windows):g}): labels that settle later are not known yet when a row is learned; give less"
                )
            if self.config.source is None:
                raise BadInput(
                    f"condition `{name}` has window_s {asked:g}, and the lake does not hold when feedback came; the "
                    "config's `source` would say it, and there is none. `lost` takes a share of the feedback away"
                )
        if self.run_dir is not None:
            return
        for name, condition in self.spec.conditions.items():
            if condition.stored is not None:
                raise BadInput(
                    f"condition `{name}` wants logits of stored snapshots, and there is no run; give its folder "
                    "(--run-dir), or `behind`, blocks, without one"
                )
        if self.spec.since is not None or self.spec.until is not None:
            raise BadInput("`since` and `until` are of a run's lake; give its folder (--run-dir), or leave them out")

    @cached_property
    def _identity(self) -> tuple[Any, ...]:
        return self.folder, self.spec.model_dump_json(), self.config.hash, self.run_dir

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workspace) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def one_stream(self) -> bool:
        """True if all seeds share the stream, so that another seed means the same rows."""
        return self.run_dir is not None or self.config.source is None or self.config.source.kind == "recorded"

    def of(self, seed: int, arm: str | None = None) -> Config:
        """The config with this seed, and with the features of an arm."""
        changes = {} if arm is None else self.spec.arms[arm].features
        return with_features(seeded(self.config, seed), changes, arm or "")

    def has_seeds(self, condition: Condition) -> bool:
        """True if a student's input under a condition differs by seed."""
        return not self.one_stream or (condition.logit_source is not None and self.is_trained(condition.logit_source))

    def is_trained(self, of: LogitSource) -> bool:
        """True if these logits come from a teacher that the replay trains."""
        return self.run_dir is None or (of != LogitSource() and of.stored is None)

    @cached_property
    def span(self) -> Span | None:
        """Range of rows of the lake; None for all."""
        spec = self.spec
        if self.run_dir is None or (spec.since is None and spec.until is None):
            return None
        lake = LakeReader(self.run_dir.lake, self.config.rows)
        return span_of(lake, spec.since, spec.until, self.folder / "span.json", self._is_copied)

    def _is_copied(self, span: Span) -> bool:
        assert self.run_dir is not None
        lake = LakeReader(self.run_dir.lake, self.config.rows)
        of = self.of(self.spec.all_seeds[0])
        return are_copied(of, self.folder, lake, limit=self.spec.rows, columns=self._columns, span=span)

    def pin(self, readers: Readers, name: str) -> None:
        """Protect the unread rows of the run's lake, and their files, under this name. Raises BadInput where some
        were deleted before that."""
        assert self.run_dir is not None
        lake = LakeReader(self.run_dir.lake, self.config.rows)
        first, last = self.span or (lake.first_lake_seq, lake.last_lake_seq)
        if first > last or (self.span is not None and self._is_copied(self.span)):
            return
        readers.pin(name, first, last)
        if (now := LakeReader(self.run_dir.lake, self.config.rows).first_lake_seq) > first:
            raise BadInput(
                f"rows lake_seq {first:,} to {now - 1:,} of {lake.path} were deleted just now (lake.retention_days); "
                f"begin behind them (--from {now})"
            )

    @cached_property
    def snapshots(self) -> list[Snapshot]:
        """The run's stored snapshots as of the first call, linked into the folder."""
        assert self.run_dir is not None
        spec, lake = self.spec, LakeReader(self.run_dir.lake, self.config.rows)
        asked = {"lake": lake.id, "since": spec.since, "until": spec.until, "rows": spec.rows}
        return kept_snapshots(self.run_dir, self.folder, asked)

    def start(self, engine: StudentEngine, config: Config, student: StudentSettings) -> None:
        """Initialise an engine with the weights that the student starts from."""
        if (checkpoint := start_of(student, self.run_dir, self.folder)) is not None:
            start_warm(engine, checkpoint, config, student)

    def starts_after(self, student: StudentSettings) -> int:
        """The `lake_seq` after which a student's life begins."""
        return learned_upto(student, self.run_dir, self.folder)

    def weights_learned_upto(self, student: StudentSettings) -> int:
        """The last `lake_seq` of a student's life that the weights it starts with have learned; -1: none."""
        return known_upto(student, self.run_dir)

    def rows(self, seed: int, advance: Callable[[int], None] = lambda done: None) -> Rows:
        """The settled rows of a seed's stream."""
        return rows_of(
            self.of(seed),
            self.folder,
            limit=self.spec.rows,
            run_dir=self.run_dir,
            advance=advance,
            columns=self._columns,
            span=self.span,
        )

    @cached_property
    def _columns(self) -> list[str]:
        left_out = {field.name for field in POSITION_FIELDS} | {"event_date"}
        rows = self.config.rows
        return [name for name in (rows.augmented if self.run_dir else rows.settled).names if name not in left_out]

    # --- parts ---------------------------------------------------------------------------------------------------

    def teacher_part(self, seed: int, snapshots: LogitSource) -> Path:
        if snapshots.stored is not None:
            assert self.run_dir is not None
            there = [[s.path.name, s.lake_seq] for s in self.snapshots]
            own = {"rows": self.rows(seed).name, "stored": snapshots.stored, "there": there}
            return self.folder / "logits" / f"stored-{part_name(own)}.npz"
        config = self.of(seed)
        features, model = self.teacher(snapshots.teacher)
        decisive = {
            "rows": self.rows(seed).name,
            "until": self._until(seed),
            "features": features.model_dump(mode="json"),
            "model": model.model_dump(mode="json"),
            "tasks": config.tasks,
            "seed": seed,
            "batches": config.teacher.batches,
            "score_rows": config.augmentation.score_rows,
            "pace": [config.pace.blocks, config.pace.lag, config.kafka.examples.partitions],
            "born": snapshots.born,
            "behind": snapshots.behind,
        }
        return self.folder / "logits" / f"seed{seed}-behind{snapshots.behind}-{part_name(decisive)}.npz"

    def taught_rows(self, seed: int) -> int:
        """Number of rows that a seed's teachers score and learn; a seed used only for tuning needs just the tuning
        part."""
        count, until = self.rows(seed).num_rows, self._until(seed)
        return count if until is None else round(until * count)

    def _until(self, seed: int) -> float | None:
        return None if seed in self.spec.seeds else self.spec.chosen_on[1]

    def teacher(self, name: str | None) -> tuple[FeatureSet, TeacherConfig]:
        """Features and model of the config's teacher, or of a further one."""
        features, model = self.config.teacher_features, self.config.teacher.model
        if name is not None:
            spec = self.spec.teachers[name]
            if spec.features == "students":
                features = features.select(set(features.names) - set(self.config.teacher.only))
            elif spec.features:
                features = features.select(spec.features)
            if spec.dial:
                model = scaled_teacher(model, spec.dial)
            model = type(model).model_validate(merged(model.model_dump(), spec.model))
        return features, model

    def student_part(
        self,
        seed: int,
        student: StudentSettings,
        condition: Condition,
        *,
        tuning: bool,
        twin: Path | None = None,
        drawn_anew: bool = False,
        arm: str | None = None,
    ) -> Path:
        """The file of a student's logits with this setting, or, with `tuning`, of its losses on the tuning part.
        `twin`, `drawn_anew` and `arm`: as in `jobs.TrainRequest`."""
        config = self.of(seed, arm)
        features = config.student_features(student).model_dump(mode="json")
        decisive = {
            "rows": self.rows(seed).name,
            "logits": self._logits(seed, condition, twin) if student.model.arm.distils else None,
            "student": student.model_dump(mode="json", exclude=NOT_DECISIVE) | {"verticals": student.row_filter},
            "features": features,
            "tasks": config.student_tasks(student),
            "seed": seed,
            "drawn_anew": drawn_anew,
            "blocks": config.pace.blocks,
            "batches": student.batches,
            "start": condition.start,
            "chosen_on": self.spec.chosen_on if tuning else None,
        }
        if self.spec.as_shown and not tuning:
            decisive["as_shown"] = True
        if condition.label_faults:
            decisive["learned labels"] = condition.label_faults  # `labels`: with 0 where given feedback is lost
        if (path := start_of(student, self.run_dir, self.folder)) is not None:
            decisive["starts_from"] = [student.starts_from, read_manifest(path)["meta"]["lake_seq"]]
        kind = "trials" if tuning else "students"
        return self.folder / kind / f"{student.name}-seed{seed}-{part_name(decisive)}.npz"

    def _logits(self, seed: int, condition: Condition, twin: Path | None) -> Any:
        of = condition.logit_source
        logged = of is not None and self.run_dir is not None and of == LogitSource()
        own = twin if of is None else None if logged else self.teacher_part(seed, of)
        missing = [condition.missing] if condition.missing else []
        return [own and own.name, condition.scale, condition.shift, *missing]

    # --- the stream with its logits --------------------------------------------------------------------------------

    def teacher_logits(self, seed: int, of: LogitSource) -> np.ndarray:
        """The teacher's logits, (N, T) float32; NaN where the lake has none."""
        return self._logits_of(seed, of)(self.rows(seed).table, 0)

    def _logits_of(self, seed: int, of: LogitSource) -> LogitsOf:
        if self.run_dir is not None and of == LogitSource():
            return logged_logits(self.config.tasks)
        part = load_part(self.teacher_part(seed, of))
        assert part is not None
        return stored_logits(part["logits"])

    def twin_logits(self, seed: int, student: StudentSettings, twin: Path) -> LogitsOf:
        """The logits of a student that has no teacher, each made before the row was learned; NaN where the row is not
        the student's, or a teacher could know the label."""
        config, part = self.of(seed), load_part(twin)
        assert part is not None
        of_part, first, tasks = part["logits"], int(part["first"]), config.student_tasks(student)
        own = places_of(self.rows(seed), config, config.student(student.name), self.folder)  # an arm may have a filter

        def logits(table: pa.Table, offset: int) -> np.ndarray:
            found = np.full((table.num_rows, len(config.tasks)), np.nan, np.float32)
            begins, ends = np.searchsorted(own, [offset, offset + table.num_rows]).tolist()
            begins = max(begins, first)
            for t, task in enumerate(tasks):
                known = of_part[begins - first : max(begins, ends) - first, t]
                found[own[begins:ends] - offset, config.tasks.index(task)] = known
            found[~not_yet_learned(table, config.tasks, config.rows.groups)] = np.nan
            release_pages(of_part)
            release_pages(own)
            return found

        return logits

    def labels(self, seed: int, condition: Condition) -> dict[str, pa.Array]:
        """Labels under a condition with label faults, by task."""
        if not condition.label_faults:
            return {}
        table, delays = self.rows(seed).table, self._delays(seed, condition)
        return learned_labels(table, self.config.rows.tasks, condition.label_faults, delays)

    def _delays(self, seed: int, condition: Condition) -> np.ndarray | None:
        """Delays of feedback, if a condition asks for them."""
        if condition.window_s is None:
            return None
        config = self.of(seed) if self.run_dir is None else self.config
        return feedback_delays(config, self.rows(seed), self.folder)

    def lake(
        self, seed: int, condition: Condition, student: StudentSettings | None = None, twin: Path | None = None
    ) -> Stream:
        """The stream as a lake would store it under this condition; where a twin teaches, for its student."""
        of, logits = condition.logit_source, None
        if of is None:
            assert student is not None
            assert twin is not None
            logits = self.twin_logits(seed, student, twin)
        elif self.run_dir is None or of != LogitSource() or not condition.as_logged:
            logits = self._logits_of(seed, of)
        delays = self._delays(seed, condition)
        return Stream(self.rows(seed), self.of(seed), condition, logits, self.run_dir is not None, delays_s=delays)
