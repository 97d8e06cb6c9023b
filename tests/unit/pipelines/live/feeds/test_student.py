"""What sampling leaves out of a student's rows: batches are cut among the rest, and what is gone is counted once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.features.batch import OWN
from exfm.features.sampling import sample_negatives
from pipelines.live.feeds.cuts import RIDERS
from pipelines.live.feeds.growth import Growth, batch_growth
from pipelines.live.feeds.own_rows import OwnRows
from pipelines.live.feeds.student import SampledOutLabels, StudentFeed
from pipelines.live.feeds.table import TableSource
from streaming.messages.source import EndOfStream
from tests.support.waiting import eventually

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


SIXTEEN = batch_growth(16, 16)
GROWING = Growth(first=4, last=16, per=5)


def fed(rows: pa.Table, at_a_time: int, batches: Growth = SIXTEEN, after: int = -1, learned: int = 0) -> StudentFeed:
    build: Any = lambda table: None  # noqa: E731
    feed = StudentFeed(TableSource(rows, batch_rows=at_a_time), build, batches=batches, sampling=SAMPLING)
    feed.open(after, learned)
    return feed


def cuts(feed: StudentFeed) -> list[list[int]]:
    return [cut.rows["lake_seq"].to_pylist() for cut in feed]


@pytest.mark.parametrize("at_a_time", [1, 7, 50, 1000])
def test_a_batch_ends_after_so_many_rows_that_are_left_whatever_blocks_they_are_of_and_however_they_are_read(at_a_time):
    rows = rows_of(300, block_rows=100)
    kept = SAMPLING(rows).kept["lake_seq"].to_pylist()
    assert cuts(fed(rows, at_a_time)) == [kept[start : start + 16] for start in range(0, len(kept), 16)]


def test_batches_grow_with_the_rows_learned_and_the_last_one_holds_the_rest():
    found = cuts(fed(rows_of(300, block_rows=100), 50, GROWING))
    sizes = [len(cut) for cut in found]
    assert sizes[:12] == [4] * 10 + [8] * 2
    assert sizes[-2] == 16 > sizes[-1] > 0
    assert sizes == sorted(sizes[:-1]) + sizes[-1:]


@pytest.mark.parametrize("learned_batches", [1, 3, 11, 20])
@pytest.mark.parametrize("at_a_time", [7, 1000])
def test_whoever_resumes_behind_a_batch_cuts_the_rest_alike(at_a_time, learned_batches):
    rows = rows_of(300, block_rows=100)
    whole = cuts(fed(rows, 50, GROWING))
    learned = whole[:learned_batches]
    behind = fed(rows, at_a_time, GROWING, after=learned[-1][-1], learned=sum(map(len, learned)))
    assert cuts(behind) == whole[learned_batches:]


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
    assert SampledOutLabels().take(99) is None


def test_rows_that_lie_ready_are_not_passed_yet_and_those_of_others_behind_the_last_are():
    build: Any = lambda table: None  # noqa: E731
    feed = StudentFeed(TableSource(rows_of(32, block_rows=16), batch_rows=32), build, batches=SIXTEEN, ahead=2)
    feed.open(-1)
    eventually(lambda: feed.ready == 2)
    assert feed.passed(-1) == feed.reached(-1) == -1
    for _ in range(2):
        learned = feed.read().rows["lake_seq"][-1].as_py()
    eventually(lambda: feed.passed(learned) == 63)
    assert feed.passed(70) == 70
    feed.close()


class Growing:
    """A lake whose rows come when they are `put`, until it has an `end_seq`."""

    def __init__(self) -> None:
        self.end_seq: int | None = None
        self.rows, self._upto = rows_of(0, block_rows=1), -1

    def open(self, position: int | None = None) -> None:
        pass

    def put(self, rows: pa.Table, upto: int) -> None:
        self.rows, self.upto = rows, upto

    def next_batch(self) -> pa.Table | None:
        if self.end_seq is not None and self._upto >= self.end_seq:
            raise EndOfStream
        rows, self.rows, self._upto = self.rows, self.rows.slice(0, 0), self.upto
        return rows if rows.num_rows else None

    def position(self) -> int:
        return self._upto


def test_what_is_left_at_a_blocks_end_waits_for_the_next_blocks_rows_and_is_not_learned_until_then():
    build: Any = lambda table: None  # noqa: E731
    lake, rows = Growing(), rows_of(40, block_rows=20)  # every other row of the lake
    feed = StudentFeed(lake, build, batches=SIXTEEN)
    feed.open(-1)
    lake.put(rows.slice(0, 20), upto=99)
    learned = feed.read().rows["lake_seq"][-1].as_py()
    assert learned == 31
    assert feed.read() is None  # four rows wait, lake_seq 33 to 39
    assert feed.passed(learned) == 32
    assert feed.read() is None
    assert feed.reached(learned) == 99  # it does not lag behind what there is
    lake.put(rows.slice(20), upto=199)
    assert feed.read().rows["lake_seq"].to_pylist() == [*range(33, 65, 2)]
    lake.end_seq = 199
    assert feed.read().rows["lake_seq"].to_pylist() == [*range(65, 81, 2)]  # the stream ends: this is the rest
    with pytest.raises(EndOfStream):
        feed.read()
    assert feed.passed(79) == 199


# --- rows of other verticals ---------------------------------------------------------------------------------------


def mixed(count: int, share: float) -> pa.Table:
    """The whole lake: each row is of `feed` with this chance."""
    own = np.random.default_rng(4).random(count) < share
    rows = rows_of(count, block_rows=100).set_column(0, "lake_seq", pa.array(np.arange(count)))
    return rows.append_column("vertical", pa.array(np.where(own, "feed", "shop")))


def fed_with_others(rows: pa.Table, at_a_time: int, label_rows: Any, **options: Any) -> StudentFeed:
    build: Any = lambda table: None  # noqa: E731
    source = TableSource(rows, batch_rows=at_a_time)
    feed = StudentFeed(source, build, batches=Growth(4, 16, 4), own=OwnRows(["feed"]), label_rows=label_rows, **options)
    feed.open(-1)
    return feed


@pytest.mark.parametrize("at_a_time", [1, 9, 1000])
@pytest.mark.parametrize("share", [0.7, 0.02])
def test_batches_end_where_those_of_own_rows_alone_do_and_others_ride_along(at_a_time, share):
    rows = mixed(3_000, share)
    own = rows.filter(pc.equal(rows["vertical"], "feed"))
    build: Any = lambda table: None  # noqa: E731
    alone = StudentFeed(TableSource(own, batch_rows=at_a_time), build, batches=Growth(4, 16, 4))
    alone.open(-1)
    found, start, learned = [cut.rows for cut in fed_with_others(rows, at_a_time, "own")], 0, 0
    assert [batch.filter(batch[OWN])["lake_seq"].to_pylist() for batch in found] == cuts(alone)
    for batch in found:
        last, bound = batch["lake_seq"][-1].as_py(), RIDERS * Growth(4, 16, 4).size(learned)
        between = rows.slice(start, last + 1 - start)
        others = between.filter(pc.equal(between["vertical"], "shop"))["lake_seq"].to_pylist()
        assert batch.filter(pc.invert(batch[OWN]))["lake_seq"].to_pylist() == others[-bound:]
        start, learned = last + 1, learned + pc.sum(batch[OWN]).as_py()


def test_a_feed_that_is_opened_behind_a_batch_goes_on_with_the_same_batches():
    rows = mixed(3_000, 0.05)
    whole = cuts(fed_with_others(rows, 100, "own"))
    again = fed_with_others(rows, 77, "own")
    learned = sum(rows["vertical"][seq].as_py() == "feed" for cut in whole[:3] for seq in cut)
    again.open(whole[2][-1], learned)
    assert cuts(again) == whole[3:]


def test_where_labels_of_all_rows_are_learned_a_batch_is_so_many_rows_of_any():
    rows = mixed(300, 0.1)
    found = cuts(fed_with_others(rows, 50, "all"))
    assert [seq for cut in found for seq in cut] == rows["lake_seq"].to_pylist()
    assert [len(cut) for cut in found][:3] == [4, 4, 4]


def test_labels_of_others_that_sampling_took_away_are_counted_where_they_are_learned():
    rows = mixed(300, 0.5)
    lost = SAMPLING(rows).lost
    for label_rows, counted in (("all", lost), ("own", lost.filter(pc.equal(lost["vertical"], "feed")))):
        feed = fed_with_others(rows, 50, label_rows, sampling=SAMPLING)
        cuts(feed)
        assert feed.left_out(10_000)["lake_seq"].to_pylist() == counted["lake_seq"].to_pylist()
