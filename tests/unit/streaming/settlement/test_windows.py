"""Attribution windows from the topics to the settled rows, over scripted topics and a hand-advanced clock.

Times are milliseconds of event time; windows are a second for clicks and ten for sales, unless a test says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from streaming.errors import BrokerAway
from streaming.intake.intake import InputTopic, Intake
from streaming.messages.message import RawMessage
from streaming.messages.source import EndOfStream
from streaming.position import Partition
from streaming.schema import RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.settlement.settlement import Settlement
from tests.support.streams.scripted import ABORT, EOF, PAUSE, Aborted, ScriptedSource, ScriptedTopics, Timed

CLICKS_AND_SALES = [{"name": "ctr", "window_s": 1}, {"name": "cvr", "window_s": 10, "given": "ctr"}]
DAY_MS = 86_400_000
STEP_S = 0.2


class Stream:
    """Topics of two partitions each, and what their merge and settlement bring out."""

    def __init__(self, tasks=CLICKS_AND_SALES, *, idle_s: float | None = None, partitions: int = 2, **settlement: Any):
        self.schema = RowSchema(columns=[], tasks=tasks)
        self.config = SettlementConfig(**settlement)
        self.partitions = partitions
        names = [Partition(topic, number) for topic in ("ads", "clicks") for number in range(partitions)]
        self.topics = ScriptedTopics(dict.fromkeys(names, ()), give_up_s=60)
        self.idle_s = idle_s
        self.settled: list[tuple[Any, ...]] = []
        self.late: list[dict[str, Any]] = []
        self.dead: list[str] = []
        self.ended = False
        self.settlement = Settlement(self.schema, self.config)
        self.intake = self.open(None)

    def open(self, position: dict[str, Any] | None, source: ScriptedSource | None = None) -> Intake:
        kinds = (InputTopic("ads", self.partitions, "json", "impression"),)
        kinds += (InputTopic("clicks", self.partitions, "json", "feedback"),)
        intake = Intake(
            self.schema,
            source or self.topics.reader(),
            list(kinds),
            buffer_rows=100,
            idle_s=self.idle_s,
            max_future_skew_s=self.config.max_future_skew_s,
            clock=self.topics.clock,
        )
        intake.open(position)
        return intake

    def show(self, partition: int, *rows: tuple[int, int], recorded_ms: int | None = None) -> None:
        """Impressions (id, event time); their records carry the event time unless told otherwise."""
        for identity, time_ms in rows:
            row = {"impression_id": identity, "event_time_ms": time_ms, "vertical": "a"}
            self._add(Partition("ads", partition), row, time_ms if recorded_ms is None else recorded_ms)

    def click(self, partition: int, *rows: tuple[int, int], task: str = "ctr") -> None:
        for identity, time_ms in rows:
            row = {"impression_id": identity, "event_time_ms": time_ms, "task": task}
            self._add(Partition("clicks", partition), row, time_ms)

    def _add(self, partition: Partition, row: dict[str, Any], time_ms: int) -> None:
        self.topics.add(partition, Timed(json.dumps(row).encode(), time_ms))

    def end(self) -> None:
        for partition in self.topics.scripts:
            self.topics.add(partition, EOF)

    def run(self, steps: int = 40) -> list[tuple[Any, ...]]:
        """Read for so many steps of the clock; the rows that settled meanwhile: (id, settlement, a label per task)."""
        before = len(self.settled)
        for _ in range(steps):
            try:
                chunk = self.intake.next_batch()
            except EndOfStream:
                if not self.ended:
                    self.ended = True
                    self._take(self.settlement.finish())
                break
            if chunk is None:
                self.topics.clock.advance(STEP_S)
            else:
                self._take(self.settlement.step(chunk))
        return self.settled[before:]

    def _take(self, settled: Any) -> None:
        labels = [f"label_{task.name}" for task in self.schema.tasks]
        for row in settled.batch.to_pylist():
            self.settled.append((row["impression_id"], row["settlement"], *(row[label] for label in labels)))
        self.late += settled.late.to_pylist()
        self.dead += settled.dead["reason"].to_pylist()


def test_a_call_reads_once_at_least_however_soon_it_should_return():
    stream = Stream()
    stream.show(0, (1, 0), (3, 5000))
    stream.show(1, (2, 5000))
    for partition in (0, 1):
        stream.click(partition, (9, 5000))

    def clock() -> float:
        stream.topics.clock.advance(1e-6)
        return stream.topics.clock()

    topics = [InputTopic("ads", 2, "json", "impression"), InputTopic("clicks", 2, "json", "feedback")]
    intake = Intake(stream.schema, stream.topics.reader(), topics, buffer_rows=100, idle_s=None, clock=clock)
    intake.open()
    chunks = [intake.next_batch(max_wait_s=0.0) for _ in range(40)]
    assert sum(chunk.impressions.num_rows for chunk in chunks if chunk is not None) == 1


# --- event time ----------------------------------------------------------------------------------------------------


def test_a_window_closes_when_the_slowest_partition_is_past_it():
    stream = Stream()
    stream.show(0, (1, 0), (2, 100_000))
    stream.show(1, (3, 500))
    for partition in (0, 1):
        stream.click(partition, (99, 100_000))
    assert stream.run() == []  # three partitions are a hundred seconds on; the fourth may still bring 1's like
    stream.show(1, (4, 1001))
    assert stream.run() == []  # 1 may have its click at 1000, and that time is not over
    stream.show(1, (5, 1002))
    assert stream.run() == [(1, "ctr", 0, None)]


def test_impressions_wait_for_the_partitions_of_feedback_too():
    stream = Stream(partitions=1)
    stream.show(0, (1, 0), (2, 100_000), (3, 200_000))
    assert stream.run() == []
    stream.click(0, (1, 900))
    assert stream.run() == []
    stream.click(0, (2, 100_100))
    assert stream.run()[0] == (1, "ctr", 1, None)


def test_an_idle_partition_does_not_hold_the_others_back():
    stream = Stream(idle_s=5)
    stream.show(0, (1, 0), (2, 50_000), (3, 50_001))
    assert stream.run(steps=20) == []  # four seconds
    assert stream.run(steps=20)[0] == (1, "ctr", 0, None)  # those that are at their end wait for nobody


def test_without_idleness_a_silent_partition_holds_event_time_for_ever():
    stream = Stream(idle_s=None)
    stream.show(0, (1, 0), (2, 50_000), (3, 50_001))
    assert stream.run(steps=1000) == []


def test_what_was_written_before_the_rows_that_move_event_time_is_read_before_them():
    """Also where it is in a partition that has long been idle: its end is confirmed again, after the rows were read."""
    stream = Stream(idle_s=5, partitions=1)
    stream.show(0, (1, 0))
    stream.run(steps=40)
    assert stream.intake.watermark_ms == 0  # clicks are idle
    stream.click(0, (1, 300))
    stream.show(0, (2, 90_000), (3, 90_001))
    assert stream.run(steps=60)[0] == (1, "ctr", 1, None)
    assert stream.late == []


def test_an_absent_broker_stops_event_time_and_gives_what_was_held_back_the_time_to_arrive():
    stream = Stream(idle_s=5, partitions=1)
    stream.show(0, (1, 0))
    stream.run(steps=40)  # clicks are idle
    stream.topics.add(Partition("ads", 0), PAUSE(50))
    stream.show(0, (2, 90_000), (3, 90_001))
    assert stream.run(steps=200) == []
    assert stream.intake.note == "the broker does not answer; event time stands still"
    stream.run(steps=60)  # it is back, for less than idle_s
    assert stream.intake.note is None
    stream.click(0, (1, 300))  # the producer of clicks is the last to notice
    assert stream.run(steps=60)[0] == (1, "ctr", 1, None)
    assert stream.late == []


def test_after_an_outage_that_no_read_met_what_was_held_back_has_the_time_to_arrive():
    stream = Stream(idle_s=5, partitions=1)
    stream.show(0, (1, 0))
    stream.run(steps=40)  # clicks are idle
    stream.intake.await_all()
    stream.show(0, (2, 90_000), (3, 90_001))
    assert stream.run(steps=20) == []  # for less than idle_s
    stream.click(0, (1, 300))
    assert stream.run(steps=60)[0] == (1, "ctr", 1, None)
    assert stream.late == []


class SlowAnswer(ScriptedSource):
    """Its broker takes two seconds for its first answer."""

    answered = False

    def at_end(self, partition: Partition, max_age_s: float = 0.25) -> bool:
        self.topics.clock.advance(0 if self.answered else 2)
        self.answered = True
        return super().at_end(partition, max_age_s)


def test_a_partition_is_awaited_for_idle_s_from_the_answer_not_from_the_question():
    stream = Stream(idle_s=1.0, partitions=1)
    stream.intake = stream.open(None, SlowAnswer(stream.topics))
    stream.show(0, (1, 0), (2, 5000), (3, 9000))
    assert stream.run(steps=3) == []
    stream.click(0, (1, 500))
    assert (1, "ctr", 1, None) in stream.run()


class HeldClicks(ScriptedSource):
    """Its broker tells where clicks end, and gives none yet."""

    held = True

    def next_batch(self, *args: Any, only: Collection[Partition], **kwargs: Any) -> list[RawMessage] | None:
        given = {partition for partition in only if partition.topic != "clicks" or not self.held}
        return super().next_batch(*args, only=given, **kwargs)


@pytest.mark.parametrize("idle_s", [0.9, 1.1])
@pytest.mark.parametrize("steps", range(2, 10))
def test_a_partition_becomes_idle_by_an_answer_of_after_the_rows_that_wait_for_it(steps, idle_s):
    """Simulated seed 2003782."""
    stream = Stream(idle_s=idle_s, partitions=1)
    source = HeldClicks(stream.topics)
    stream.intake = stream.open(None, source)
    stream.show(0, (1, 0))
    stream.run(steps=steps)
    stream.click(0, (1, 900))
    stream.show(0, (2, 90_000))
    assert stream.run(steps=40) == []
    source.held = False
    assert stream.run(steps=40)[0] == (1, "ctr", 1, None)
    assert stream.late == []


def test_a_broker_that_stays_away_is_given_up_with_event_time_where_it_was():
    stream = Stream(idle_s=5, partitions=1)
    stream.show(0, (1, 0))
    stream.click(0, (1, 300))
    stream.topics.add(Partition("ads", 0), PAUSE(1e9))
    with pytest.raises(BrokerAway):
        stream.run(steps=1000)
    assert stream.settled == []


def test_a_producer_whose_clock_jumps_ahead_by_a_day_and_comes_back_closes_nobodys_window():
    stream = Stream(partitions=1, max_future_skew_s=60)
    stream.show(0, (1, 0))
    stream.show(0, (2, 10 + DAY_MS), (3, 20 + DAY_MS), recorded_ms=20)  # the broker stamps what it takes
    stream.click(0, (1, 900))
    stream.show(0, (4, 30), (5, 5000))
    stream.click(0, (4, 1000), (5, 5000))
    stream.end()
    assert stream.run() == [(1, "ctr", 1, None), (4, "ctr", 1, None), (5, "ctr", 1, None)] + [
        (identity, "cvr", None, 0) for identity in (1, 4, 5)
    ]
    assert stream.dead == ["in_the_future"] * 2
    assert stream.late == []


# --- what comes twice, late or in disorder -------------------------------------------------------------------------


def test_feedback_out_of_order_counts_while_its_window_is_open():
    stream = Stream(partitions=1)
    stream.show(0, (1, 0), (2, 200), (3, 700))
    stream.click(0, (3, 900), (1, 100), (2, 300))
    stream.end()
    assert [row for row in stream.run() if row[1] == "ctr"] == [(n, "ctr", 1, None) for n in (1, 2, 3)]
    assert stream.late == []


def test_feedback_ahead_of_its_impression_counts():
    stream = Stream(partitions=1)
    stream.click(0, (1, 5000))
    stream.show(0, (1, 5000))
    stream.end()
    assert (1, "ctr", 1, None) in stream.run()


def test_duplicates_of_feedback_and_of_impressions_change_nothing_and_are_counted():
    stream = Stream()
    stream.show(0, (1, 0), (1, 0), (2, 100))
    stream.show(1, (1, 50))  # a second copy in another partition
    stream.click(0, (1, 500), (1, 500))
    stream.click(1, (1, 600))
    stream.end()
    clicks = [row for row in stream.run() if row[1] == "ctr"]
    assert clicks == [(1, "ctr", 1, None), (2, "ctr", 0, None)]
    counts = stream.settlement.counters()
    assert (counts["duplicates_dropped"], counts["duplicate_feedback"], counts["matched_feedback"]) == (2, 2, 1)


def test_late_feedback_goes_to_its_own_table_and_is_counted():
    stream = Stream(partitions=1)
    stream.show(0, (1, 0), (2, 5000), (3, 5001))
    stream.click(0, (2, 5000), (1, 900))  # in time when it happened; it came when the window was over
    stream.end()
    assert stream.run()[0] == (1, "ctr", 0, None)
    (row,) = stream.late
    assert (row["impression_id"], row["task"], row["reason"], row["event_time_ms"]) == (
        1,
        "ctr",
        "after_settlement",
        900,
    )
    assert stream.settlement.counters()["late_feedback"] == 1


# --- tasks ---------------------------------------------------------------------------------------------------------


def test_tasks_of_equal_window_settle_together_in_one_row():
    tasks = [{"name": "ctr", "window_s": 1}, {"name": "like", "window_s": 1}, {"name": "cvr", "window_s": 10}]
    stream = Stream(tasks, partitions=1)
    stream.show(0, (1, 0), (2, 0))
    stream.click(0, (1, 100))
    stream.click(0, (2, 200), task="like")
    stream.end()
    assert stream.run() == [
        (1, "ctr", 1, 0, None),
        (2, "ctr", 0, 1, None),
        (1, "cvr", None, None, 0),
        (2, "cvr", None, None, 0),
    ]


def test_a_longer_window_emits_its_own_labels_later_and_holds_nothing_up():
    stream = Stream(partitions=1)
    stream.show(0, (1, 0), (2, 2000), (3, 2001))
    stream.click(0, (1, 500), (2, 2001))
    assert stream.run() == [(1, "ctr", 1, None)]  # its sale may come for eight seconds more
    stream.click(0, (1, 9000), task="cvr")
    stream.show(0, (4, 10_001), (5, 10_002))
    stream.click(0, (4, 10_002))
    assert (1, "cvr", None, 1) in stream.run()


def test_a_conditional_task_is_asked_only_where_its_condition_holds():
    stream = Stream(partitions=1)
    stream.show(0, (1, 0), (2, 0))
    stream.click(0, (1, 500))
    stream.click(0, (1, 5000), (2, 5000), task="cvr")  # 2 was sold, and never clicked
    stream.end()
    assert stream.run() == [(1, "ctr", 1, None), (2, "ctr", 0, None), (1, "cvr", None, 1)]
    assert stream.settlement.counters()["not_applicable"] == {"ctr": 0, "cvr": 1}


# --- a process that dies -------------------------------------------------------------------------------------------


def test_a_process_that_dies_anywhere_goes_on_from_its_last_saved_state_with_the_same_rows(tmp_path):
    def feed(stream: Stream, *, deadly: bool) -> None:
        for number in range(12):
            stream.show(number % 2, (number, 400 * number))
            stream.click(number % 2, (number, 400 * number + 300))
            if deadly and number % 3 == 2:
                stream.topics.add(Partition("ads", number % 2), ABORT)
                stream.topics.add(Partition("clicks", 1 - number % 2), ABORT)
        stream.end()

    undisturbed = Stream()
    feed(undisturbed, deadly=False)
    expected = undisturbed.run(steps=200)
    assert len(expected) == 24

    stream = Stream()
    feed(stream, deadly=True)
    deaths, commits, saved = 0, 0, "0"
    stream.settlement.save(tmp_path, saved, extra={"position": stream.intake.position(), "rows": 0})
    while not stream.ended:
        try:
            stream.run(steps=1)
            commits += 1
            extra = {"position": stream.intake.position(), "rows": len(stream.settled)}
            if commits % 2 and not stream.ended:
                stream.settlement.save(tmp_path, str(commits), extra=extra)
                saved = str(commits)
        except Aborted:
            deaths += 1
            stream.settlement = Settlement(stream.schema, stream.config)
            extra = stream.settlement.load(tmp_path, saved)
            del stream.settled[extra["rows"] :]
            stream.intake = stream.open(extra["position"])
    assert deaths == 8
    assert stream.settled == expected
