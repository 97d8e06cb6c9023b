"""Remedies for refused rows, by the reason of their dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streaming.messages.dead_letters import TOMBSTONE
from streaming.settlement.admission import RAN_AWAY

MEND = "exfm mend watermark"
MOVED = (
    f"A record from the future moved event time: stop the run, and see what `{MEND}` would do. A stream of the past is "
    "to be sent in order of event time"
)
"""Of `too_old`, where event time is far ahead of the rows that come."""

REMEDIES = {
    "null": "Let the column be empty (nullable: true under rows.columns), or have the producer fill it",
    "not_finite": "Have the producer send a finite number, or none where the column is nullable",
    "out_of_range": "Widen minimum and maximum of the column under rows.columns, and the table that it is an index "
    "into; give a dense feature of large numbers the transform log1p or standardise; or correct the producer",
    "too_long": "Raise max_length of the column, or kafka.max_message_bytes, or send shorter lists",
    "wrong_type": "Declare the column under rows.columns as the type that it has",
    "missing_column": "Take the column out of rows.columns, let it be empty (nullable: true), or have it sent",
    "undecodable": "Check the codec of the topic (kafka.impressions.codec, kafka.feedback.codec)",
    "row_too_large": "Send shorter lists and texts, or raise kafka.max_message_bytes",
    "oversized": "Raise kafka.max_message_bytes, or send smaller messages",
    "bad_event_time": "Event times are milliseconds since 1970: have the producer that is named send those",
    "in_the_future": "Correct the producer's clock. settlement.max_future_skew_s may be raised to the seconds by which "
    "clocks differ, not further: one row that is far ahead closes every window",
    "too_old": "Send the stream in order of event time, or raise settlement.dedup_horizon_s",
    "wrong_partition": "Have the producers of both topics choose the partition by the impression's id "
    "(settlement.partitioner says how), copy the topic to one partitioned by it "
    "(examples/repartition_topic.py), or write a recording anew: exfm ingest FILE --config CONFIG. "
    "settlement.by: stream takes rows in any partitions, with one worker",
    "bad_vertical": "Give every impression the name of its vertical",
    "too_many_verticals": "Name a column of few values as the vertical, or raise lake.max_verticals",
    TOMBSTONE: "Nothing was lost with it; send messages without a value to another topic",
    "unknown_task": "Name the task under rows.tasks as the feedback does (blanks and capitals count), or do not send "
    "its feedback",
}


def remedy_of(reason: str, letter: Mapping[str, Any] | None, warnings: Iterable[str] = ()) -> str | None:
    """Remedy if most rows are refused for `reason`; `letter`: an example, `warnings` of the run.

    >>> remedy_of("too_old", None)
    'Send the stream in order of event time, or raise settlement.dedup_horizon_s'
    >>> remedy_of("too_old", {"detail": "event time is 31556952001 ms behind the watermark" + RAN_AWAY})[:66]
    'A record from the future moved event time: stop the run, and see w'
    """
    ran_away = RAN_AWAY in (letter or {}).get("detail", "") or any(MEND in words for words in warnings)
    return MOVED if reason == "too_old" and ran_away else REMEDIES.get(reason.partition(":")[0])
