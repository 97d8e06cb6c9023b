"""A student's feed: rows of a source, sampled, cut into batches, built.

    source --(verticals, tasks)--> rows --(sampling)--> rows --> batches (cuts.py) --> tensors

Which rows sampling leaves out follows from the rows alone, as the cuts do. A thread may run the feed ahead of the
training: nothing here depends on how far, and what was left out waits until it is asked for by position.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from exfm.features.batch import OWN, Batch, BatchBuilder
from exfm.features.learned_rows import Whose
from exfm.features.sampling import SampledRows
from pipelines.live.feeds.cuts import StudentCuts
from pipelines.live.feeds.growth import Growth
from pipelines.live.feeds.own_rows import OwnRows
from pipelines.live.training.ahead import Ahead
from pipelines.live.training.writer import Watch
from streaming.messages.source import EndOfStream
from streaming.position import NOTHING_YET

WAIT_S = 0.05
"""How long `read` waits for a batch that a thread makes ready."""


class StudentBatch(NamedTuple):
    """One batch: its rows, in order, and their tensors. Where it holds rows of other verticals, the column `own row`
    says which are the student's own."""

    rows: pa.Table
    tensors: Batch

    @property
    def own_rows(self) -> StudentBatch:
        """The student's own rows only."""
        if self.tensors.own is None:
            return self
        return StudentBatch(self.rows.filter(self.rows[OWN]), self.tensors.own_rows)


class RowSource(Protocol):
    """Interface of a source of rows, implemented by `LakeSource` and `TableSource`."""

    end_seq: int | None

    def open(self, position: int | None = None) -> None: ...
    def next_batch(self) -> pa.Table | None: ...
    def position(self) -> int: ...
    def close(self) -> None: ...


class SampledOutLabels:
    """Labels removed by sampling, passed from the reading thread to the learning one, which counts them."""

    READS = ("lake_seq", "impression_id")  # and labels

    def __init__(self) -> None:
        self._chunks: list[pa.Table] = []
        self._lock = threading.Lock()

    def put(self, sampled: SampledRows, *, own_only: bool = False) -> None:
        """Add sampled-out rows; with `own_only` only own rows', since others' are not learned either way."""
        counted = [n for n in sampled.lost.schema.names if n in self.READS or n.startswith("label_")]
        lost = sampled.lost.select(counted).append_column("gone", pa.array(sampled.gone))
        if own_only:
            lost = lost.filter(sampled.lost[OWN])
        with self._lock:
            self._chunks.append(lost)

    def take(self, upto: int) -> pa.Table | None:
        """Take the rows up to this `lake_seq`, in order; None if there are none."""
        taken = []
        with self._lock:
            while self._chunks:
                count = int(np.searchsorted(self._chunks[0]["lake_seq"].to_numpy(), upto, side="right"))
                taken.append(self._chunks[0].slice(0, count))
                self._chunks[0] = self._chunks[0].slice(count)
                if self._chunks[0].num_rows:
                    break
                self._chunks.pop(0)
        found = pa.concat_tables(taken) if taken else None
        return found if found is not None and found.num_rows else None


class StudentFeed:
    """Batches of a source's rows, in order; up to `ahead` of them are prepared in advance by a thread."""

    def __init__(
        self,
        source: RowSource,
        build: BatchBuilder,
        *,
        batches: Growth,
        own: OwnRows | None = None,
        label_rows: Whose = "own",
        sampling: Callable[[pa.Table], SampledRows] | None = None,
        ahead: int = 0,
        watch: Watch = lambda phase: nullcontext(),
    ) -> None:
        """`batches`: the rows of a batch, by the rows learned before it. `own`: which rows are the student's own, where
        the source has others, too (None: all); `label_rows`: whether labels of those are learned. With `ahead` > 0, do
        not share `source` with another thread. `watch` times the thread that reads, in the phases `read`, `cut` and
        `batch`."""
        self._source, self._build, self._sampling, self._watch = source, build, sampling, watch
        self._own = own
        self._batches, self._own_only = batches, self._own is not None and label_rows == "own"
        self._cuts = StudentCuts(batches)
        self._given = self._read_upto = NOTHING_YET
        self._bound = ahead
        self._ahead: Ahead[StudentBatch] = Ahead("student", self._next, 0)
        self._left_out = SampledOutLabels()

    def open(self, position: int, learned_rows: int = 0) -> None:
        """Start after `position`, up to which `learned_rows` were learned."""
        self._source.open(position)
        self._cuts = StudentCuts(self._batches, learned_rows, own_only=self._own_only)
        self._given = self._read_upto = position
        self._ahead = Ahead("student", self._next, self._bound)

    def end_at(self, seq: int | None) -> None:
        """Set the last row, once it is known."""
        self._source.end_seq = seq

    @property
    def threaded(self) -> bool:
        return self._ahead.threaded

    @property
    def ready(self) -> int:
        """Number of prepared batches."""
        return self._ahead.ready

    def read(self) -> StudentBatch | None:
        """The next batch; None until its end is known. Raises EndOfStream after the last."""
        return self._ahead.take(WAIT_S)

    def passed(self, learned: int) -> int:
        """The `lake_seq` up to which nothing is left to learn, given the last learned row: rows after it do not pass
        the filter."""
        given = self._given  # read first: whatever was given before that lies ready by now, or was learned
        return learned if self._ahead.ready else max(given, learned)

    def reached(self, learned: int) -> int:
        """`passed`, extended over rows that wait for their batch to fill: the student's lag counts from there."""
        upto = self._read_upto
        return learned if self._ahead.ready else max(upto, learned)

    def left_out(self, upto: int) -> pa.Table | None:
        """Rows up to this `lake_seq` removed by sampling, each once."""
        return self._left_out.take(upto) if self._sampling is not None else None

    @property
    def waiting_rows(self) -> int:
        """Number of rows read but not yet in a batch."""
        return self._cuts.waiting_rows

    def close(self) -> None:
        self._ahead.close()
        self._source.close()

    def __iter__(self) -> Iterator[StudentBatch]:
        """All batches of a source that always has the next rows or has ended, such as a table."""
        while True:
            try:
                batch = self.read()
            except EndOfStream:
                return
            assert batch is not None
            yield batch

    def _next(self) -> StudentBatch | None:
        while True:
            if (batch := self._cut(at_end=False)) is not None:
                return batch
            self._note_place()
            try:
                with self._watch("read"):
                    if not self._read_more():
                        return None
            except EndOfStream:
                if (rest := self._cut(at_end=True)) is None:
                    raise
                return rest

    def _cut(self, *, at_end: bool) -> StudentBatch | None:
        with self._watch("cut"):
            rows = self._cuts.take(at_end=at_end)
        if rows is None:
            return None
        with self._watch("batch"):
            return StudentBatch(rows, self._build(rows))

    def _note_place(self) -> None:
        """Every batch that is full was given out: what was read is passed, but for the rows that wait."""
        waiting, self._read_upto = self._cuts.first_waiting_seq, self._source.position()
        self._given = self._read_upto if waiting is None else waiting - 1

    def _read_more(self) -> bool:
        rows = self._source.next_batch()
        if rows is None:
            return False
        if self._own is not None:
            rows = rows.append_column(OWN, pa.array(self._own.mask(rows)))
        if self._sampling is not None:
            sampled = self._sampling(rows)
            self._left_out.put(sampled, own_only=self._own_only)
            rows = sampled.kept
        self._cuts.put(rows)
        return True
