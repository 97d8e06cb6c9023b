"""Counts of a run: the outcome of every row read, while it lives and in summary.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNMATCHED = "unknown_impression"
"""The reason of feedback that met no impression, counted apart from what was refused."""


def counts_of(counters: Mapping[str, Any]) -> dict[str, Any]:
    """Counts from the counters of settlement and lake. For every settlement group, and for feedback:

    impressions_read = settled + not applicable + pending + dead letters + duplicates
    feedback_read = joined + duplicate + late + unmatched + dead letters + waiting (0 at the end of a bounded stream)

    and for the offsets of both, over all partitions, from where reading began (`offsets`):

    offsets = messages + without_rows + end_markers + transaction_records;  rows + rows_before = what was read

    `early_feedback`, where there is some, is late feedback from before its impression. `warnings` are sentences about
    rows that were taken all the same.
    """
    dead = counters["dead_letters"]
    feedback = dict(dead["feedback"])
    unmatched = feedback.pop(UNMATCHED, 0)
    return {
        "impressions_read": counters["impressions_read"],
        "settled": counters["settled"],
        "not_applicable": counters["not_applicable"],
        "pending": counters["pending"],
        "unknown_labels": counters["unknown_labels"],
        "dead_letters": sum(dead["impression"].values()),
        "dead_letters_by_reason": dead,
        "duplicates_dropped": counters["duplicates_dropped"],
        "lake_rows": counters["lake_rows"],
        "verticals": counters["verticals"],
        "teacher_inferences": counters["teacher_inferences"],
        "feedback_read": counters["feedback_read"],
        "joined_feedback": counters["matched_feedback"],
        "late_feedback": counters["late_feedback"],
        "unmatched_feedback": unmatched,
        "duplicate_feedback": counters["duplicate_feedback"],
        "feedback_dead_letters": sum(feedback.values()),
        "waiting_feedback": counters["waiting_feedback"],
    } | {name: counters[name] for name in ("early_feedback", "offsets", "warnings") if name in counters}


def counts_hold(counts: dict[str, Any]) -> bool:
    """True if every row read is accounted for, and every settled row is in the lake."""
    read = all(
        counts["impressions_read"]
        == settled
        + counts["not_applicable"][group]
        + counts["pending"][group]
        + counts["dead_letters"]
        + counts["duplicates_dropped"]
        for group, settled in counts["settled"].items()
    )
    in_lake = counts["lake_rows"] == sum(counts["settled"].values())
    return bool(read and in_lake and feedback_holds(counts) and offsets_hold(counts))


PARTS_OF_OFFSETS = ("messages", "without_rows", "end_markers", "transaction_records")


def offsets_hold(counts: Mapping[str, Any]) -> bool:
    """True if every offset is accounted for, and its messages hold exactly the rows read.

    >>> ads = {"offsets": 7, "messages": 4, "rows": 40, "rows_before": 0, "without_rows": 0, "end_markers": 1,
    ...        "transaction_records": 2}
    >>> offsets_hold({"impressions_read": 40, "offsets": {"impression": ads}})
    True
    """
    read = {"impression": "impressions_read", "feedback": "feedback_read"}
    return all(
        each["offsets"] == sum(each[part] for part in PARTS_OF_OFFSETS)
        and each["rows"] + each["rows_before"] == counts[read[kind]]
        for kind, each in counts.get("offsets", {}).items()
    )


FEEDBACK = ("joined_feedback", "duplicate_feedback", "late_feedback", "unmatched_feedback", "feedback_dead_letters")


def feedback_holds(counts: dict[str, Any]) -> bool:
    """True if every row of feedback read is accounted for.

    >>> feedback_holds({"feedback_read": 5, "joined_feedback": 3, "duplicate_feedback": 1, "late_feedback": 0,
    ...                 "unmatched_feedback": 0, "feedback_dead_letters": 1, "waiting_feedback": 0})
    True
    """
    waiting: int = counts["waiting_feedback"]
    return bool(counts["feedback_read"] == sum(counts[name] for name in FEEDBACK) + waiting)
