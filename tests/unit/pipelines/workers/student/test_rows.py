"""What sampling leaves out of a student's rows: batches are cut among the rest, and what is gone is counted once."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.data import sample_negatives
from pipelines.workers.student.rows import LeftOut, StudentRows
from streaming.messages import EndOfStream

SAMPLING = partial(sample_negatives, tasks=["ctr"], negative_rate={"ctr": 0.4}, seed=1)


def rows_of(count: int, block_rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "lake_seq": np.arange(count) * 2 + 1,  # every other row of the lake is somebody else's
            "block": np.arange(count) // block_rows,
            "impression_id": np.arange(count),
            "label_ctr": pa.array(rng.random(count) < 0.2).cast(pa.int8()),
        }
    )


class Lake:
    """A source that gives so many rows at a time, and is caught up at its end."""

    def __init__(self, rows: pa.Table, at_a_time: int) -> None:
        self._rows, self._at_a_time, self._place = rows, at_a_time, 0

    def next_batch(self) -> pa.Table:
        if self._place >= self._rows.num_rows:
            raise EndOfStream
        self._place += self._at_a_time
        return self._rows.slice(self._place - self._at_a_time, self._at_a_time)

    def position(self) -> int:
        return 2 * min(self._place, self._rows.num_rows) - 1

    @property
    def caught_up(self) -> bool:
        return self._place >= self._rows.num_rows


def student_rows(rows: pa.Table, at_a_time: int, batch_rows: int = 16) -> StudentRows:
    lake: Any = SimpleNamespace(read=lambda **of: SimpleNamespace(table=rows.slice(0, 0)))
    build: Any = lambda table: None  # noqa: E731
    watch: Any = lambda phase: nullcontext()  # noqa: E731
    made = StudentRows(
        lake, build, watch, batch_rows=batch_rows, read_rows=at_a_time, columns=[], verticals=set(), settlements=[],
        sampling=SAMPLING,
    )  # fmt: skip
    made._source = Lake(rows, at_a_time)  # type: ignore[assignment]
    return made


def cuts(given: StudentRows) -> list[list[int]]:
    found = []
    while True:
        try:
            cut = given.next()
        except EndOfStream:
            return found
        if cut is not None:
            found.append(cut.rows["lake_seq"].to_pylist())


@pytest.mark.parametrize("at_a_time", [1, 7, 50, 1000])
def test_a_batch_ends_after_so_many_rows_that_are_left_or_with_its_block_however_they_are_read(at_a_time):
    rows = rows_of(300, block_rows=100)
    found = cuts(student_rows(rows, at_a_time))
    kept = SAMPLING(rows).kept
    assert [seq for cut in found for seq in cut] == kept["lake_seq"].to_pylist()
    expected = []
    for block in range(3):
        left = [s for s, b in zip(kept["lake_seq"].to_pylist(), kept["block"].to_pylist(), strict=True) if b == block]
        expected += [left[start : start + 16] for start in range(0, len(left), 16)]
    assert found == expected


@given(st.integers(1, 60), st.lists(st.integers(-1, 500), max_size=12))
@settings(max_examples=15, deadline=None)
def test_what_was_left_out_is_told_once_up_to_the_position_asked_for(at_a_time, positions):
    rows = rows_of(250, block_rows=50)
    given, told = student_rows(rows, at_a_time), []
    cuts(given)
    lost = SAMPLING(rows).lost["lake_seq"].to_pylist()
    for position in [*sorted(positions), 10_000]:
        if (taken := given.left_out.take(position)) is not None:
            told += taken["lake_seq"].to_pylist()
        assert told == [seq for seq in lost if seq <= position]
    assert given.left_out.take(10_000) is None


def test_nothing_left_out_is_nothing():
    assert LeftOut().take(99) is None
