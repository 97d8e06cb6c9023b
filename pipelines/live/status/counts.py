"""Counts of a run: the outcome of every row read, while it lives and in summary.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

UNMATCHED = "unknown_impression"
"""The reason of feedback that met no impression, counted apart from what was refused."""


Absent = Field(exclude_if=lambda value: not value)
"""A field that summary.json and status.json lack where there is nothing."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Outcome of every row read. For every settlement group, and for feedback:

    impressions_read = settled + not applicable + pending + dead letters + duplicates
    feedback_read = joined + duplicate + late + unmatched + dead letters + waiting (0 at the end of a bounded stream)

    and for the offsets of both, over all partitions, from where reading began (`offsets`):

    offsets = messages + without_rows + end_markers + transaction_records;  rows + rows_before = what was read

    `early_feedback` is late feedback from before its impression. `erased`: of `lake_rows`, those that a person had
    erased. `warnings` are sentences about rows that were taken
    all the same.
    """

    impressions_read: int
    settled: Mapping[str, int]
    not_applicable: Mapping[str, int]
    pending: Mapping[str, int]
    unknown_labels: Mapping[str, int]
    dead_letters: int
    dead_letters_by_reason: Mapping[str, Mapping[str, int]]
    duplicates_dropped: int
    lake_rows: int
    verticals: Mapping[str, int]
    teacher_inferences: int
    feedback_read: int
    joined_feedback: int
    late_feedback: int
    unmatched_feedback: int
    duplicate_feedback: int
    feedback_dead_letters: int
    waiting_feedback: int
    early_feedback: Annotated[int, Absent] = 0
    offsets: Annotated[Mapping[str, Mapping[str, int]], Absent] = field(default_factory=dict)
    erased: Annotated[int, Absent] = 0
    warnings: Annotated[Sequence[str], Absent] = ()

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = _JSON.dump_python(self)
        return value


_JSON = TypeAdapter(Counts)


def counts_of(counters: Mapping[str, Any]) -> Counts:
    """Counts from the counters of settlement and lake."""
    letters = counters["dead_letters"]
    feedback = dict(letters["feedback"])
    unmatched = feedback.pop(UNMATCHED, 0)
    return Counts(
        impressions_read=counters["impressions_read"],
        settled=counters["settled"],
        not_applicable=counters["not_applicable"],
        pending=counters["pending"],
        unknown_labels=counters["unknown_labels"],
        dead_letters=sum(letters["impression"].values()),
        dead_letters_by_reason=letters,
        duplicates_dropped=counters["duplicates_dropped"],
        lake_rows=counters["lake_rows"],
        verticals=counters["verticals"],
        teacher_inferences=counters["teacher_inferences"],
        feedback_read=counters["feedback_read"],
        joined_feedback=counters["matched_feedback"],
        late_feedback=counters["late_feedback"],
        unmatched_feedback=unmatched,
        duplicate_feedback=counters["duplicate_feedback"],
        feedback_dead_letters=sum(feedback.values()),
        waiting_feedback=counters["waiting_feedback"],
        **{name: counters[name] for name in ("early_feedback", "offsets", "warnings") if name in counters},
    )


def counts_hold(counts: Counts) -> bool:
    """True if every row read is accounted for, and every settled row is in the lake."""
    read = all(
        counts.impressions_read
        == settled
        + counts.not_applicable[group]
        + counts.pending[group]
        + counts.dead_letters
        + counts.duplicates_dropped
        for group, settled in counts.settled.items()
    )
    in_lake = counts.lake_rows == sum(counts.settled.values())
    rows_read = {"impression": counts.impressions_read, "feedback": counts.feedback_read}
    return read and in_lake and feedback_holds(counts) and offsets_hold(counts.offsets, rows_read)


PARTS_OF_OFFSETS = ("messages", "without_rows", "end_markers", "transaction_records")


def offsets_hold(offsets: Mapping[str, Mapping[str, int]], rows_read: Mapping[str, int]) -> bool:
    """True if every offset is accounted for, and its messages hold exactly the rows read; both by kind.

    >>> ads = {"offsets": 7, "messages": 4, "rows": 40, "rows_before": 0, "without_rows": 0, "end_markers": 1,
    ...        "transaction_records": 2}
    >>> offsets_hold({"impression": ads}, {"impression": 40})
    True
    """
    return all(
        each["offsets"] == sum(each[part] for part in PARTS_OF_OFFSETS)
        and each["rows"] + each["rows_before"] == rows_read[kind]
        for kind, each in offsets.items()
    )


def feedback_holds(counts: Counts) -> bool:
    """True if every row of feedback read is accounted for."""
    outcomes = (
        counts.joined_feedback,
        counts.duplicate_feedback,
        counts.late_feedback,
        counts.unmatched_feedback,
        counts.feedback_dead_letters,
        counts.waiting_feedback,
    )
    return counts.feedback_read == sum(outcomes)
