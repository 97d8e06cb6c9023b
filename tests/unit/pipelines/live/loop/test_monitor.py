"""What a run's status becomes from look to look, and the alarms that follow."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipelines.core.config.settings import parse
from pipelines.live.loop.monitor import AlarmMonitor, Idleness
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState, WorkerState
from pipelines.live.status.counts import counts_of
from pipelines.live.status.status import EarlierAttempts, RunStatus, TrackingHealth, WorkerStatus
from pipelines.live.training.judged_windows import JudgedWindow
from pipelines.live.workers.report import Report
from tests.support.pipelines.raw_configs import changed
from tests.support.streams.scripted import HandClock


class Seen:
    """A live run with an augmentation and a student, and who looks at it."""

    def __init__(self, attempts: int = 1, **limits: float) -> None:
        raw = changed("alarms", {"stalled_s": 100.0, "unread_s": 60.0, "recent_s": 300.0} | limits)
        config = parse(raw | {"source": None, "pace": {"mode": "free"}})
        self.topics = (config.kafka.impressions.topic, config.kafka.feedback.topic)
        self.clock = HandClock()
        self.monitor = AlarmMonitor(config, self.clock, lambda: datetime(2026, 11, 23, 12, tzinfo=UTC))
        self.status = RunStatus("seen", RunState.RUNNING, earlier=EarlierAttempts(attempts=attempts - 1))
        self.augmentation = self.add("augmentation", Kind.AUGMENTATION)
        self.student = self.add("student-feed", Kind.STUDENT)
        self.counts(0)

    def add(self, name: str, kind: Kind) -> WorkerStatus:
        worker = WorkerStatus(name, kind, WorkerState.RUNNING, report=Report(name, str(kind), lake_seq=-1, lag_rows=0))
        self.status.workers[name] = worker
        return worker

    def counts(self, read: int, feedback: int = 0, joined: int = 0, **reasons: int) -> None:
        """`feedback`: all that was read, of which `joined` met its impression."""
        unmatched = {"unknown_impression": feedback - joined}
        self.status.counts = counts_of(
            {
                "impressions_read": read,
                "settled": {},
                "not_applicable": {},
                "pending": {},
                "unknown_labels": {},
                "dead_letters": {"impression": reasons, "feedback": unmatched},
                "duplicates_dropped": 0,
                "lake_rows": 0,
                "verticals": {},
                "teacher_inferences": 0,
                "feedback_read": feedback,
                "matched_feedback": joined,
                "late_feedback": 0,
                "duplicate_feedback": 0,
                "waiting_feedback": 0,
            }
        )

    def after(self, seconds: float) -> list[str]:
        """The states that are told when so much time has passed, in one look."""
        self.clock.advance(seconds)
        self.status.raise_alarms(self.monitor.check(self.status))
        return [alarm.state for alarm in self.status.alarms]


def test_a_student_that_stands_still_before_rows_is_stalled_until_it_moves():
    seen = Seen(unread_s=1e6)
    report = seen.student.report
    report.lag_rows = 40
    assert seen.after(0) == []
    seen.augmentation.report.rows += 5  # the run moves
    assert seen.after(99) == []
    seen.augmentation.report.rows += 5
    assert seen.after(1) == ["stalled"]
    [alarm] = seen.status.alarms
    assert (alarm.severity, alarm.workers, alarm.for_s) == ("alarm", ("student-feed",), 100.0)
    assert alarm.since == "2026-11-23T11:58:20+00:00"
    assert (seen.student.alarms, seen.augmentation.alarms) == (["stalled"], [])
    assert "stalled: student-feed makes no progress, and 40 rows wait for it" in seen.status.trouble
    report.lake_seq += 1
    assert seen.after(1) == []
    assert seen.status.trouble is None


def test_a_worker_of_a_stalled_run_has_the_alarm_once():
    seen = Seen(unread_s=1e6)
    seen.student.report.lag_rows = seen.augmentation.report.lag_rows = 40
    assert seen.after(0) == []
    assert seen.after(1000) == ["stalled"] * 3  # one of the run, one of each worker
    assert (seen.student.alarms, seen.augmentation.alarms) == (["stalled"], ["stalled"])


def test_an_export_that_was_refused_is_an_alarm_until_one_is_good():
    seen = Seen(unread_s=1e6)
    assert seen.after(0) == []
    seen.student.report.alarm = "version v00000064 was refused: the export differs from the student"
    assert seen.after(1) == ["export refused"]
    assert seen.after(9) == ["export refused"]
    [alarm] = seen.status.alarms
    assert (alarm.severity, alarm.workers, alarm.for_s) == ("alarm", ("student-feed",), 9.0)
    assert "export refused: student-feed: version v00000064 was refused" in seen.status.trouble
    seen.student.report.alarm = None
    assert seen.after(1) == []


def test_a_restart_that_begins_again_is_no_progress_and_what_it_learns_again_is():
    seen = Seen(unread_s=1e6)
    seen.student.report.lag_rows = 40
    seen.student.report.rows = 500
    seen.after(0)
    seen.student.report.rows = 0
    assert seen.after(100) == ["stalled"]
    seen.student.report.rows = 10
    assert seen.after(1) == []


def test_a_lag_is_unknown_while_no_one_answers_and_is_shown_as_no_number():
    seen = Seen(unread_s=1e6)
    seen.after(0)
    seen.augmentation.report.lag_rows = None
    assert seen.after(0) == []  # a moment is no alarm, and no number either
    shown = seen.augmentation.as_json()
    assert (shown["lag_rows"], shown["lag_known"]) == (None, False)
    assert seen.after(5) == ["lag unknown"]
    assert "the broker has not answered (since 11:59:55 UTC, 5 s)" in seen.status.trouble
    seen.augmentation.report.lag_rows = 0
    assert seen.after(1) == []
    assert seen.augmentation.as_json()["lag_rows"] == 0


@pytest.mark.parametrize(
    ("state", "silent_s", "why"),
    [
        (WorkerState.RUNNING, 31.0, "it has not reported"),
        (WorkerState.RESTARTING, 0.0, "it is restarting"),
        (WorkerState.STARTING, 0.0, "it is starting"),
    ],
)
def test_the_last_lag_of_a_worker_that_does_not_answer_is_not_shown(state, silent_s, why):
    seen = Seen(unread_s=1e6)
    seen.after(0)
    for worker in (seen.augmentation, seen.student):
        worker.state, worker.silent_s = state, silent_s
        assert worker.as_json()["lag_rows"] is None
    seen.after(0)
    assert seen.after(6) == ["lag unknown"]  # of the student it is known: the lake says
    assert f"cannot be known: {why} (since" in seen.status.alarms[0].words


@pytest.mark.parametrize("state", [WorkerState.DONE, WorkerState.FAILED, WorkerState.RETIRED])
def test_of_a_worker_at_its_end_nothing_is_asked(state):
    seen = Seen(unread_s=1e6)
    seen.student.report.lag_rows = 40
    seen.after(0)
    seen.student.state = state
    assert seen.after(1000) == []


def test_a_student_that_hangs_is_stalled_by_what_the_lake_holds_meanwhile():
    seen = Seen(unread_s=1e6)
    seen.after(0)
    seen.student.silent_s = 100.0
    seen.status.lake.last_lake_seq = 699
    seen.augmentation.report.rows += 1
    assert seen.after(100) == ["stalled"]
    assert "700 rows wait for it" in seen.status.alarms[0].words


def test_refused_rows_count_in_a_window_and_of_a_new_run_from_its_begin():
    seen = Seen()
    seen.counts(100, **{"null:bid": 90, "bad_vertical": 10})
    assert seen.after(3) == ["mass dead letters"]
    assert "100 of 100 impressions were refused in the last 3 s, most for `null:bid` (90)" in seen.status.trouble
    for read in range(200, 4000, 100):  # ten seconds each: all well from now on
        seen.counts(read, feedback=read, **{"null:bid": 90, "bad_vertical": 10})
        seen.after(10)
    assert seen.status.alarms == []
    seen.counts(5000, feedback=5000, **{"null:bid": 90, "bad_vertical": 1900})
    assert seen.after(10) == ["mass dead letters"]
    assert "1,890 of 4,000 impressions were refused in the last 300 s" in seen.status.alarms[0].words
    assert "most for `bad_vertical` (1,890)" in seen.status.alarms[0].words


def test_of_a_resumed_run_what_was_refused_before_is_past_and_unmatched_feedback_is_not_refused():
    seen = Seen(attempts=2)
    seen.counts(100, feedback=100, **{"null:bid": 100})
    assert seen.after(3) == []
    seen.counts(60, **{"null:bid": 60})  # its process died before a commit
    assert seen.after(3) == []
    seen.counts(120, **{"null:bid": 120})
    assert seen.after(3) == ["mass dead letters"]


def test_topics_that_bring_nothing_are_noted_with_the_time_and_are_no_trouble():
    seen = Seen()
    seen.counts(10, feedback=5)
    assert seen.after(0) == []
    seen.counts(20, feedback=5)
    seen.augmentation.report.rows += 10
    assert seen.after(60) == ["nothing read"]
    assert seen.status.notes == [f"nothing read: topic `{seen.topics[1]}` (since 11:59:00 UTC, 60 s)"]
    assert seen.after(60) == ["nothing read"]
    assert seen.status.notes[0].startswith(f"nothing read: topics `{seen.topics[0]}` and `{seen.topics[1]}` (since")
    assert seen.status.trouble is None
    assert seen.status.as_json()["alarms"][0]["severity"] == "note"
    seen.status.state = RunState.DRAINING
    assert seen.after(60) == []


def test_a_run_is_idle_once_nothing_came_while_everyone_was_at_work_and_the_broker_answered():
    seen = Seen()
    idleness = Idleness(60.0, seen.clock)

    def idle_after(seconds: float) -> bool:
        seen.clock.advance(seconds)
        return idleness.check(seen.status)

    assert not idle_after(0)
    assert not idle_after(59)
    assert idle_after(1)
    seen.student.report.rows += 1
    assert not idle_after(0)
    assert idle_after(60)
    seen.augmentation.report.lag_rows = None  # the broker does not answer
    assert not idle_after(100)
    seen.augmentation.report.lag_rows = 0
    assert not idle_after(0)
    seen.student.state = WorkerState.RESTARTING
    assert not idle_after(60)
    seen.student.state = WorkerState.RUNNING
    assert not idle_after(59)
    assert idle_after(1)


def test_a_hot_partition_is_noted_once_it_has_stayed_hot():
    seen = Seen()
    hot, even = {"ads/0": 90_000, "ads/1": 10}, {"ads/0": 10, "ads/1": 10}
    for lag, seconds, noted in ((hot, 1, False), (hot, 29, False), (even, 1, False), (hot, 1, False), (hot, 30, True)):
        seen.augmentation.report = replace(seen.augmentation.report, lag=lag)
        assert any("hot partition" in words for words in seen.after(seconds)) is noted


# --- each alarm: broken, raised, resolved ------------------------------------------------------------------------


def window(**changes) -> JudgedWindow:
    ne, calibration = {"student": 0.8, "no_teacher": 0.81}, {"student": 1.0, "no_teacher": 1.0}
    good = JudgedWindow(2, 20_000, 500, 0.025, 0.025, ne, calibration, 0.01)
    return replace(good, **changes)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"calibration": {"student": 2.0}}, "calibration drift"),
        ({"ne": {"student": 0.9, "no_teacher": 0.81}}, "NE too high"),
        ({"rate": 0.1, "positives": 2000}, "label rate jump"),
    ],
)
def test_figures_of_a_bad_window_are_told_until_the_next_one_is_good(changes, state):
    seen = Seen(unread_s=1e6)
    report = seen.student.report
    report.windows = {"ctr": window()}
    assert seen.after(1) == []
    report.windows = {"ctr": window(number=3, **changes)}
    assert seen.after(1) == [state]
    assert seen.after(99) == [state]
    [alarm] = seen.status.alarms
    assert (alarm.about, alarm.workers, alarm.for_s) == ("student-feed ctr", ("student-feed",), 99.0)
    assert alarm.remedy == f"docs/operations/alarms.md#{state.lower().replace(' ', '-')}"
    report.windows = {"ctr": window(number=4)}
    assert seen.after(1) == []


def test_a_lag_that_only_grows_is_told_until_it_falls():
    seen = Seen(unread_s=1e6, stalled_s=1e6)
    report, raised_at = seen.student.report, None
    for look in range(120):
        report.lag_rows = 1_000 + 500 * look
        if seen.after(5) and raised_at is None:
            raised_at = 5 * (look + 1)
    assert seen.status.alarms[0].state == "lag growing"
    assert 295 <= raised_at <= 310  # once the span that it is judged on is over
    report.lag_rows = 10
    assert seen.after(5) == []


def test_feedback_that_no_longer_meets_its_impression_is_told_until_it_does():
    seen = Seen(unread_s=1e6)
    for look in range(100):
        seen.counts(0, feedback=100 * look, joined=95 * look)
        assert seen.after(10) == []
    states = []
    for look in range(1, 40):
        seen.counts(0, feedback=9_900 + 100 * look, joined=9_405 + 10 * look)
        states.append(seen.after(10))
    assert ["join rate down"] in states[:25]  # within the five minutes that count as lately
    assert states[30] == ["join rate down"]
    for look in range(1, 40):
        seen.counts(0, feedback=13_800 + 100 * look, joined=9_795 + 95 * look)
        states.append(seen.after(10))
    assert states[-1] == []


def test_rows_from_the_future_are_told_while_they_come():
    seen = Seen(unread_s=1e6)
    seen.counts(1000)
    assert seen.after(10) == []
    seen.counts(2000, in_the_future=60)
    assert seen.after(10) == ["clock off"]
    seen.counts(900_000, in_the_future=60)
    assert seen.after(400) == []


def test_rows_that_are_left_out_lately_are_told():
    seen = Seen(unread_s=1e6)
    report = seen.student.report
    report.total_rows, report.counts = 100_000, {"quarantined_rows": 500}  # of before this start: known to people
    assert seen.after(10) == []
    report.total_rows, report.counts = 110_000, {"quarantined_rows": 600}
    assert seen.after(10) == ["quarantine"]
    report.total_rows = 300_000
    assert seen.after(301) == []


def test_a_teacher_that_owes_snapshots_is_stale_and_one_that_gave_up_is_so_at_once():
    seen = Seen(unread_s=1e6)
    report = seen.augmentation.report
    report.teacher_age_s, report.teacher_lag_rows = 901.0, 10**6
    assert seen.after(1) == ["stale teacher"]
    report.teacher_age_s, report.teacher_lag_rows = 3.0, 10
    assert seen.after(1) == []
    teacher = seen.add("teacher", Kind.TEACHER)
    teacher.state, teacher.reason = WorkerState.FAILED, "it diverged"
    assert seen.after(1) == ["stale teacher"]
    assert seen.status.trouble.count("it diverged") == 1  # the end of the worker says so already


def test_a_disk_without_room_and_an_mlflow_that_is_behind_are_told():
    seen = Seen(unread_s=1e6)
    seen.status.disk_free_bytes = 10**8
    assert seen.after(1) == ["disk nearly full"]
    seen.status.disk_free_bytes = 10**10
    assert seen.after(1) == []
    seen.status.tracking = TrackingHealth(7, "connection refused")
    assert seen.after(1) == ["tracking behind"]
    assert "7 entries were dropped (connection refused)" in seen.status.notes[0]
    assert [seen.after(10) for _ in range(35)][-1] == []


def test_an_undisturbed_day_raises_nothing():
    """24 hours, a look each ten seconds: rows, lags that rise and fall by blocks, windows within chance, a few dead
    letters and some late feedback."""
    seen, chance = Seen(), random.Random(7)
    read = feedback = joined = refused = 0
    for look in range(24 * 360):
        rows = chance.randint(2_000, 6_000)
        read, feedback, refused = read + rows, feedback + rows // 30, refused + (chance.random() < 0.1)
        joined += round(rows / 30 * chance.uniform(0.9, 0.99))
        seen.counts(read, feedback=feedback, joined=min(joined, feedback), bad_vertical=refused)
        for worker in (seen.augmentation, seen.student):
            worker.report.rows, worker.report.lake_seq = read, read
            worker.report.lag_rows = chance.randint(0, 30_000)
        seen.student.report.total_rows, seen.student.report.counts = read, {"quarantined_rows": look // 1000}
        seen.augmentation.report.teacher_age_s = chance.uniform(0, 1000)
        seen.augmentation.report.teacher_lag_rows = chance.randint(0, 32_000)
        positives = round(chance.gauss(500, 60))
        ne = chance.gauss(0.8, 0.01)
        seen.student.report.windows = {
            "ctr": window(
                number=2 + look // 5, positives=positives, rate=positives / 20_000,
                ne={"student": ne, "no_teacher": ne * chance.gauss(1.01, 0.003)},
                calibration={"student": chance.gauss(1.0, 0.06)},
            )
        }  # fmt: skip
        assert seen.after(10) == [], seen.status.alarms
