"""Where a sweep's rows and parts are, and what each of its processes needs to compute or find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.config import Config, StudentSettings, merged
from pipelines.offline import Rows, load_part, part_name, rows_of
from pipelines.offline.sweep.settings import Condition, Reference, Sweep, seeded
from pipelines.offline.sweep.teachers import blocks_of, versions_of
from pipelines.run_dir import RunDir
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
            if condition.behind:
                raise BadInput(
                    f"condition `{name}` wants logits of older snapshots (behind: {condition.behind}); the lake of "
                    f"{self.run_dir.root} holds only its own run's. Leave `behind` out, or sweep without --from"
                )
        if self.sweep.references:
            raise BadInput(
                "references are trained with the config's teacher, which a lake does not need; leave them out, or "
                "sweep without --from"
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

    def teacher_part(self, seed: int, behind: int, reference: Reference | None = None) -> Path:
        config = self.of(seed)
        features, model = self.teacher(reference)
        decisive = {
            "rows": self.rows(seed).name,
            "features": features.model_dump(mode="json"),
            "model": model.model_dump(mode="json"),
            "tasks": config.tasks,
            "seed": seed,
            "batch_rows": config.teacher.batch_rows,
            "score_rows": config.augmentation.score_rows,
            "pace": [config.pace.block_rows, config.pace.lag, config.kafka.examples.partitions],
            "behind": behind,
        }
        return self.folder / "logits" / f"seed{seed}-behind{behind}-{part_name(decisive)}.npz"

    def teacher(self, reference: Reference | None) -> tuple[Any, Any]:
        """Features and model of the config's teacher, or of a reference."""
        features, model = self.config.teacher_features, self.config.teacher.model
        if reference is not None:
            features = features.select(reference.features) if reference.features else features
            model = type(model).model_validate(merged(model.model_dump(), reference.model))
        return features, model

    def student_part(self, seed: int, student: StudentSettings, condition: Condition, *, tuning: bool) -> Path:
        """The file of a student's logits with this setting, or, with `tuning`, of its losses on the tuning part."""
        config = self.of(seed)
        features = config.student_features(student).model_dump(mode="json")
        decisive = {
            "rows": self.rows(seed).name,
            "logits": self._logits(seed, condition) if student.model.arm.distils else None,
            "student": student.model_dump(mode="json", exclude=NOT_DECISIVE) | {"verticals": student.row_filter},
            "features": features,
            "tasks": config.student_tasks(student),
            "seed": seed,
            "block_rows": config.pace.block_rows,
            "start": condition.start,
            "chosen_on": self.sweep.chosen_on if tuning else None,
        }
        kind = "trials" if tuning else "students"
        return self.folder / kind / f"{student.name}-seed{seed}-{part_name(decisive)}.npz"

    def _logits(self, seed: int, condition: Condition) -> Any:
        own = None if self.run_dir else self.teacher_part(seed, condition.behind).name
        return [own, condition.scale, condition.shift]

    # --- the stream with its logits --------------------------------------------------------------------------------

    def teacher_logits(self, seed: int, behind: int = 0, reference: Reference | None = None) -> np.ndarray:
        """The teacher's logits, (N, T) float32; NaN where the lake has none."""
        if self.run_dir is not None:
            table = self.rows(seed).table
            columns = [table[f"teacher_logit_{task}"].to_numpy() for task in self.config.tasks]
            return np.stack(columns, axis=1).astype(np.float32)
        part = load_part(self.teacher_part(seed, behind, reference))
        assert part is not None
        return part["logits"]

    def lake(self, seed: int, condition: Condition) -> pa.Table:
        """The stream as a lake would store it under this condition."""
        table, config = self.rows(seed).table, self.of(seed)
        logits = self.teacher_logits(seed, condition.behind)
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
