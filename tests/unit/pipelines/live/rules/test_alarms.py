"""Alarms, by table: what was seen, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipelines.core.config.sections import AlarmLimits
from pipelines.live.rules.alarms import Alarm, Health, HotPartition, RaisedAlarm, RefusalCounts, alarms_of, words_of
from pipelines.live.rules.kinds import Kind

LIMITS = AlarmLimits(stalled_s=100, refused_share=0.2, refused_window_s=300, unread_s=60)
NOW = 10_000.0

INGEST = Health("ingest", Kind.INGEST, NOW - 500, 0)
AUGMENTATION = Health("augmentation", Kind.AUGMENTATION, NOW, 0)
TEACHER = Health("teacher", Kind.TEACHER, NOW, 0)
STUDENT = Health("student-feed", Kind.STUDENT, NOW, 0)
ALL = (INGEST, AUGMENTATION, TEACHER, STUDENT)


def still(health, for_s, lag=0, **changes):
    return replace(health, moved_s=NOW - for_s, lag_rows=lag, **changes)


def said(*healths, refused=(), silent=None):
    return alarms_of(healths, refused, silent or {}, LIMITS, NOW)


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
    [found] = said(INGEST, waits, still(TEACHER, 250, 64), still(STUDENT, 200))
    assert (found.alarm, found.workers, found.since_s) == (Alarm.STALLED, ("augmentation", "teacher"), NOW - 200)
    assert found.text == (
        "no worker makes progress, and rows wait: 12,345 for augmentation, 64 for teacher (waiting for snapshot 7)"
    )


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
