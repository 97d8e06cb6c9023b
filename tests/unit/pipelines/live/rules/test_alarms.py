"""Alarms, by table: what was seen, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipelines.core.config.sections import AlarmLimits
from pipelines.live.rules.alarms import (
    ALARMS,
    REMEDIES,
    Alarm,
    Health,
    HotPartition,
    JoinedShare,
    RaisedAlarm,
    RefusalCounts,
    RunHealth,
    ScoringTeacher,
    about_of,
    alarms_of,
    words_of,
)
from pipelines.live.rules.kinds import Kind
from pipelines.live.training.judged_windows import JudgedWindow
from tests.support.places import ROOT

LIMITS = AlarmLimits(stalled_s=100, refused_share=0.2, recent_s=300, unread_s=60)
NOW = 10_000.0

INGEST = Health("ingest", Kind.INGEST, NOW - 500, 0)
AUGMENTATION = Health("augmentation", Kind.AUGMENTATION, NOW, 0)
TEACHER = Health("teacher", Kind.TEACHER, NOW, 0)
STUDENT = Health("student-feed", Kind.STUDENT, NOW, 0)
ALL = (INGEST, AUGMENTATION, TEACHER, STUDENT)


def still(health, for_s, lag=0, **changes):
    return replace(health, moved_s=NOW - for_s, lag_rows=lag, **changes)


def said(*healths, refused=(), silent=None, **run):
    return alarms_of(healths, RunHealth(refused=refused, silent_topics=silent or {}, **run), LIMITS, NOW)


@pytest.mark.parametrize(
    ("healths", "stalled"),
    [
        (ALL, []),
        ([INGEST, AUGMENTATION, still(TEACHER, 500), still(STUDENT, 500)], []),  # nothing waits for them
        ([AUGMENTATION, still(TEACHER, 99, 5), STUDENT], []),  # not for long enough
        ([AUGMENTATION, still(TEACHER, 100, 5), STUDENT], ["teacher"]),
        ([AUGMENTATION, still(TEACHER, 200, 5), still(STUDENT, 200, 7)], ["teacher", "student-feed"]),
        ([AUGMENTATION, TEACHER, still(STUDENT, 200, None)], []),  # whether rows wait is not known
        ([still(AUGMENTATION, 200, 9, waits_for=Kind.TEACHER), still(TEACHER, 10, 5)], []),  # the teacher is slow
        ([still(AUGMENTATION, 200, 9), still(TEACHER, 10, 5)], ["augmentation"]),
        ([still(AUGMENTATION, 200, 9, waits_for=Kind.TEACHER), still(TEACHER, 200), STUDENT], ["augmentation"]),
        ([still(AUGMENTATION, 200, 9)], ["augmentation"]),
    ],
)
def test_a_worker_is_stalled_where_rows_wait_and_neither_it_nor_what_it_waits_for_moves(healths, stalled):
    found = [raised for raised in said(*healths) if raised.alarm is Alarm.STALLED]
    assert [name for raised in found for name in raised.workers] == stalled
    for raised, health in zip(found, [s for s in healths if s.name in stalled], strict=True):
        assert raised.since_s == health.moved_s
        assert f"{health.lag_rows} rows wait for it" in raised.text


def test_where_nothing_moves_and_rows_wait_for_several_the_run_is_stalled_since_the_last_of_them_moved():
    waits = still(AUGMENTATION, 300, 12_345, waits_for=Kind.TEACHER, note="waiting for snapshot 7")
    found, *each = said(INGEST, waits, still(TEACHER, 250, 64), still(STUDENT, 200))
    assert (found.alarm, found.workers, found.since_s) == (Alarm.STALLED, ("augmentation", "teacher"), NOW - 200)
    assert found.text == (
        "no worker makes progress, and rows wait: 12,345 for augmentation, 64 for teacher (waiting for snapshot 7)"
    )
    assert [about_of(raised) for raised in (found, *each)] == ["all workers", "augmentation", "teacher"]


@pytest.mark.parametrize(
    ("read", "reasons", "grave"),
    [
        (1000, {"null:bid": 150, "bad_vertical": 149}, True),
        (1000, {"null:bid": 210}, False),  # .21, and by chance it may be .19
        (1000, {}, False),
        (19, {"null:bid": 19}, False),  # too few
        (20, {"null:bid": 20}, True),
        (0, {}, False),
        (1_000_000, {"null:bid": 199_000}, False),
    ],
)
def test_dead_letters_are_a_mass_where_their_share_of_the_last_minutes_is_surely_above_the_limit(read, reasons, grave):
    found = said(*ALL, refused=[RefusalCounts("impressions", NOW - 290, read, reasons)])
    assert [raised.alarm for raised in found] == [Alarm.DEAD_LETTERS] * grave
    for raised in found:
        assert (raised.since_s, raised.workers) == (NOW - 290, ())
        assert f"of {read:,} impressions were refused in the last 290 s, most for `null:bid`" in raised.text


@pytest.mark.parametrize(
    ("lag", "unknown_for_s", "raised"), [(None, 30, True), (None, 4, False), (0, None, False), (7, 30, False)]
)
def test_a_lag_that_cannot_be_known_is_said_and_never_taken_for_one_of_0(lag, unknown_for_s, raised):
    since = None if unknown_for_s is None else NOW - unknown_for_s
    found = said(replace(AUGMENTATION, lag_rows=lag, unknown_since_s=since), TEACHER)
    assert [each.alarm for each in found] == [Alarm.LAG_UNKNOWN] * raised
    for each in found:
        assert each.text == "how many rows wait for augmentation cannot be known: the broker has not answered"


@pytest.mark.parametrize(
    ("augmentation", "silent_s", "noted"),
    [
        (still(AUGMENTATION, 75), {"ads": 75, "clicks": 75}, "topics `ads` and `clicks`"),
        (still(AUGMENTATION, 1, 20), {"ads": 1, "clicks": 75}, "topic `clicks`"),  # the other one is read
        (still(AUGMENTATION, 75), {"ads": 59, "clicks": 59}, None),
        (still(AUGMENTATION, 75, 20), {"ads": 75, "clicks": 75}, None),  # something is there and is not read
        (still(AUGMENTATION, 75, None), {"ads": 75, "clicks": 75}, None),  # the broker does not answer
        (still(AUGMENTATION, 75), {}, None),  # not a live run
    ],
)
def test_topics_that_bring_nothing_are_noted(augmentation, silent_s, noted):
    found = said(augmentation, TEACHER, silent={topic: NOW - s for topic, s in silent_s.items()})
    assert [each.text for each in found] == [noted] * (noted is not None)
    assert all(each.alarm is Alarm.NOTHING_READ and each.alarm.is_note for each in found)


def test_a_partition_in_which_most_rows_wait_is_noted_after_a_while():
    hot = HotPartition("ads/1", 90_000, 92_000)
    assert said(replace(AUGMENTATION, hot=hot, hot_since_s=NOW - 29)) == []
    [found] = said(replace(AUGMENTATION, hot=hot, hot_since_s=NOW - 30))
    assert (found.alarm, found.alarm.is_note, found.since_s) == (Alarm.HOT_PARTITION, True, NOW - 30)
    assert found.text == "90,000 of 92,000 rows that wait lie in `ads/1`"


@pytest.mark.parametrize(
    ("for_s", "words"),
    [
        (130, "stalled: teacher (since 11:57:50 UTC, 130 s)"),
        (2 * 86_400, "stalled: teacher (since 2026-11-21 12:00:00 UTC, 172,800 s)"),
    ],
)
def test_words_have_the_state_first_and_the_time_of_day(for_s, words):
    noon = datetime(2026, 11, 23, 12, tzinfo=UTC)
    assert words_of(RaisedAlarm(Alarm.STALLED, NOW - for_s, "teacher"), NOW, noon) == words


# --- figures of windows, and what belongs to no worker ----------------------------------------------------------

WINDOW = JudgedWindow(
    number=2, rows=20_000, positives=500, rate=0.025, rate_before=0.025,
    ne={"student": 0.80, "no_teacher": 0.81}, calibration={"student": 1.0, "no_teacher": 1.0}, gain=0.0123,
)  # fmt: skip


def judged(**changes):
    return replace(WINDOW, **changes)


def of_ne(student, twin=0.81):
    return judged(ne={"student": student} if twin is None else {"student": student, "no_teacher": twin})


@pytest.mark.parametrize(
    ("window", "raised", "words"),
    [
        (WINDOW, None, ""),
        (judged(calibration={"student": 1.6}), Alarm.CALIBRATION, "1.60 times as many positives are predicted"),
        (judged(calibration={"student": 0.6}), Alarm.CALIBRATION, "0.60 times as many positives are predicted"),
        (judged(calibration={"student": 1.35}), None, ""),  # of 500 positives that is within chance of 1.25
        (judged(calibration={"student": 1.6}, positives=150, rate_before=None), None, ""),  # too few of them
        (judged(calibration={"student": 1.6}, number=1, rate_before=None), None, ""),  # it is new
        (judged(calibration={"student": 1.0, "no_teacher": 9.0}), None, ""),  # a twin is nobody's alarm
        (of_ne(0.825), None, ""),
        (of_ne(0.84), Alarm.NE_ABOVE, "NE is 0.8400, 3.7% above its twin (0.8100)"),
        (of_ne(1.1), Alarm.NE_ABOVE, "NE is 1.1000, 10.0% above the base rate"),
        (of_ne(1.1, twin=None), Alarm.NE_ABOVE, "above the base rate"),
        (of_ne(None), None, ""),
        (judged(rate=0.0625, positives=1250), Alarm.LABEL_RATE, "6.25% are positive, 2.50 times the share before"),
        (judged(rate=0.045, positives=900), None, ""),
        (judged(rate=0.009, positives=180), Alarm.LABEL_RATE, "0.36 times the share before"),
        (judged(rate=0.0, positives=0), Alarm.LABEL_RATE, "0.00% are positive"),
        (judged(rate=0.0001, positives=2, rate_before=0.001), None, ""),  # nobody can say
    ],
)
def test_figures_of_a_window_are_an_alarm_where_they_are_surely_beyond_their_limits(window, raised, words):
    found = said(AUGMENTATION, TEACHER, replace(STUDENT, windows={"ctr": window}))
    assert [each.alarm for each in found] == [raised] * (raised is not None)
    for each in found:
        assert words in each.text
        assert (each.workers, about_of(each)) == (("student-feed",), "student-feed ctr")


@pytest.mark.parametrize(
    ("lags", "growing"),
    [
        ((), False),
        ((100, 5_000, 9_000, 9_999), False),  # a block is no lag
        ((1_000, 2_000, 8_000, 12_000), True),
        ((16_000, 10, 16_000, 12_000), False),  # blocks come and are learned
        ((90_000, 80_000, 70_000, 60_000), False),
    ],
)
def test_a_lag_grows_where_it_never_was_as_low_as_before(lags, growing):
    found = said(replace(AUGMENTATION, lag_rows=5, lags=lags), TEACHER)
    assert [each.alarm for each in found] == [Alarm.LAG_GROWING] * growing


@pytest.mark.parametrize(
    ("teacher", "stale"),
    [
        (ScoringTeacher(5_000, 60_000, 32_768), False),  # rows come slowly
        (ScoringTeacher(899, 500_000, 32_768), False),
        (ScoringTeacher(900, 70_000, 32_768), True),
    ],
)
def test_a_snapshot_is_stale_by_its_age_and_by_what_the_teacher_owes(teacher, stale):
    found = said(replace(AUGMENTATION, teacher=teacher), TEACHER)
    assert [each.alarm for each in found] == [Alarm.STALE_TEACHER] * stale


def test_a_teacher_that_has_given_up_is_stale_at_once():
    [found] = said(AUGMENTATION, STUDENT, teacher_gone="it diverged")
    assert (found.alarm, found.workers) == (Alarm.STALE_TEACHER, ("teacher",))
    assert "it diverged" in found.text


@pytest.mark.parametrize(
    ("lately", "down"),
    [((900, 1000), False), ((500, 1000), False), ((300, 1000), True), ((3, 10), False), ((0, 40), True)],
)
def test_the_share_of_feedback_that_is_joined_is_compared_with_itself(lately, down):
    found = said(*ALL, joined=JoinedShare(NOW - 300, 9_000, 10_000, *lately))
    assert [each.alarm for each in found] == [Alarm.JOIN_RATE] * down
    assert said(*ALL, joined=JoinedShare(NOW - 300, 900, 999, *lately)) == []  # not enough is known of before


@pytest.mark.parametrize(("ahead", "off"), [(0, False), (19, False), (25, True)])
def test_rows_of_the_future_tell_of_a_clock(ahead, off):
    found = said(*ALL, refused=[RefusalCounts("impressions", NOW - 60, 1000, {"in_the_future": ahead})])
    assert [each.alarm for each in found] == [Alarm.CLOCK] * off


@pytest.mark.parametrize(("left_out", "many"), [(0, False), (19, False), (60, True)])
def test_rows_that_a_model_cannot_learn_are_an_alarm_where_they_are_many(left_out, many):
    counts = RefusalCounts("rows of student-feed", NOW - 60, 20_000, {"not finite": left_out} if left_out else {})
    found = said(*ALL, quarantined=[counts])
    assert [(each.alarm, each.about) for each in found] == [(Alarm.QUARANTINE, "rows of student-feed")] * many


@pytest.mark.parametrize(("free", "low"), [(None, False), (10**9, False), (10**9 - 1, True)])
def test_a_disk_is_nearly_full_where_a_start_would_be_refused(free, low):
    assert [each.alarm for each in said(*ALL, free_bytes=free, least_bytes=1e9)] == [Alarm.DISK] * low


def test_what_mlflow_does_not_take_is_a_note():
    [found] = said(*ALL, dropped=12, why_dropped="connection refused")
    assert (found.alarm, found.alarm.is_note) == (Alarm.TRACKING, True)
    assert found.text == "12 entries were dropped (connection refused)"


def test_every_alarm_has_a_severity_a_sentence_and_a_remedy_of_its_name():
    assert list(ALARMS) == list(Alarm)
    page = (ROOT / REMEDIES).read_text()
    sections = dict(re.findall(r"^## (.+)\n\n(.+)$", page, re.MULTILINE))
    assert {str(alarm): alarm.sentence for alarm in Alarm} == {n: t for n, t in sections.items() if n in [*Alarm]}
    assert all(alarm.remedy.partition("#")[2] == str(alarm).lower().replace(" ", "-") for alarm in Alarm)
