"""Blocks: settled rows until a block is due, then as the lake stores them, with the teacher's logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.features.representation import EMBEDDING, SPACE, packed, written
from exfm.models.scorer import TeacherAnswer
from pipelines.core.config.sections import Pace
from pipelines.live.training.unseen_labels import not_yet_learned
from streaming.delivery.publisher import ExamplesPublisher
from streaming.lake.writer import LakeWriter
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA
from streaming.schema import RowSchema
from streaming.settlement.emission import settled_bytes
from streaming.settlement.label_join import late_schema
from streaming.settlement.settlement import SettledRows
from streaming.store.spool import Spool

DEAD_ROWS = 10_000
"""Once this many refused records wait, they are delivered without waiting for a block."""

MEMORY_BYTES = 16 * 2**20
"""Refused records, and late feedback, are held in memory up to this size each, and on disk beyond it."""

BLOCK_BYTES = 256 * 2**20
"""A block ends with the row that brings it to this size (`settled_bytes`), however few its rows are."""

DAY_MS = 86_400_000


class OpenBlock:
    """Settled rows not yet in the lake, with their late feedback and dead letters.

    Times are seconds of one monotonic clock.
    """

    def __init__(self, size: int, opened_s: float, read_before: int, schema: RowSchema, folder: Path) -> None:
        """`size`: how many rows fill it; `opened_s`: when the last commit began; `read_before`: how many rows had been
        read by then. `folder`: for what does not fit into memory; one open block at a time has it."""
        self.size = size
        self.num_rows = self.num_bytes = 0
        self._whole = False
        self._schema = schema
        self._opened_s, self._read_before = opened_s, read_before
        self._began_s = opened_s  # when the first row came
        self._rows: list[pa.RecordBatch] = []
        self._late = Spool(late_schema(schema), folder / "late.spool", memory_bytes=MEMORY_BYTES)
        self._dead = Spool(DEAD_LETTER_SCHEMA, folder / "dead.spool", memory_bytes=MEMORY_BYTES)

    def add(self, settled: SettledRows, now_s: float) -> None:
        self._whole = self._whole or settled.whole
        if settled.batch.num_rows:
            if not self.num_rows:
                self._began_s = now_s
            self._rows.append(settled.batch)
            self.num_rows += settled.batch.num_rows
            if not settled.whole:
                self.num_bytes += int(settled_bytes(settled.batch, self._schema).sum())
        self._late.add(settled.late)
        self._dead.add(settled.dead)

    @property
    def rows_left(self) -> int:
        """Number of rows until full."""
        return self.size - self.num_rows

    @property
    def bytes_left(self) -> int:
        """Number of bytes until full."""
        return BLOCK_BYTES - self.num_bytes

    @property
    def dead_rows(self) -> int:
        return self._dead.num_rows

    def clear(self) -> None:
        """Drop rows spooled to disk."""
        self._late.clear()
        self._dead.clear()

    def is_due(self, pace: Pace, now_s: float, *, at_end: bool) -> bool:
        """True if the block is to be scored and committed: it is full, the stream has ended, or, in free pace, its
        first row has waited long enough."""
        if not self.num_rows:
            return False
        waited = pace.mode == "free" and now_s - self._began_s >= pace.commit_interval_s
        return self._whole or self.rows_left <= 0 or self.bytes_left <= 0 or at_end or waited

    def progress_is_due(self, pace: Pace, now_s: float, rows_read: int, *, rows_due: bool) -> bool:
        """True if progress is to be committed without rows: to deliver dead letters, and in free pace to record read
        positions while nothing settles. `rows_due`: rows will leave soon, and their commit records positions too."""
        if self.num_rows:
            return False
        waited = pace.mode == "free" and not rows_due and now_s - self._opened_s >= pace.commit_interval_s
        return self.dead_rows >= DEAD_ROWS or (waited and rows_read > self._read_before)

    def rows(self) -> pa.RecordBatch:
        """All rows, in the order in which they settled; of a whole block, what `SettledRows.batch` has. There must be
        one."""
        return pa.concat_batches(self._rows)

    def late(self) -> pa.Table:
        return self._late.table()

    def dead(self) -> pa.Table:
        return self._dead.table()


class ScoredBlock(Protocol):
    """Block as it is committed: all of it, or what rank 0 knows of it where the ranks have the rows."""

    def commit(self, lake: LakeWriter, state: int, metadata: Mapping[str, Any]) -> None:
        """`LakeWriter.commit`."""

    def publish(self, publisher: ExamplesPublisher) -> None:
        """`ExamplesPublisher.publish`; it is in the lake."""


class AugmentedBlock(NamedTuple):
    """A block whose rows are here, in `schema.augmented`."""

    rows: pa.RecordBatch

    def commit(self, lake: LakeWriter, state: int, metadata: Mapping[str, Any]) -> None:
        lake.commit(self.rows, state=state, metadata=metadata)

    def publish(self, publisher: ExamplesPublisher) -> None:
        publisher.publish(self.rows)


def augment(
    rows: pa.RecordBatch,
    scored: TeacherAnswer | None,
    schema: RowSchema,
    *,
    block: int,
    first_seq: int,
    teacher_version: int | None,
    scored_at_ms: int,
    space: int | None = None,
    learned_upto_ms: int | None = None,
) -> pa.RecordBatch:
    """A block as the lake stores it (`schema.augmented`), from rows in `schema.settled`.

    scored           logits of every task of the schema, in its order; NaN where the teacher gives none, None for
                     no logits at all. A logit whose label the teacher may have learned already is left out: it is no
                     prediction. A row without any logit has no representation either
    teacher_version  None where no snapshot scored the rows
    space            of the representation
    learned_upto_ms  event time up to which the teacher had learned rows before the stream
    """
    count = rows.num_rows
    if scored is None:
        scored = TeacherAnswer(np.full((count, len(schema.tasks)), np.nan, np.float32), None)
    logits_NT = scored.logits
    event_time = rows["event_time_ms"].to_numpy()
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns["lake_seq"] = pa.array(np.arange(first_seq, first_seq + count))
    columns["block"] = pa.array(np.full(count, block))
    columns["teacher_version"] = pa.array([teacher_version] * count, pa.int64())
    columns["scored_at_ms"] = pa.array(np.full(count, scored_at_ms))
    columns["event_date"] = _dates(event_time)
    tasks = [task.name for task in schema.tasks]
    predicted_NT = not_yet_learned(rows, tasks, schema.groups, learned_upto_ms) & np.isfinite(logits_NT)
    for index, task in enumerate(tasks):
        columns[f"teacher_logit_{task}"] = pa.array(logits_NT[:, index], mask=~predicted_NT[:, index])
    if schema.teacher_embedding:
        r_Nk, predicted = scored.representation, predicted_NT.any(axis=1)
        cells = packed(np.full((count, schema.teacher_embedding), np.nan, np.float32) if r_Nk is None else r_Nk)
        known = predicted & (r_Nk is not None)
        columns[EMBEDDING] = written(cells, known)
        columns[SPACE] = pa.array(np.full(count, space or 0, np.int32), mask=~known)
    augmented = schema.augmented
    return pa.RecordBatch.from_arrays([columns[name] for name in augmented.names], schema=augmented)


def _dates(event_time_ms: np.ndarray) -> pa.Array:
    """The day of each row, written once for all of its rows.

    >>> _dates(np.array([1_704_067_199_999, 1_704_067_200_000, 1_704_067_199_000])).to_pylist()
    ['2023-12-31', '2024-01-01', '2023-12-31']
    """
    days = pa.array(event_time_ms // DAY_MS).dictionary_encode()
    midnights = pa.array(days.dictionary.to_numpy() * DAY_MS, pa.timestamp("ms"))
    return pc.strftime(midnights, format="%Y-%m-%d").take(days.indices)
