"""What was seen of a stream, as plain values that the judgements work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.profile.column_seen import ColumnSeen, refused_by_column
from streaming.messages.times import Unit
from streaming.schema import RowSchema

MOST_DELAYS = 1_000_000
"""So many delays of a task are kept; of more, those that come first."""


@dataclass
class TimeSeen:
    """Event times, ms. `unit`: the one in which plain numbers were taken; None: they were no plain numbers."""

    lowest_ms: int
    highest_ms: int
    unit: Unit | None


@dataclass
class LabelSeen:
    """A task's labels. `rows` were looked at, `unknown` of them without a label; `delays_s` from impression to
    feedback, one per positive whose impression was seen. Of a label column: the `rule` by which a value is positive,
    and how many are so though they lie `between` 0 and 1. Of a conditional task: how many positives are `unmet`, their
    condition is not positive."""

    task: str
    rows: int = 0
    unknown: int = 0
    positives: int = 0
    rule: str = ""
    between: int = 0
    unmet: int = 0
    delays: list[np.ndarray] = field(default_factory=list)

    @property
    def rate(self) -> float:
        known = self.rows - self.unknown
        return self.positives / known if known else 0.0

    @property
    def delays_s(self) -> np.ndarray:
        return np.concatenate(self.delays) if self.delays else np.empty(0)

    def note_delays(self, delay_ms: np.ndarray) -> None:
        if sum(map(len, self.delays)) < MOST_DELAYS:
            self.delays.append(delay_ms / 1000)


@dataclass
class Refused:
    """Rows that would become dead letters for one reason, and one of them in words."""

    rows: int = 0
    example: str = ""


@dataclass
class Sample:
    """`rows` in all, None where unknown; `looked_at` of them in every column. `whole`: times, labels and verticals are
    of all rows. `batch`: the good rows among those looked at, in the schema of impressions."""

    origin: str
    rows: int | None
    looked_at: int
    whole: bool
    batch: pa.Table
    columns: list[ColumnSeen] = field(default_factory=list)
    time: TimeSeen | None = None
    labels: dict[str, LabelSeen] = field(default_factory=dict)
    verticals: Counter[str] = field(default_factory=Counter)
    refused: dict[str, Refused] = field(default_factory=dict)
    feedback_refused: dict[str, Refused] = field(default_factory=dict)
    feedback_looked_at: int = 0
    matched: int = 0
    unmatched: int = 0

    def count_refused_values(self) -> None:
        """Refusals as those of their columns."""
        refused = refused_by_column({reason: seen.rows for reason, seen in self.refused.items()})
        for column in self.columns:
            column.refused = refused[column.name]

    def as_json(self) -> dict[str, Any]:
        return {
            "origin": self.origin,
            "rows": self.rows,
            "looked_at": self.looked_at,
            "whole": self.whole,
            "columns": [_plain(vars(column)) for column in self.columns],
            "time": None if self.time is None else _plain(vars(self.time)),
            "labels": {
                name: {"rows": seen.rows, "unknown": seen.unknown, "positives": seen.positives, "rate": seen.rate}
                for name, seen in self.labels.items()
            },
            "verticals": dict(self.verticals.most_common()),
            "refused": {reason: vars(seen) for reason, seen in self.refused.items()},
            "feedback_refused": {reason: vars(seen) for reason, seen in self.feedback_refused.items()},
        }


def count_refused(into: dict[str, Refused], reasons: Iterable[tuple[str, str]]) -> None:
    """Count rows by their reason; the first of each is its example.

    >>> seen = {}
    >>> count_refused(seen, [("null:bid", "`bid` is None"), ("null:bid", "…")])
    >>> seen
    {'null:bid': Refused(rows=2, example='`bid` is None')}
    """
    for reason, detail in reasons:
        seen = into.setdefault(reason, Refused(example=detail))
        seen.rows += 1


def match_feedback(sample: Sample, schema: RowSchema, feedback: Iterable[pa.RecordBatch]) -> dict[str, LabelSeen]:
    """The labels that rows of feedback give to the impressions looked at. `sample.unmatched` counts those that belong
    to none of them."""
    labels = {task.name: LabelSeen(task.name, rows=sample.batch.num_rows) for task in schema.tasks}
    ids = sample.batch["impression_id"].combine_chunks()
    time_N = sample.batch["event_time_ms"].to_numpy()
    labelled: dict[str, list[np.ndarray]] = {task: [] for task in labels}
    for batch in feedback:
        place = pc.index_in(batch["impression_id"], ids)
        known = place.is_valid()
        sample.matched += pc.sum(known).as_py() or 0
        sample.unmatched += batch.num_rows - (pc.sum(known).as_py() or 0)
        mine, place_N = batch.filter(known), place.drop_null().to_numpy()
        delay_N = mine["event_time_ms"].to_numpy() - time_N[place_N]
        for task, seen in labels.items():
            of_task = pc.equal(mine["task"], task).to_numpy(zero_copy_only=False)
            labelled[task].append(place_N[of_task])
            seen.note_delays(delay_N[of_task])
    for task, seen in labels.items():
        seen.positives = len(np.unique(np.concatenate(labelled[task]))) if labelled[task] else 0
    for task, given in schema.given.items():
        if labelled[task]:
            known = np.concatenate(labelled[given] or [np.empty(0, np.int64)])
            labels[task].unmet = len(np.setdiff1d(np.concatenate(labelled[task]), known))
    return labels


def count_verticals(into: Counter[str], column: pa.ChunkedArray | pa.Array) -> None:
    for entry in pc.value_counts(column).to_pylist():
        if entry["values"] is not None:
            into[str(entry["values"])] += entry["counts"]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = (int, float, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}
