"""The profile of a stream: what a look at its rows found, as plain values that the rules of `checks` judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.profile.column import ColumnProfile, refused_by_column
from streaming.messages.times import Unit
from streaming.position import Partition
from streaming.schema import RowSchema

MOST_DELAYS = 1_000_000
"""So many delays of a task are kept; of more, those that come first."""


@dataclass
class Times:
    """Observed event times, ms. `unit`: the one in which plain numbers were taken; None: they were no plain numbers."""

    lowest_ms: int
    highest_ms: int
    unit: Unit | None


@dataclass
class LabelProfile:
    """Observed labels of a task. `rows` were looked at, `unknown` of them without a label; `delays_s` from
    impression to feedback, one per positive whose impression was seen. Of a label column: the `rule` by which a
    value is positive, and how many are so though they lie `between` 0 and 1. Of a conditional task: how many
    positives are `unmet`, their condition is not positive."""

    task: str
    rows: int = 0
    unknown: int = 0
    positives: int = 0
    rule: str = ""
    between: int = 0
    unmet: int = 0
    delays: list[np.ndarray] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.rows - self.unknown

    @property
    def rate(self) -> float:
        return self.positives / self.known if self.known else 0.0

    @property
    def delays_s(self) -> np.ndarray:
        return np.concatenate(self.delays) if self.delays else np.empty(0)

    def note_delays(self, delay_ms: np.ndarray) -> None:
        if sum(map(len, self.delays)) < MOST_DELAYS:
            self.delays.append(delay_ms / 1000)


@dataclass
class RefusedRows:
    """Rows that would become dead letters for one reason, with an example."""

    rows: int = 0
    example: str = ""


@dataclass
class PlacedRows:
    """Rows looked at in one partition, of which so many lie `elsewhere` than their ids belong, with an example; and how
    many would under the other partitioner (`settlement.partitioner`)."""

    rows: int = 0
    elsewhere: int = 0
    by_the_other: int = 0
    example: str = ""


@dataclass
class Profile:
    """A sample: `rows` in total, None if unknown; `looked_at` of them in every column. `whole`: times, labels and
    verticals are of all rows. `batch`: the good rows among those looked at, in the schema of impressions."""

    origin: str
    rows: int | None
    looked_at: int
    whole: bool
    batch: pa.Table
    columns: list[ColumnProfile] = field(default_factory=list)
    time: Times | None = None
    labels: dict[str, LabelProfile] = field(default_factory=dict)
    verticals: Counter[str] = field(default_factory=Counter)
    refused: dict[str, RefusedRows] = field(default_factory=dict)
    feedback_refused: dict[str, RefusedRows] = field(default_factory=dict)
    feedback_looked_at: int = 0
    placed: dict[Partition, PlacedRows] = field(default_factory=dict)
    matched: int = 0
    unmatched: int = 0

    def look_at_columns(self, table: pa.Table, unfit: Counter[str] | None = None) -> None:
        """The columns of a table, with the rows that were refused, and `unfit` values, of each."""
        refused = refused_by_column({reason: seen.rows for reason, seen in self.refused.items()})
        refused += unfit or Counter[str]()
        columns = (ColumnProfile.of(name, table[name]) for name in table.column_names)
        self.columns = [replace(column, refused=refused[column.name]) for column in columns]

    def as_json(self) -> dict[str, Any]:
        return {
            "origin": self.origin,
            "rows": self.rows,
            "looked_at": self.looked_at,
            "whole": self.whole,
            "columns": [column.as_json() for column in self.columns],
            "time": None if self.time is None else asdict(self.time),
            "labels": {
                name: {"rows": seen.rows, "unknown": seen.unknown, "positives": seen.positives, "rate": seen.rate}
                for name, seen in self.labels.items()
            },
            "verticals": dict(self.verticals.most_common()),
            "refused": {reason: asdict(seen) for reason, seen in self.refused.items()},
            "feedback_refused": {reason: asdict(seen) for reason, seen in self.feedback_refused.items()},
        }


def count_refused(into: dict[str, RefusedRows], reasons: Iterable[tuple[str, str]]) -> None:
    """Count rows by their reason; the first of each is its example.

    >>> seen = {}
    >>> count_refused(seen, [("null:bid", "`bid` is None"), ("null:bid", "…")])
    >>> seen
    {'null:bid': RefusedRows(rows=2, example='`bid` is None')}
    """
    for reason, detail in reasons:
        seen = into.setdefault(reason, RefusedRows(example=detail))
        seen.rows += 1


def match_feedback(profile: Profile, schema: RowSchema, feedback: Iterable[pa.RecordBatch]) -> dict[str, LabelProfile]:
    """Labels that feedback gives to the sampled impressions. `profile.unmatched` counts those that belong to none of
    them."""
    labels = {task.name: LabelProfile(task.name, rows=profile.batch.num_rows) for task in schema.tasks}
    ids = profile.batch["impression_id"].combine_chunks()
    time_N = profile.batch["event_time_ms"].to_numpy()
    labelled: dict[str, list[np.ndarray]] = {task: [] for task in labels}
    for batch in feedback:
        row = pc.index_in(batch["impression_id"], ids)
        matched = batch.num_rows - row.null_count
        profile.matched += matched
        profile.unmatched += batch.num_rows - matched
        mine, row_N = batch.filter(row.is_valid()), row.drop_null().to_numpy()
        delay_N = mine["event_time_ms"].to_numpy() - time_N[row_N]
        for task, seen in labels.items():
            of_task = pc.equal(mine["task"], task).to_numpy(zero_copy_only=False)
            labelled[task].append(row_N[of_task])
            seen.note_delays(delay_N[of_task])
    positive = {task: np.unique(np.concatenate([*rows, np.empty(0, np.int64)])) for task, rows in labelled.items()}
    for task, seen in labels.items():
        seen.positives = len(positive[task])
    for task, given in schema.given.items():
        labels[task].unmet = len(np.setdiff1d(positive[task], positive[given]))
    return labels


def count_verticals(into: Counter[str], column: pa.ChunkedArray | pa.Array) -> None:
    for entry in pc.value_counts(column).to_pylist():
        if entry["values"] is not None:
            into[str(entry["values"])] += entry["counts"]
