"""A stream as a lake would store it under a condition, in slices, with its logits and simulated faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.features.representation import EMBEDDING, FIRST_SPACE, SPACE, written
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.lab.data import places_of
from pipelines.lab.logits.faults import chosen, feedback_delays, learned_labels
from pipelines.lab.logits.teachers import blocks_of, versions_of
from pipelines.lab.mapped import release_pages
from pipelines.lab.parts import load_part
from pipelines.lab.replay.store import teacher_part
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.rows import Rows
from pipelines.lab.spec.conditions import Condition, LogitSource
from pipelines.live.training.unseen_labels import not_yet_learned

LogitsOf = Callable[[pa.Table, int], np.ndarray]
"""Some rows of the stream, and how many come before them -> their logits, (n, T) float32; NaN: none."""

CellsOf = Callable[[pa.Table, int], pa.Array]
"""The same -> the teacher's representation of them, as a column of the lake."""


@dataclass(frozen=True)
class Stream:
    """`rows` under a condition. `logits`: None where rows are a lake's and stay as they were logged; `cells`: None if
    the teacher has no representation. Rows that are not `of_a_lake` get the positions, blocks and versions that a run
    would give them. `delays_s`: how long feedback took, (N, T), where the condition asks for it."""

    rows: Rows
    config: Config
    condition: Condition
    logits: LogitsOf | None
    of_a_lake: bool
    upto: int | None = None
    delays_s: np.ndarray | None = None
    cells: CellsOf | None = None

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows if self.upto is None else self.upto

    def first(self, count: int) -> Stream:
        """The first rows of the stream."""
        return replace(self, upto=min(count, self.num_rows))

    def slice(self, offset: int = 0, length: int | None = None) -> pa.Table:
        """Slice like a table; the result is made on each call."""
        left = max(0, self.num_rows - offset)
        table = self.rows.slice(offset, left if length is None else min(length, left))
        if self.logits is None:
            return table
        columns: dict[str, Any] = {name: table[name] for name in table.schema.names}
        condition, stop = self.condition, offset + table.num_rows
        if not self.of_a_lake:
            columns["lake_seq"] = pa.array(np.arange(offset, stop))
            columns["block"] = pa.array(blocks_of(stop, self.config, offset))
            columns["teacher_version"] = versions_of(stop, self.config, condition.behind, condition.born, offset)
        logits = self.logits(table, offset)
        if not condition.honest:
            logits = (condition.scale * logits + condition.shift).astype(np.float32)
        if condition.missing:
            without = chosen(table["impression_id"].combine_chunks(), condition.missing, "missing")
            logits = np.where(without[:, None], np.float32(np.nan), logits)
        if condition.label_faults:
            delays_s = None if self.delays_s is None else self.delays_s[offset:stop]
            learned = learned_labels(table, self.config.rows.tasks, condition.label_faults, delays_s)
            columns |= {f"label_{task}": labels for task, labels in learned.items()}
        for t, task in enumerate(self.config.tasks):
            columns[f"teacher_logit_{task}"] = pa.array(logits[:, t], mask=~np.isfinite(logits[:, t]))
        columns = {name: column for name, column in columns.items() if name not in (EMBEDDING, SPACE)}
        if self.cells is not None:
            known = pa.array(np.isfinite(logits).any(axis=1))
            columns[EMBEDDING] = pc.if_else(known, self.cells(table, offset), None)
        return pa.table(columns)


def stream_of(
    workspace: Workspace,
    seed: int,
    condition: Condition,
    student: StudentSettings | None = None,
    twin: Path | None = None,
) -> Stream:
    """The stream as a lake would store it under this condition; where a twin teaches, for its student."""
    source, logits, cells = condition.logit_source, None, None
    if source is None:
        assert student is not None
        assert twin is not None
        logits = twin_logits(workspace, seed, student, twin)
    elif not (workspace.is_logged(source) and condition.as_logged):
        logits, cells = _teacher_logits(workspace, seed, source), _teacher_cells(workspace, seed, source)
    rows, of_a_lake = workspace.rows(seed), workspace.run_dir is not None
    delays_s = _delays(workspace, seed, condition)
    return Stream(rows, workspace.of(seed), condition, logits, of_a_lake, delays_s=delays_s, cells=cells)


def labels_under(workspace: Workspace, seed: int, condition: Condition) -> dict[str, pa.Array]:
    """Labels that students learn under a condition with label faults, by task."""
    if not condition.label_faults:
        return {}
    table, delays_s = workspace.rows(seed).table, _delays(workspace, seed, condition)
    return learned_labels(table, workspace.config.rows.tasks, condition.label_faults, delays_s)


def _delays(workspace: Workspace, seed: int, condition: Condition) -> np.ndarray | None:
    """Delays of feedback, if a condition asks for them."""
    if condition.window_s is None:
        return None
    config = workspace.of(seed) if workspace.run_dir is None else workspace.config
    return feedback_delays(config, workspace.rows(seed), workspace.folder)


def teacher_logits(workspace: Workspace, seed: int, source: LogitSource) -> np.ndarray:
    """The teacher's logits of all rows, (N, T) float32; NaN where the lake has none."""
    return _teacher_logits(workspace, seed, source)(workspace.rows(seed).table, 0)


def _teacher_logits(workspace: Workspace, seed: int, source: LogitSource) -> LogitsOf:
    if workspace.is_logged(source):
        names = [f"teacher_logit_{task}" for task in workspace.config.tasks]
        return lambda table, offset: np.stack([table[name].to_numpy() for name in names], axis=1).astype(np.float32)
    part = load_part(teacher_part(workspace, seed, source))
    assert part is not None
    stored = part["logits"]

    def logits(table: pa.Table, offset: int) -> np.ndarray:
        """Rows behind the last that was stored have none."""
        whole = np.full((table.num_rows, stored.shape[1]), np.nan, np.float32)
        some = stored[offset : offset + table.num_rows]
        whole[: len(some)] = some
        release_pages(stored)
        return whole

    return logits


def _teacher_cells(workspace: Workspace, seed: int, source: LogitSource) -> CellsOf | None:
    """The teacher's representation of all rows; None if it has none."""
    if workspace.is_logged(source):
        logged = bool(workspace.config.rows.teacher_embedding)
        return (lambda table, offset: _of_one_space(table)) if logged else None
    part = load_part(teacher_part(workspace, seed, source))
    assert part is not None
    stored = part.get("cells")
    if stored is None:
        return None

    def cells(table: pa.Table, offset: int) -> pa.Array:
        whole = np.zeros((table.num_rows, stored.shape[1]), np.uint8)
        some = stored[offset : offset + table.num_rows]
        whole[: len(some)] = some
        release_pages(stored)
        return written(whole, np.arange(len(whole)) < len(some))

    return cells


def _of_one_space(table: pa.Table) -> pa.Array:
    known = pc.fill_null(pc.equal(table[SPACE], FIRST_SPACE), False)
    return pc.if_else(known, table[EMBEDDING], None).combine_chunks()


def twin_logits(workspace: Workspace, seed: int, student: StudentSettings, twin: Path) -> LogitsOf:
    """The logits of a student that has no teacher, each made just before the row was learned, as a teacher's are;
    NaN where the row is not the student's, or a teacher could know the label."""
    config, part = workspace.of(seed), load_part(twin)
    assert part is not None
    stored, first, tasks = part["as_learned"], int(part["first"]), config.student_tasks(student)
    # an arm may have a filter
    own = places_of(workspace.rows(seed), config, config.student(student.name), workspace.folder)

    def logits(table: pa.Table, offset: int) -> np.ndarray:
        whole = np.full((table.num_rows, len(config.tasks)), np.nan, np.float32)
        begins, ends = np.searchsorted(own, [offset, offset + table.num_rows]).tolist()
        begins = max(begins, first)
        for t, task in enumerate(tasks):
            some = stored[begins - first : max(begins, ends) - first, t]
            whole[own[begins:ends] - offset, config.tasks.index(task)] = some
        whole[~not_yet_learned(table, config.tasks, config.rows.groups)] = np.nan
        release_pages(stored)
        release_pages(own)
        return whole

    return logits
