"""A student's rows on their way from the lake to its training: read, cut into batches, built.

    lake --(verticals, tasks)--> rows --(sampling)--> rows --> batches cut at B rows or a block's end --> tensors

A batch ends after `batch_rows` rows that pass the filter, or at the end of a block, whichever is first. Blocks are a
column of the lake, so the cuts are the same in every replay; and so is what sampling leaves out of the filter's rows
(data/sampling.py), which goes by the rows alone. A thread may do all of it ahead of the training: nothing here knows
how far that is, and what was left out waits until somebody asks for it by position.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.data import Batch, BatchBuilder, SampledRows
from pipelines.training import Watch
from streaming.lake import LakeReader, LakeSource
from streaming.position import NOTHING_YET


class Cut(NamedTuple):
    """One batch: its rows, in order, and what is made of them."""

    rows: pa.Table
    batch: Batch


class LeftOut:
    """What sampling took away, from the thread that reads to the one that learns and counts."""

    READS = ("lake_seq", "impression_id")  # and labels

    def __init__(self) -> None:
        self._chunks: list[pa.Table] = []
        self._lock = threading.Lock()

    def put(self, lost: pa.Table) -> None:
        with self._lock:
            self._chunks.append(lost)

    def take(self, upto: int) -> pa.Table | None:
        """Those up to this `lake_seq` that nobody has taken yet, in order; None where there are none."""
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


class StudentRows:
    """Batches of the rows that pass a student's filter, in order. One thread at a time, but for the two properties."""

    def __init__(
        self,
        lake: LakeReader,
        build: BatchBuilder,
        watch: Watch,
        *,
        batch_rows: int,
        read_rows: int,
        columns: Sequence[str],
        verticals: set[str],
        settlements: list[str],
        sampling: Callable[[pa.Table], SampledRows] | None = None,
    ) -> None:
        self._sampling, self.left_out = sampling, LeftOut()
        self._build, self._watch, self._batch_rows = build, watch, batch_rows
        self._source = LakeSource(
            lake,
            batch_rows=read_rows,
            columns=columns,
            verticals=verticals,
            filter=pc.field("settlement").isin(settlements),
        )
        self._rows = lake.read(upto=NOTHING_YET, columns=columns).table
        self._given_upto = NOTHING_YET

    def open(self, position: int) -> None:
        self._source.open(position)
        self._given_upto = position

    @property
    def given_upto(self) -> int:
        """Every row up to here was given out, or passed over because it is not ours."""
        return self._given_upto

    def end_at(self, seq: int | None) -> None:
        """The last row that there will be, once somebody knows it."""
        self._source.end_seq = seq

    def next(self) -> Cut | None:
        """The next batch; None when it is not known yet where that ends. Raises EndOfStream after the last."""
        while True:
            with self._watch("cut"):
                count = self._next_batch_rows()
            if count:
                rows, self._rows = self._rows.slice(0, count), self._rows.slice(count)
                with self._watch("batch"):
                    return Cut(rows, self._build(rows))
            if not self._rows.num_rows:
                self._given_upto = self._source.position()
            with self._watch("read"):
                if not self._read_more():
                    return None

    def _next_batch_rows(self) -> int:
        """How many of the rows at hand make the next batch; 0 when that is not known yet."""
        if not self._rows.num_rows:
            return 0
        head = self._rows["block"].slice(0, self._batch_rows + 1).to_numpy()
        same_block = int(np.searchsorted(head, head[0], side="right"))
        if same_block >= self._batch_rows:
            return self._batch_rows
        # Commits hold whole blocks: what was read up to the lake's end ends with a block.
        block_is_whole = same_block < len(head) or self._source.caught_up
        return same_block if block_is_whole else 0

    def _read_more(self) -> bool:
        rows = self._source.next_batch()
        if rows is None:
            return False
        if self._sampling is not None:
            sampled = self._sampling(rows)
            counted = [n for n in sampled.lost.schema.names if n in LeftOut.READS or n.startswith("label_")]
            self.left_out.put(sampled.lost.select(counted).append_column("gone", pa.array(sampled.gone)))
            rows = sampled.kept
        self._rows = pa.concat_tables([self._rows, rows]).combine_chunks()
        return True
