"""The workspace of a replay: its spec and config, its folder, and the rows and teachers that it is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from exfm.features.features import FeatureSet
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.planning.family import scaled_teacher
from pipelines.core.config.settings import Config
from pipelines.core.config.text import merged
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits.kept import Snapshot, kept_snapshots
from pipelines.lab.logits.settlement import PrivilegedRows
from pipelines.lab.replay.problems import check_rows
from pipelines.lab.replay.settings import Spec, seeded
from pipelines.lab.rows import Rows, are_copied, rows_of
from pipelines.lab.spec.arms import with_features
from pipelines.lab.spec.conditions import Condition, LogitSource
from pipelines.lab.spec.span import Span, span_of
from pipelines.live.feeds.table import Sliced
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.schema import FEEDBACK_TIME, MERGE_TIME, POSITION_FIELDS


@dataclass(frozen=True, eq=False)
class Workspace:
    """A replay of `config`, in `folder`; with `run_dir`, over that run's lake. Workspaces of equal settings are equal,
    also in different processes."""

    spec: Spec
    config: Config
    folder: Path
    run_dir: RunDir | None

    def __post_init__(self) -> None:
        check_rows(self.spec, self.config, of_a_run=self.run_dir is not None)

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

    def is_logged(self, source: LogitSource) -> bool:
        """True if these logits are columns of the run's lake."""
        return self.run_dir is not None and source == LogitSource()

    def is_trained(self, source: LogitSource) -> bool:
        """True if these logits come from a teacher that the replay trains."""
        return self.run_dir is None or (source != LogitSource() and source.stored is None)

    # --- rows --------------------------------------------------------------------------------------------------------

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
        left_out = {field.name for field in POSITION_FIELDS} | {"event_date", MERGE_TIME}
        rows = self.config.rows
        names = (rows.augmented if self.run_dir else rows.settled).names
        if any(teacher.privileged for teacher in self.spec.teachers.values()):
            return [name for name in names if name not in left_out or name == MERGE_TIME]
        return [name for name in names if name not in left_out and not name.startswith(FEEDBACK_TIME)]

    def _lake(self) -> LakeReader:
        assert self.run_dir is not None
        return LakeReader(self.run_dir.lake, self.config.rows)

    @cached_property
    def span(self) -> Span | None:
        """Range of rows of the lake; None for all."""
        spec = self.spec
        if self.run_dir is None or (spec.since is None and spec.until is None):
            return None
        return span_of(self._lake(), spec.since, spec.until, self.folder / "span.json", self._is_copied)

    def _is_copied(self, span: Span) -> bool:
        config = self.of(self.spec.all_seeds[0])
        return are_copied(config, self.folder, self._lake(), limit=self.spec.rows, columns=self._columns, span=span)

    def pin(self, readers: Readers, name: str) -> None:
        """Protect the unread rows of the run's lake, and their files, under this name. Raises BadInput where some
        were deleted before that."""
        lake = self._lake()
        first, last = self.span or (lake.first_lake_seq, lake.last_lake_seq)
        if first > last or (self.span is not None and self._is_copied(self.span)):
            return
        readers.pin(name, first, last)
        if (now := self._lake().first_lake_seq) > first:
            raise BadInput(
                f"rows lake_seq {first:,} to {now - 1:,} of {lake.path} were deleted just now (lake.retention_days); "
                f"begin behind them (--from {now})"
            )

    @cached_property
    def snapshots(self) -> list[Snapshot]:
        """The run's stored snapshots as of the first call, linked into the folder."""
        assert self.run_dir is not None
        spec = self.spec
        question = {"lake": self._lake().id, "since": spec.since, "until": spec.until, "rows": spec.rows}
        return kept_snapshots(self.run_dir, self.folder, question)

    def teacher_rows(self, seed: int, model: TeacherConfig) -> Sliced:
        """The rows of a seed's stream as a teacher of this model reads them."""
        rows, sequence = self.rows(seed), model.sequence
        return rows if sequence is None or not sequence.privileged else PrivilegedRows(rows, self.of(seed), sequence)

    # --- teachers ----------------------------------------------------------------------------------------------------

    def taught_until(self, seed: int) -> float | None:
        """Share of the stream that a seed's teachers learn; None: all. A seed used only for tuning needs just the
        tuning part."""
        return None if seed in self.spec.seeds else self.spec.chosen_on[1]

    def taught_rows(self, seed: int) -> int:
        """Number of rows that a seed's teachers score and learn."""
        count, until = self.rows(seed).num_rows, self.taught_until(seed)
        return count if until is None else round(until * count)

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
        return self.config.with_events(features, model), model
