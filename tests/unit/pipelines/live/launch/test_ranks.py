"""The ranks of one worker as one thing to poll, over processes that answer when the test has them answer."""

from __future__ import annotations

import pickle

import pytest

from pipelines.live.launch.ranks import GRACE_S, RankHandle
from pipelines.live.rules.causes import Died, Gone, Orphaned
from pipelines.live.rules.restarts import Cause
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders
from streaming.errors import RankLost, StreamingError


class Answered:
    """Not there until somebody puts it."""

    def __init__(self):
        self.value = None

    def here(self):
        return self.value is not None

    def get(self, wait_s=None):
        if self.value is None:
            raise TimeoutError("no answer")
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Scripted:
    def __init__(self):
        self.asked = []
        self.killed = 0

    def ask(self, what, *values):
        answer = Answered()
        self.asked.append((what, values, answer))
        return answer

    def let_go(self):
        self.kill()

    def kill(self):
        self.killed += 1

    def answer(self, value):
        self.asked[-1][2].value = value

    @property
    def last(self):
        return self.asked[-1][:2]


class Group:
    """A handle over scripted processes, and the time."""

    def __init__(self, ranks, unplaced=lambda waited_s: None):
        self.now, self.given_back = 100.0, 0
        self.processes = [Scripted() for _ in range(ranks)]
        self.handle = RankHandle(
            "teacher", self.processes, unplaced=unplaced, give_back=self._give_back, clock=lambda: self.now
        )

    def _give_back(self):
        self.given_back += 1

    def poll(self, orders=Orders()):
        return self.handle.poll(orders)

    def answer(self, *values):
        for process, value in zip(self.processes, values, strict=True):
            process.answer(value)

    def opened(self, *nodes):
        self.answer(*nodes)
        self.poll()
        if len(nodes) > 1:
            self.processes[0].answer(4711)
            self.poll()
        self.answer(*["open"] * len(nodes))
        self.poll()
        return self


def said(rank, rows=10, own=5, **fields):
    return Report(
        "teacher", "teacher", pid=1000 + rank, rows=rows, own_rows=own, rss_bytes=7, peak_rss_bytes=9, **fields
    )


def test_ranks_are_placed_meet_at_rank_0_and_are_opened_together():
    group = Group(3)
    assert [p.last for p in group.processes] == [("place", ())] * 3
    group.processes[2].answer("here")
    assert group.poll() is None
    assert group.handle.node is None
    group.answer("here", "here", "here")
    group.poll()
    assert group.processes[0].last == ("port", ())
    assert len(group.processes[1].asked) == 1  # nobody else is asked: they are told
    group.processes[0].answer(4711)
    group.poll()
    word = group.processes[0].asked[-1][1][0].word
    assert len(word) == 32
    opened = [("open", (Rendezvous(rank, 3, "127.0.0.1", 4711, word),)) for rank in range(3)]
    assert [p.last for p in group.processes] == opened


def test_on_several_nodes_they_meet_at_the_address_of_rank_0():
    group = Group(2).opened("10.0.0.5", "10.0.0.6")
    assert [p.asked[-2][1][0].address for p in group.processes] == ["10.0.0.5", "10.0.0.5"]
    assert group.handle.node == "10.0.0.5"


def test_one_rank_meets_nobody():
    group = Group(1).opened("here")
    assert [what for what, *_ in group.processes[0].asked] == ["place", "open", "advance"]
    assert group.processes[0].asked[1][1] == (Rendezvous(),)
    group.answer(said(0))
    assert group.poll() == said(0)


def test_a_round_ends_when_all_have_answered_and_the_next_begins_in_all_with_the_same_orders():
    group = Group(2).opened("here", "here")
    group.processes[0].answer(said(0, rows=30, own=14))
    assert group.poll(Orders(end_seq=7)) is None
    assert group.processes[0].asked[-1][2].here()  # it is not sent ahead
    group.processes[1].answer(said(1, rows=30, own=16))
    report = group.poll(Orders(end_seq=9))
    assert (report.rows, report.pid, report.rss_bytes, report.peak_rss_bytes) == (30, 1000, 14, 18)
    assert [(r.rank, r.pid, r.node, r.rows) for r in report.ranks] == [(0, 1000, "here", 14), (1, 1001, "here", 16)]
    assert [p.last[1][1] for p in group.processes] == [Orders(end_seq=9)] * 2


def test_a_worker_that_is_done_is_asked_for_nothing_more():
    group = Group(2).opened("here", "here")
    group.answer(said(0, done=True), said(1, done=True))
    assert group.poll().done
    assert [p.last[0] for p in group.processes] == ["advance", "advance"]
    assert all(p.asked[-1][2].here() for p in group.processes)
    group.poll()  # asked all the same, it says so again
    group.answer(said(0, done=True), said(1, done=True))
    assert group.poll().done


def test_the_death_of_one_is_the_death_of_all_and_the_one_that_came_first_is_told():
    group = Group(3).opened("here", "here", "here")
    group.processes[0].answer(Died("RuntimeError: Connection closed by peer"))
    assert group.poll() is None  # the one it follows from may be told in a moment
    assert [p.killed for p in group.processes] == [0, 0, 0]
    group.processes[2].answer(Gone("The actor died"))
    group.now += GRACE_S
    with pytest.raises(Died, match=r"^rank 2 of 3: The actor died; rank 1 did not answer$"):
        group.poll()
    assert [p.killed for p in group.processes] == [1, 1, 1]
    assert group.given_back == 1


def test_a_rank_that_stands_still_is_named_by_those_that_waited_for_it():
    group = Group(2).opened("here", "here")
    group.processes[0].answer(Died("RuntimeError: Timed out waiting 30000ms"))
    group.poll()
    group.now += GRACE_S
    with pytest.raises(Died, match="rank 0 of 2: RuntimeError: Timed out waiting 30000ms; rank 1 did not answer"):
        group.poll()


def test_a_cause_with_a_name_is_told_before_those_that_follow_from_it():
    group = Group(2).opened("here", "here")
    group.answer(Gone("the actor died"), Died("OSError: no space left", Cause.DISK_FULL))
    with pytest.raises(Died, match="rank 1 of 2: OSError: no space left") as caught:
        group.poll()
    assert caught.value.cause is Cause.DISK_FULL


def test_ranks_without_a_place_give_up_together():
    group = Group(2, unplaced=lambda waited_s: "no place" if waited_s > 60 else None)
    group.processes[0].answer("here")
    assert group.poll() is None
    group.now += 61
    with pytest.raises(Died, match="no place") as caught:
        group.poll()
    assert caught.value.cause is Cause.PERMANENT
    assert [p.killed for p in group.processes] == [1, 1]


def test_all_are_asked_to_close_before_one_is_waited_for():
    group = Group(2).opened("here", "here")
    group.handle.ask_to_close()
    assert [p.last for p in group.processes] == [("close", ()), ("close", ())]
    group.answer(said(0), said(1))
    report = group.handle.close(5.0)
    assert len(report.ranks) == 2
    assert [p.killed for p in group.processes] == [1, 1]
    assert group.given_back == 1


def test_what_is_not_open_yet_is_not_waited_for():
    group = Group(2)
    group.handle.ask_to_close()
    assert group.handle.close(5.0) is None
    assert [p.last[0] for p in group.processes] == ["place", "place"]
    assert [p.killed for p in group.processes] == [1, 1]


def test_of_two_deaths_the_one_that_says_that_another_rank_is_lost_is_not_told():
    group = Group(2).opened("here", "here")
    lost = Died.of(RankLost("rank 1 has left, or is lost"))
    assert isinstance(pickle.loads(pickle.dumps(lost)), Orphaned)
    group.answer(lost, Died.of(StreamingError("the broker refused: do this and that")))
    with pytest.raises(Died, match="rank 1 of 2: StreamingError: the broker refused: do this and that"):
        group.poll()
