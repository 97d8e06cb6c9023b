"""What sampling leaves out of a student's rows: batches are cut among the rest, and what is gone is counted once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.data import sample_negatives
from pipelines.feeds import StudentFeed, TableSource
from pipelines.feeds.student import LeftOut
from tests.support.pipelines.disks import eventually

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


def fed(rows: pa.Table, at_a_time: int, batch_rows: int = 16) -> StudentFeed:
    build: Any = lambda table: None  # noqa: E731
    feed = StudentFeed(TableSource(rows, batch_rows=at_a_time), build, batch_rows=batch_rows, sampling=SAMPLING)
    feed.open(-1)
    return feed


def cuts(feed: StudentFeed) -> list[list[int]]:
    return [cut.rows["lake_seq"].to_pylist() for cut in feed]


@pytest.mark.parametrize("at_a_time", [1, 7, 50, 1000])
def test_a_batch_ends_after_so_many_rows_that_are_left_or_with_its_block_however_they_are_read(at_a_time):
    rows = rows_of(300, block_rows=100)
    found = cuts(fed(rows, at_a_time))
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
    feed, told = fed(rows, at_a_time), []
    cuts(feed)
    lost = SAMPLING(rows).lost["lake_seq"].to_pylist()
    for position in [*sorted(positions), 10_000]:
        if (taken := feed.left_out(position)) is not None:
            told += taken["lake_seq"].to_pylist()
        assert told == [seq for seq in lost if seq <= position]
    assert feed.left_out(10_000) is None


def test_nothing_left_out_is_nothing():
    assert LeftOut().take(99) is None


def test_rows_that_lie_ready_are_not_passed_yet_and_those_of_others_behind_the_last_are():
    build: Any = lambda table: None  # noqa: E731
    feed = StudentFeed(TableSource(rows_of(32, block_rows=16), batch_rows=32), build, batch_rows=16, ahead=2)
    feed.open(-1)
    eventually(lambda: feed.ready == 2)
    assert feed.passed(-1) == -1
    for _ in range(2):
        learned = feed.read().rows["lake_seq"][-1].as_py()
    eventually(lambda: feed.passed(learned) == 63)
    assert feed.passed(70) == 70
    feed.close()
