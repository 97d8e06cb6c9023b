"""The short run of `make test`, the long one of `make soak`, and that the simulation itself can be trusted."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.simulation.campaign import campaign, words_of
from tests.simulation.drawing import draw
from tests.simulation.history import (
    ADS,
    EVENTS,
    At,
    Away,
    Delete,
    Event,
    Grow,
    History,
    Kill,
    Message,
    Row,
    Run,
    Settings,
    Truncate,
    Write,
)
from tests.simulation.judge import verdict
from tests.simulation.live import BASE_MS
from tests.simulation.oracle import Model
from tests.simulation.outcome import Outcome
from tests.simulation.planted import all_planted
from tests.simulation.promises import sent_rows
from tests.simulation.shrink import shrunk
from tests.simulation.world import World
from tests.support.places import ROOT

SHORT, LONG = 200, 100_000


def test_no_row_is_lost_repeated_or_mislabelled_in_a_short_run():
    failures, tally = campaign(first=1_000_000, histories=SHORT, jobs=1, say=lambda words: None)
    assert failures == []
    assert tally.rows > 10 * SHORT


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_no_row_is_lost_repeated_or_mislabelled_in_a_long_run():
    command = ["-m", "tests.simulation", "--histories", str(LONG), "--seed", "2000000"]
    assert subprocess.run([sys.executable, *command], cwd=ROOT).returncode == 0


def shown(identity: int, time: int) -> Write:
    return Write(ADS, 0, (Message((Row(identity, time, "feed", 7),)),))


def clicked(identity: int, time: int) -> Write:
    return Write(EVENTS, 0, (Message((Row(identity, time, "ctr"),)),))


def test_a_history_of_three_rows_comes_out_as_one_would_say_it_in_words():
    events = (shown(1, 100), clicked(1, 103), Run(4), Kill(after=30, power=True), shown(2, 120), Run(8))
    outcome = World(History(0, 0, Settings(block_rows=1), events)).play()
    assert [(row["impression_id"], row["label_ctr"], row["lake_seq"]) for row in outcome.lake] == [(1, 1, 0), (2, 0, 1)]
    assert outcome.counts is not None
    assert outcome.counts["offsets"]["impression"] == {
        "offsets": 3, "messages": 2, "rows": 2, "without_rows": 0, "end_markers": 1, "transaction_records": 0,
        "rows_before": 0,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(40, 52))
def test_a_seed_plays_the_same_history_every_time(seed):
    history = draw(seed)
    assert draw(seed) == history
    worlds = [World(history, trace=True) for _ in range(2)]
    outcomes = [world.play() for world in worlds]
    assert [o._replace(logs={}) for o in outcomes[:1]] == [o._replace(logs={}) for o in outcomes[1:]]
    assert outcomes[0].points == outcomes[1].points


@pytest.mark.parametrize("seed", [2_000_965, 2_002_627, 2_003_782])
def test_a_history_that_failed_is_right_now(seed):
    """2000965: a process stood still in its start, and made the further ranks of one that had started meanwhile.
    2002627: an answer of the broker of the same instant, and of before a click, said that the click was not there.
    2003782: a partition became idle by an answer of before the click that lay in it, and the row that waited passed."""
    assert words_of(draw(seed))[0] is None


def truncated(*then: Event) -> Outcome:
    """Five impressions are read, two of them are lost to an unclean election, and four others follow."""
    first = tuple(shown(n, 100 + 20 * n) for n in range(5))
    later = tuple(shown(n, 100 + 20 * n) for n in range(5, 9))
    events = (*first, clicked(0, 101), clicked(0, 300), Run(30), Truncate(ADS, 0, 2), *later, *then, Run(20))
    return World(History(0, 0, Settings(block_rows=1), events)).play()


def test_messages_that_were_read_and_then_replaced_end_the_run():
    outcome = truncated()
    assert outcome.replaced
    assert "lost messages that were already read" in str(outcome.gave_up)


@pytest.mark.parametrize("power", [False, True])
def test_messages_that_were_committed_and_then_replaced_end_the_run_after_a_restart_too(power):
    outcome = truncated(Kill(after=1, power=power))
    assert outcome.replaced
    assert "lost messages that were already read" in str(outcome.gave_up)


def test_messages_that_retention_deletes_while_no_machine_runs_are_lost_to_a_run_at_a_store():
    events = (*(shown(n, 100 + 20 * n) for n in range(5)), Run(30), Kill(after=1, power=True), Run(1))
    outcome = World(History(0, 0, Settings(stored=True, block_rows=1), (*events, Delete(ADS, 0, 1.0), Run(20)))).play()
    assert outcome.lost
    assert "retention has deleted" in str(outcome.gave_up)


def test_the_judge_sees_a_wrong_label_a_lost_row_and_one_that_came_twice():
    history = History(0, 0, Settings(), (shown(1, 100), clicked(1, 103), shown(2, 104), shown(3, 130)))
    outcome = World(history).play()
    assert verdict(history.settings, outcome) is None
    rows = outcome.lake
    for wrong, words in (
        ([{**rows[0], "label_ctr": 0}, *rows[1:]], "label_ctr"),
        (rows[:-1], "the lake has 2 rows"),
        ([*rows, rows[-1]], "the lake has 4 rows"),
        ([rows[1], rows[0], rows[2]], "row 0 of the lake"),
    ):
        assert words in str(verdict(history.settings, outcome._replace(lake=wrong)))


FREE = Settings(pace="free", tasks=(("ctr", 500, None),), horizon=100_000, idle_s=0.3)


def at(seconds: float, topic: str, what: str, event_ms: int, identity: int = 1) -> tuple[Event, Event]:
    row = Row(identity, BASE_MS + event_ms, what, 7)
    return At(seconds), Write(topic, 0, (Message((row,), BASE_MS + event_ms),))


def test_the_judge_of_free_pace_sees_a_label_whose_feedback_came_in_time_and_a_row_that_is_lost():
    events = (*at(0, ADS, "feed", 0), *at(0.2, EVENTS, "ctr", 200), *at(3, ADS, "feed", 3000, 2), At(5))
    outcome = World(History(0, 0, FREE, events)).play()
    assert verdict(FREE, outcome) is None
    first, second = outcome.lake
    assert (first["label_ctr"], second["label_ctr"]) == (1, 0)
    mislabelled = verdict(FREE, outcome._replace(lake=[first | {"label_ctr": 0}, second]))
    assert "label_ctr of row 0" in str(mislabelled)
    assert "came in time" in str(mislabelled)
    assert "impression 2 is not in the lake" in str(verdict(FREE, outcome._replace(lake=[first])))


@pytest.mark.parametrize(("seconds", "back"), [(0.5, 13), (6, 13), (12, 15)])
def test_outages_that_overlap_are_one_and_producers_hold_back_until_it_ends(seconds, back):
    """Seed 2000219: the shorter one ended the longer one, of which producers and judge kept the end. So the click came
    seconds after the row that closed its window, and seemed to be in time."""
    first = (*at(0, ADS, "feed", 0), At(1), Away(12), *at(2, EVENTS, "ctr", 300), At(3), Away(seconds))
    history = History(0, 0, replace(FREE, idle_s=1.0), (*first, *at(5, ADS, "feed", 5000, 2), At(20)))
    outcome = World(history).play()
    assert verdict(history.settings, outcome) is None
    assert [[round(s) for s in outage] for outage in outcome.outages] == [[1, back]]
    held = [sent for sent in sent_rows(outcome.logs, history.settings) if sent.row.time > BASE_MS]
    assert [(sent.row.id, back <= sent.at_s < back + 1) for sent in held] == [(2, True), (1, True)]
    assert {row["impression_id"]: row["label_ctr"] for row in outcome.lake} == {1: 1, 2: 0}


def test_an_outage_inside_a_publication_gives_what_was_held_back_its_time():
    """No reader meets it: it begins at any point of the steps that settle a row and publish it."""
    settings = replace(FREE, idle_s=1.0, block_rows=1)
    told = (*at(0, ADS, "feed", 0), *at(3, ADS, "feed", 3000, 2), at(3, ADS, "feed", 3001, 3)[1])
    held = (*at(8.2, ADS, "feed", 9000, 4), at(8.2, ADS, "feed", 9001, 5)[1], *at(8.6, EVENTS, "ctr", 3300, 2))
    for points in range(1, 40):
        outcome = World(History(0, 0, settings, (*told, Away(5, after=points), *held, At(30)))).play()
        assert verdict(settings, outcome) is None, points
        assert {row["impression_id"]: row["label_ctr"] for row in outcome.lake} == {1: 0, 2: 1, 3: 0, 4: 0, 5: 0}


def test_a_label_needs_feedback_inside_its_window():
    model = Model(Settings())
    outcome = World(History(0, 0, Settings(), (shown(1, 100), clicked(1, 106), shown(2, 200)))).play()
    expected = model.settle(outcome.logs)
    assert [model.labels(impression, group) for impression, group in expected.lake] == [{"ctr": 0}, {"ctr": 0}]
    assert [(reason, by) for _, reason, by, _, _ in expected.late] == [("after_settlement", 1)]


def test_rows_of_an_added_partition_come_after_those_that_were_merged_before():
    """The click of the second partition is late: its impression's window had closed when it was taken in."""
    late = replace(clicked(1, 102), partition=1)
    settings = Settings(block_rows=1, horizon=50)
    events = (shown(1, 100), shown(2, 119), shown(3, 130), clicked(9, 140), Run(40), Grow(EVENTS), late, Run(40))
    outcome = World(History(0, 0, settings, events)).play()
    assert verdict(settings, outcome) is None
    assert outcome.taken_in is not None
    assert outcome.taken_in.watermark > 105
    assert [(row["source_partition"], row["event_time_ms"]) for row in outcome.late] == [(1, 102)]
    assert "late feedback" in str(verdict(settings, outcome._replace(late=[])))


def test_a_failing_history_is_made_small():
    failing = draw(7)
    small = shrunk(failing, lambda history: sum(isinstance(e, Write) and e.topic == ADS for e in history.events) >= 2)
    assert len(small.events) == 2
    assert words_of(replace(small, seed=0))[0] is None


@pytest.mark.parametrize("planted", all_planted(), ids=lambda planted: planted.name)
def test_a_planted_fault_finds_its_place(planted):
    assert (ROOT / planted.file).read_text().count(planted.old) == 1
