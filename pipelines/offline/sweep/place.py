"""Where a sweep's rows and parts are, and what each of its processes needs to compute or find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.data import FeatureSet
from exfm.models import TeacherConfig
from pipelines.config import Config, StudentSettings, merged
from pipelines.offline import Rows, load_part, part_name, rows_of
from pipelines.offline.sweep.data import places_of
from pipelines.offline.sweep.settings import Condition, Snapshots, Sweep, seeded
from pipelines.offline.sweep.teachers import blocks_of, versions_of
from pipelines.run_dir import RunDir
from pipelines.training import not_yet_learned
from streaming.errors import BadInput
from streaming.schema import POSITION_FIELDS

NOT_DECISIVE = {"name", "twin", "checkpoint_every_rows"}
"""Settings of a student that do not change what it learns. Its name stands for its row filter, which does count."""


@dataclass(frozen=True)
class Place:
    """A sweep over `config`, in `folder`; with `run_dir`, over that run's lake."""

    sweep: Sweep
    config: Config
    folder: Path
    run_dir: RunDir | None

    def __post_init__(self) -> None:
        if self.run_dir is None:
            return
        for name, condition in self.sweep.conditions.items():
            if condition.behind or condition.born:
                key = "behind" if condition.behind else "born"
                raise BadInput(
                    f"condition `{name}` wants logits of other snapshots ({key}: {getattr(condition, key)}); the lake "
                    f"of {self.run_dir.root} holds only its own run's. Leave `{key}` out, or sweep without --from"
                )
        if self.sweep.teachers:
            raise BadInput(
                "further teachers are trained on the rows of a source, and a lake brings the logits of its own; leave "
                "`teachers` out, or sweep without --from"
            )

    @property
    def one_stream(self) -> bool:
        """Whether all seeds share the stream, so that another seed means the same rows."""
        return self.run_dir is not None or self.config.source is None or self.config.source.kind == "recorded"

    def of(self, seed: int) -> Config:
        return seeded(self.config, seed)

    def rows(self, seed: int, advance: Callable[[int], None] = lambda done: None) -> Rows:
        """The settled rows of a seed's stream."""
        return rows_of(
            self.of(seed),
            self.folder,
            limit=self.sweep.rows,
            run_dir=self.run_dir,
            advance=advance,
            columns=self._columns,
        )

    @cached_property
    def _columns(self) -> list[str]:
        left_out = {field.name for field in POSITION_FIELDS} | {"event_date"}
        rows = self.config.rows
        return [name for name in (rows.augmented if self.run_dir else rows.settled).names if name not in left_out]

    # --- parts ---------------------------------------------------------------------------------------------------

    def teacher_part(self, seed: int, snapshots: Snapshots) -> Path:
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

    def taught(self, seed: int) -> pa.Table:
        """The rows that a seed's teachers score and learn: those that settings are chosen on, if it only tunes."""
        table, until = self.rows(seed).table, self._until(seed)
        return table if until is None else table.slice(0, round(until * table.num_rows))

    def _until(self, seed: int) -> float | None:
        return None if seed in self.sweep.seeds else self.sweep.chosen_on[1]

    def teacher(self, name: str | None) -> tuple[FeatureSet, TeacherConfig]:
        """Features and model of the config's teacher, or of a further one."""
        features, model = self.config.teacher_features, self.config.teacher.model
        if name is not None:
            spec = self.sweep.teachers[name]
            if spec.features == "students":
                features = features.select(set(features.names) - set(self.config.teacher.only))
            elif spec.features:
                features = features.select(spec.features)
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
    ) -> Path:
        """The file of a student's logits with this setting, or, with `tuning`, of its losses on the tuning part.
        `twin` and `drawn_anew`: as in `jobs.Asked`."""
        config = self.of(seed)
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
            "chosen_on": self.sweep.chosen_on if tuning else None,
        }
        if self.sweep.as_shown and not tuning:
            decisive["as_shown"] = True
        kind = "trials" if tuning else "students"
        return self.folder / kind / f"{student.name}-seed{seed}-{part_name(decisive)}.npz"

    def _logits(self, seed: int, condition: Condition, twin: Path | None) -> Any:
        of = condition.snapshots
        own = twin if of is None else None if self.run_dir else self.teacher_part(seed, of)
        return [own and own.name, condition.scale, condition.shift]

    # --- the stream with its logits --------------------------------------------------------------------------------

    def teacher_logits(self, seed: int, of: Snapshots) -> np.ndarray:
        """The teacher's logits, (N, T) float32; NaN where the lake has none."""
        table = self.rows(seed).table
        if self.run_dir is not None:
            columns = [table[f"teacher_logit_{task}"].to_numpy() for task in self.config.tasks]
            return np.stack(columns, axis=1).astype(np.float32)
        part = load_part(self.teacher_part(seed, of))
        assert part is not None
        return np.pad(part["logits"], ((0, table.num_rows - len(part["logits"])), (0, 0)), constant_values=np.nan)

    def twin_logits(self, seed: int, student: StudentSettings, twin: Path) -> np.ndarray:
        """The logits of a student that has no teacher, (N, T) float32, each made before the row was learned; NaN where
        the row is not the student's, or a teacher could know the label."""
        config, table = self.of(seed), self.rows(seed).table
        part, tasks = load_part(twin), config.student_tasks(student)
        assert part is not None
        logits = np.full((table.num_rows, len(config.tasks)), np.nan, np.float32)
        own = places_of(table, config, student)
        for t, task in enumerate(tasks):
            logits[own, config.tasks.index(task)] = part["logits"][:, t]
        logits[~not_yet_learned(table, config.tasks, config.rows.groups)] = np.nan
        return logits

    def lake(
        self, seed: int, condition: Condition, student: StudentSettings | None = None, twin: Path | None = None
    ) -> pa.Table:
        """The stream as a lake would store it under this condition; where a twin teaches, for its student."""
        table, config, of = self.rows(seed).table, self.of(seed), condition.snapshots
        if of is not None:
            logits = self.teacher_logits(seed, of)
        else:
            assert student is not None
            assert twin is not None
            logits = self.twin_logits(seed, student, twin)
        if not condition.honest:
            logits = (condition.scale * logits + condition.shift).astype(np.float32)
        columns: dict[str, Any] = {name: table[name] for name in table.schema.names}
        if self.run_dir is None:
            columns["lake_seq"] = pa.array(np.arange(table.num_rows))
            columns["block"] = pa.array(blocks_of(table.num_rows, config))
            columns["teacher_version"] = pa.array(versions_of(table.num_rows, config, condition.behind))
        for t, task in enumerate(config.tasks):
            columns[f"teacher_logit_{task}"] = pa.array(logits[:, t], mask=~np.isfinite(logits[:, t]))
        return pa.table(columns)
