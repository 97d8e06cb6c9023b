"""Segments: parts of a student's rows, judged separately.

A segment is a condition on rows, or one value of a column. Besides the columns of an impression these are known, of a
stream in its order:

    hour, weekday        of the event time, UTC; Monday is 0
    rows_of_<column>     how many earlier rows of the stream have the same value (and settle the same labels)
    label_delay_s        from the impression until its row, labels included, was in the lake; without a lake, its window
    logit_age_s          from the first row that the row's teacher snapshot scored to this one; of a lake alone

n rows of the student.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.profile.codes import codes_of_values
from streaming.errors import BadInput
from streaming.lake.where import Where
from streaming.schema import RowSchema

HOUR_MS = 3_600_000
EARLIER = "rows_of_"
NEW = 5
"""Values of which the stream has had fewer rows are new, where segments are not given."""

MOST_VALUES = 12
"""A column of more distinct values is cut into quarters, or, where it is no number, into its most frequent values."""

USUAL = ("ad_id", "item_id")
"""Columns whose new values are a segment, besides those by which rows are clustered, where segments are not given."""


class SegmentColumns:
    """Columns of the rows at `places` (n,) of a stream, for conditions."""

    def __init__(self, table: pa.Table, places: np.ndarray, rows: RowSchema) -> None:
        self._table, self._places, self._rows = table, places, rows

    @cached_property
    def schema(self) -> pa.Schema:
        """Names that a condition may use."""
        plain = [field for field in self._rows.impression if field.name in self._table.schema.names]
        known = [pa.field("hour", pa.int64()), pa.field("weekday", pa.int64()), pa.field("label_delay_s", pa.float64())]
        known += [pa.field(EARLIER + f.name, pa.int64()) for f in plain if not pa.types.is_list(f.type)]
        if {"teacher_version", "scored_at_ms"} <= set(self._table.schema.names):
            known.append(pa.field("logit_age_s", pa.float64()))
        taken = {field.name for field in plain}
        return pa.schema([*plain, *(field for field in known if field.name not in taken)])

    def __getitem__(self, name: str) -> pa.Array:
        """A column of the rows, (n,)."""
        return self._whole(name).take(pa.array(self._places))

    def table(self, names: Sequence[str]) -> pa.Table:
        return pa.table({name: self[name] for name in names})

    def _whole(self, name: str) -> pa.Array:
        if name in self._table.schema.names:
            return self._table[name].combine_chunks()
        if name.startswith(EARLIER):
            return pa.array(self._earlier(name.removeprefix(EARLIER)))
        return pa.array(getattr(self, f"_{name}")())

    def _earlier(self, column: str) -> np.ndarray:
        codes, settlements = (codes_of_values(self._table[name].combine_chunks()) for name in (column, "settlement"))
        return earlier_rows(codes * (int(settlements.max(initial=0)) + 1) + settlements)

    def _times(self, name: str = "event_time_ms") -> np.ndarray:
        return self._table[name].to_numpy()

    def _hour(self) -> np.ndarray:
        return self._times() // HOUR_MS % 24

    def _weekday(self) -> np.ndarray:
        return (self._times() // (24 * HOUR_MS) + 3) % 7  # 1970 began on a Thursday

    def _label_delay_s(self) -> np.ndarray:
        if "scored_at_ms" in self._table.schema.names:
            return (self._times("scored_at_ms") - self._times()) / 1000
        windows = {group.name: group.window_ms / 1000 for group in self._rows.groups}
        encoded = pc.dictionary_encode(self._table["settlement"].combine_chunks())
        return np.array([windows[name] for name in encoded.dictionary.to_pylist()])[encoded.indices.to_numpy()]

    def _logit_age_s(self) -> np.ndarray:
        at = self._times("scored_at_ms").astype(np.float64)
        version = pc.fill_null(self._table["teacher_version"].combine_chunks(), -1).to_numpy()
        codes = np.unique(version, return_inverse=True)[1].reshape(-1)
        first = np.full(int(codes.max(initial=-1)) + 1, np.inf)
        np.minimum.at(first, codes, at)
        return np.where(version >= 0, (at - first[codes]) / 1000, np.nan)


def earlier_rows(codes: np.ndarray) -> np.ndarray:
    """Number of earlier rows with the same code, (N,).

    >>> earlier_rows(np.array([3, 5, 3, 3, 5])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(codes) else np.empty(0, np.int64)
    runs = np.diff(np.append(begins, len(codes)))
    counts = np.empty(len(codes), np.int64)
    counts[order] = np.arange(len(codes)) - np.repeat(begins, runs)
    return counts


Mask = Callable[[SegmentColumns], np.ndarray]
"""Mask of rows, (n,) bool, from their columns."""


class Segment(NamedTuple):
    """A named part of the rows."""

    name: str
    mask: Mask


def segments_of(asked: Mapping[str, str], columns: SegmentColumns, clustered_by: Sequence[str]) -> list[Segment]:
    """The segments of a spec, or the usual ones if it names none. A column makes one of each value that `columns` has.
    Raises BadInput where a text is no condition on the columns.
    """
    segments: list[Segment] = []
    for name, text in (asked or usual(columns, clustered_by)).items():
        if text in columns.schema.names:
            made = list(_by_value(name, text, columns))
            segments += made if asked or len(made) > 1 else []
        else:
            try:
                where = Where(text, columns.schema)
            except BadInput as error:
                raise BadInput(f"segments.{name}: {error}") from None
            segments.append(Segment(name, _matches(where)))
    return segments


def usual(columns: SegmentColumns, clustered_by: Sequence[str]) -> dict[str, str]:
    """Default segments, as far as the stream has their columns."""
    names = columns.schema.names
    conditions = {f"hours {at} to {at + 5}": f"{at} <= hour and hour < {at + 6}" for at in (0, 6, 12, 18)}
    for column in dict.fromkeys([*clustered_by, *USUAL]):
        if EARLIER + column in names:
            conditions[f"new {column}"] = f"{EARLIER}{column} < {NEW}"
            conditions[f"known {column}"] = f"{EARLIER}{column} >= {NEW}"
    return conditions | {
        name: name for name in ("vertical", "position", "label_delay_s", "logit_age_s") if name in names
    }


def _matches(where: Where) -> Mask:
    return lambda columns: where.mask(columns.table(where.columns))


def _equals(column: str, value: object) -> Mask:
    def mask(columns: SegmentColumns) -> np.ndarray:
        values = columns[column]
        equal = pc.is_in(values, value_set=pa.array([value], values.type))
        return np.asarray(equal.to_numpy(zero_copy_only=False), bool)

    return mask


def _within(column: str, low: float, high: float) -> Mask:
    def mask(columns: SegmentColumns) -> np.ndarray:
        x = columns[column].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.asarray((x >= low) & (x < high))

    return mask


def _by_value(name: str, column: str, columns: SegmentColumns) -> Iterator[Segment]:
    values = columns[column]
    counts = pc.value_counts(values.drop_null())
    distinct = sorted(zip(counts.field(1).to_pylist(), counts.field(0).to_pylist(), strict=True), reverse=True)
    if len(distinct) > MOST_VALUES and not pa.types.is_string(values.type):
        x = values.cast(pa.float64(), safe=False).drop_null().to_numpy()
        edges = np.unique(np.quantile(x[np.isfinite(x)], [0, 0.25, 0.5, 0.75, 1]))
        bounds = [*edges[:-1], np.inf]
        for low, high in pairwise(bounds):
            upto = f"to {high:.4g}" if np.isfinite(high) else "and more"
            yield Segment(f"{name} {low:.4g} {upto}", _within(column, float(low), float(high)))
        return
    shown = sorted(value for _, value in distinct[:MOST_VALUES])
    for value in shown:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        yield Segment(f"{name} {text}" if not isinstance(value, str) else f"{name}: {text}", _equals(column, value))
