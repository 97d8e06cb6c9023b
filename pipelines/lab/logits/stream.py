"""A stream as a lake would store it, in slices, with its logits and simulated faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.lab.logits.faults import chosen, learned_labels
from pipelines.lab.logits.teachers import blocks_of, versions_of
from pipelines.lab.mapped import release_pages
from pipelines.lab.rows import Rows
from pipelines.lab.spec.conditions import Condition

LogitsOf = Callable[[pa.Table, int], np.ndarray]
"""Some rows of the stream, and how many come before them -> their logits, (n, T) float32; NaN: none."""


@dataclass(frozen=True)
class Stream:
    """`rows` under a condition. `logits`: None where rows are a lake's and stay as they were logged. Rows that are not
    `of_a_lake` get the positions, blocks and versions that a run would give them. `delays_s`: how long feedback took,
    (N, T), where the condition asks for it."""

    rows: Rows
    config: Config
    condition: Condition
    logits: LogitsOf | None
    of_a_lake: bool
    upto: int | None = None
    delays_s: np.ndarray | None = None

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
        stop = offset + table.num_rows
        if not self.of_a_lake:
            columns["lake_seq"] = pa.array(np.arange(offset, stop))
            columns["block"] = pa.array(blocks_of(stop, self.config, offset))
            columns["teacher_version"] = pa.array(versions_of(stop, self.config, self.condition.behind, offset))
        logits, tasks = self.logits(table, offset), self.config.tasks
        if not self.condition.honest:
            logits = (self.condition.scale * logits + self.condition.shift).astype(np.float32)
        if self.condition.missing:
            ids = table["impression_id"].combine_chunks()
            without = chosen(ids, self.condition.missing, "missing")
            logits = np.where(without[:, None], np.float32(np.nan), logits)
        if self.condition.label_faults:
            delays_s = None if self.delays_s is None else self.delays_s[offset:stop]
            learned = learned_labels(table, self.config.rows.tasks, self.condition.label_faults, delays_s)
            columns |= {f"label_{task}": labels for task, labels in learned.items()}
        for t, task in enumerate(tasks):
            columns[f"teacher_logit_{task}"] = pa.array(logits[:, t], mask=~np.isfinite(logits[:, t]))
        return pa.table(columns)


def logged_logits(tasks: tuple[str, ...]) -> LogitsOf:
    """Logits from the rows' own columns."""

    def logits(table: pa.Table, offset: int) -> np.ndarray:
        return np.stack([table[f"teacher_logit_{task}"].to_numpy() for task in tasks], axis=1).astype(np.float32)

    return logits


def stored_logits(stored: np.ndarray) -> LogitsOf:
    """Logits from a stored array (M, T) for the first M rows; NaN for the others."""

    def logits(table: pa.Table, offset: int) -> np.ndarray:
        found = np.full((table.num_rows, stored.shape[1]), np.nan, np.float32)
        known = stored[offset : offset + table.num_rows]
        found[: len(known)] = known
        release_pages(stored)
        return found

    return logits
