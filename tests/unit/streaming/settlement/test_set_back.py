"""Event time that a record of the year 9000 moved, set back: what comes is taken again, and every row is counted."""

from __future__ import annotations

import pytest

from streaming.errors import BadInput
from streaming.intake.merge import Merge, set_back
from streaming.messages.dead_letters import letters_from_batch
from streaming.schema import RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.settlement.settlement import Settlement
from tests.support.streams.rows import ADS, CLICKS, feedback, impressions

SCHEMA = RowSchema(columns=[], tasks=[{"name": "ctr", "window_s": 1}, {"name": "cvr", "window_s": 10}])
YEAR_9000 = 221_845_392_000_000


class Stream:
    """Two partitions, their merge and its settlement; `restart` continues from what would be stored."""

    def __init__(self) -> None:
        self.merge = self._new_merge()
        self.settlement = Settlement(SCHEMA, SettlementConfig())
        self.rows: list[tuple[int, str, int]] = []
        self.dead: list[tuple[str, str]] = []
        self._offsets = {ADS: 0, CLICKS: 0}

    def _new_merge(self) -> Merge:
        return Merge(SCHEMA, {ADS: "impression", CLICKS: "feedback"})

    def send(self, ads, clicks) -> None:
        for partition, rows, make in ((ADS, ads, impressions), (CLICKS, clicks, feedback)):
            self.merge.push(partition, make(SCHEMA, rows, offset=self._offsets[partition]))
            self._offsets[partition] += len(rows)
        while (chunk := self.merge.pop()) is not None:
            self._note(self.settlement.step(chunk))

    def _note(self, settled) -> None:
        for row in settled.batch.to_pylist():
            self.rows.append((row["impression_id"], row["settlement"], row[f"label_{row['settlement']}"]))
        self.dead += [(letter.kind, letter.reason) for letter in letters_from_batch(settled.dead)]

    def mend(self, to_ms: int) -> None:
        letters = self.settlement.set_back(to_ms)
        self.dead += [(letter.kind, letter.reason) for letter in letters_from_batch(letters)]
        merge, state = set_back(self.merge.state(), to_ms), self.settlement.state()
        self.merge, self.settlement = self._new_merge(), Settlement(SCHEMA, SettlementConfig())
        self.merge.restore(merge)
        self.settlement.restore(state)

    def end(self) -> None:
        for partition in (ADS, CLICKS):
            self.merge.mark_ended(partition)
        while (chunk := self.merge.pop()) is not None:
            self._note(self.settlement.step(chunk))
        self._note(self.settlement.finish())


@pytest.fixture
def poisoned() -> Stream:
    stream = Stream()
    stream.send([(1, 0), (2, 500)], [(1, 400, "ctr")])
    stream.send([(3, YEAR_9000), (4, 1_000)], [(2, YEAR_9000, "ctr"), (9, YEAR_9000, "ctr")])
    stream.send([(5, YEAR_9000 + 5_000)], [(4, YEAR_9000 + 5_000, "ctr")])  # 3 settles for ctr, and waits for cvr
    stream.send([(6, 2_000)], [(6, 2_100, "ctr")])
    return stream


def test_after_the_year_9000_nothing_is_accepted(poisoned):
    assert ("impression", "too_old") in poisoned.dead
    assert (6, "ctr", 1) not in poisoned.rows


def test_set_back_rows_are_accepted_and_labelled_again(poisoned):
    poisoned.mend(2_000)
    assert poisoned.merge.watermark_ms == poisoned.settlement.watermark_ms == 2_000
    poisoned.send([(7, 2_500), (8, 60_000)], [(7, 2_600, "ctr"), (7, 60_000, "ctr")])
    poisoned.end()
    assert {(7, "ctr", 1), (7, "cvr", 0), (8, "ctr", 0)} <= set(poisoned.rows)


def test_every_row_is_accounted_for_through_the_mending(poisoned):
    for _ in range(2):
        found = poisoned.settlement.counters()
        refused = sum(found["dead_letters"]["impression"].values())
        for group in ("ctr", "cvr"):
            parts = [found[name][group] for name in ("settled", "not_applicable", "pending")]
            assert found["impressions_read"] == sum(parts) + found["duplicates_dropped"] + refused
        known = sum(found[f"{name}_feedback"] for name in ("matched", "duplicate", "late", "waiting"))
        assert found["feedback_read"] == known + sum(found["dead_letters"]["feedback"].values())
        if poisoned.settlement.watermark_ms > 2_000:
            poisoned.mend(2_000)
    assert found["pending"] == {"ctr": 0, "cvr": 0}
    assert found["waiting_feedback"] == 0
    assert ("impression", "in_the_future") in poisoned.dead


def test_event_time_that_is_hardly_ahead_is_left_alone(poisoned):
    with pytest.raises(BadInput, match="horizon"):
        poisoned.settlement.set_back(YEAR_9000)
