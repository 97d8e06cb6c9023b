"""Times in every supported form, as milliseconds since 1970 UTC, with checks of their plausibility."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.schema import is_text

Unit = Literal["s", "ms", "us", "ns"]
PER_MS: dict[Unit, float] = {"s": 1e-3, "ms": 1, "us": 1_000, "ns": 1_000_000}
"""How many of a unit a millisecond has."""

FIRST_EVENT_TIME_MS = 946_684_800_000
"""The year 2000. An earlier time counts from the start of a log, or is not in milliseconds."""

LATEST_EVENT_TIME_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: later times have no calendar date."""

YEAR_MS = 31_556_952_000

_BEYOND_MS = (r"(\.\d{3})\d+", r"\1")
WITH_ZONE = r":\d\d.*?([zZ]|[+-]\d\d(:?\d\d)?)$"
WRITTEN_OTHERWISE = (
    (r"^\s+|\s+$", ""),
    (r"([zZ]|[+-]\d\d:?\d\d)\[[A-Za-z0-9_/+-]+\]$", r"\1"),  # Java: the offset, and the zone that it is of
    (r"(:\d\d(?:[.,]\d+)?) ?\[?(?:Etc/)?(?:UTC|GMT)\]?$", r"\1Z"),  # BigQuery, HTTP
    (r"(:\d\d),(\d+)", r"\1.\2"),  # log4j, Python's logging
    (r"^(\d{4})(\d\d)(\d\d)[T ](\d\d):?(\d\d):?(\d\d)", r"\1-\2-\3T\4:\5:\6"),  # ISO 8601's basic form
)
"""Regular expressions (RE2) that turn other usual ways to write a time into one that Arrow and DuckDB read."""


def is_time(kind: pa.DataType) -> bool:
    """True if `milliseconds` accepts a column of this type."""
    return is_written_time(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)


def is_written_time(kind: pa.DataType) -> bool:
    """True if a column of this type defines its times by itself, without a unit."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return is_text(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind)


def needs_zone(kind: pa.DataType) -> bool:
    """True if a column of this type may hold times without an offset.

    >>> needs_zone(pa.date32()), needs_zone(pa.timestamp("us", "UTC")), needs_zone(pa.int64())
    (True, False, False)
    """
    return is_written_time(kind) and not pa.types.is_duration(kind) and getattr(kind, "tz", None) is None


def milliseconds(column: pa.Array, unit: Unit, zone: str | None = None) -> pa.Array:
    """Convert to milliseconds, (N,) -> (N,) int64; null and NaN become null. What lies between two milliseconds belongs
    to the earlier one, but a float is rounded.

    Numbers count in `unit`. Timestamps and durations have units of their own. Texts are ISO 8601, with `T` or a space,
    with an offset or without. A time without an offset is of the clocks in `zone`, UTC where that is None, and so is
    the midnight at which a date begins. An hour that the clocks had twice is taken as the first, one that they skipped
    as if they had not (`ClockChanges` counts both).
    Raises ValueError for a text that is no time, TypeError for a column of another type (`is_time`).

    >>> milliseconds(pa.array([1_500_000, None]), "us").to_pylist()
    [1500, None]
    >>> milliseconds(pa.array(["1970-01-02", "1970-01-01T01:00:00.5Z", "1970-01-01 01:00+01:00"]), "s").to_pylist()
    [86400000, 3600500, 0]
    >>> others = pa.array(["1970-01-01 00:00:01.5 UTC", "19700101T000001Z", "1970-01-01 00:00:01,500"])
    >>> milliseconds(others, "s").to_pylist()
    [1500, 1000, 1500]
    >>> milliseconds(pa.array(["1970-01-02 01:00", "1970-01-02 00:00Z"]), "ms", "Europe/Berlin").to_pylist()
    [86400000, 86400000]
    """
    fixed, local = _read(column, unit)
    if local is None:
        return fixed
    if zone is not None:
        local = _of_clocks(local, zone)
    return local if fixed is None else pc.coalesce(fixed, local)


class ClockChanges:
    """Counts times without an offset that a clock change in `zone` makes ambiguous: `repeated` have two meanings,
    `skipped` none.

    >>> changes = ClockChanges("Europe/Berlin")
    >>> changes.add(pa.array(["2024-03-31 02:30", "2024-10-27 02:30", "2024-10-27 03:00", "2024-10-27 02:30Z"]))
    >>> changes.repeated, changes.skipped
    (1, 1)
    """

    def __init__(self, zone: str) -> None:
        self._zone = zone
        self.repeated = self.skipped = 0
        self._first: list[Any] = [None, None]

    def add(self, column: pa.Array) -> None:
        """Add the times of a column. Raises ValueError for a text that is no time."""
        _, local = _read(column, "ms")
        if local is None:
            return
        clock = local.cast(pa.timestamp("ms"))
        first, last = (
            pc.assume_timezone(clock, self._zone, ambiguous=edge, nonexistent=edge) for edge in ("earliest", "latest")
        )
        skipped = pc.not_equal(pc.local_timestamp(first), clock)
        repeated = pc.and_not(pc.not_equal(first, last), skipped)
        for place, doubtful in enumerate((repeated, skipped)):
            if self._first[place] is None and pc.any(doubtful).as_py():
                self._first[place] = clock.filter(doubtful)[0].as_py()
        self.repeated += pc.sum(repeated).as_py() or 0
        self.skipped += pc.sum(skipped).as_py() or 0

    @property
    def words(self) -> list[str]:
        """
        >>> changes = ClockChanges("Europe/Berlin")
        >>> changes.add(pa.array(["2024-03-31 02:30"]))
        >>> changes.words[0].partition(":")[0]
        '1 time lies in an hour that clocks in Europe/Berlin skipped'
        """
        sentences = []
        for count, first, what in (
            (self.repeated, self._first[0], "had twice: taken as the first of the two"),
            (self.skipped, self._first[1], "skipped: taken as if they had not"),
        ):
            if count:
                lie = "times lie" if count > 1 else "time lies"
                sentences.append(f"{count:,} {lie} in an hour that clocks in {self._zone} {what} (the first {first})")
        return sentences


_ZONE_NAME = re.compile(r":\d\d(?:[.,]\d+)? ?\[?([A-Za-z]{3}[A-Za-z_]*(?:/[A-Za-z0-9_+-]+)*)\]?$")


def zone_hint(text: object) -> str:
    """Suggest a remedy for a time that names a zone and has no offset.

    >>> zone_hint("2024-01-01T00:00:00[Europe/Berlin]")
    '; it names a zone, Europe/Berlin, and no offset: leave the name out and set event_time_zone, or write the offset'
    >>> zone_hint("1/2/2024 1:05 PM"), zone_hint(5)
    ('', '')
    """
    zone = _ZONE_NAME.search(text.strip()) if isinstance(text, str) else None
    if zone is None:
        return ""
    name = zone[1]
    return f"; it names a zone, {name}, and no offset: leave the name out and set event_time_zone, or write the offset"


_ZONE_KEY = b"event_time_zone"


def of_zone(field: pa.Field, zone: str | None) -> pa.Field:
    """A column of event times tagged with the zone of those without an offset, which `conform` reads."""
    return field if zone is None else field.with_metadata({_ZONE_KEY: zone.encode()})


def zone_of(field: pa.Field) -> str | None:
    """
    >>> zone_of(of_zone(pa.field("event_time_ms", pa.int64()), "Asia/Tokyo"))
    'Asia/Tokyo'
    """
    zone = (field.metadata or {}).get(_ZONE_KEY)
    return None if zone is None else zone.decode()


def believed(recorded_ms: np.ndarray, event_ms: np.ndarray, now_ms: int | None = None) -> np.ndarray:
    """Mask (N,) bool of plausible record timestamps; the others are ignored.

    Not that of a record without one (-1), nor 0, nor one before 2000 or after 9999 (seconds, microseconds) of a row
    whose event time lies between them, nor one that is a year before a row that is not in the future.

    >>> event = np.full(4, 1_700_000_000_000)
    >>> believed(np.array([0, 1_700_000_000, 1_700_000_000_000_000, 1_700_000_009_000]), event).tolist()
    [False, False, False, True]
    >>> believed(np.array([5, 1_262_304_000_000]), np.array([7, 1_700_000_000_000]), now_ms=1_700_000_000_000).tolist()
    [True, False]
    """
    wrong = (recorded_ms <= 0) | (_of_our_days(event_ms) & ~_of_our_days(recorded_ms))
    if now_ms is not None:
        wrong |= (event_ms - recorded_ms > YEAR_MS) & (event_ms <= now_ms)
    return ~wrong


def ahead_ms(event_ms: np.ndarray, recorded_ms: np.ndarray, now_ms: int | None = None) -> np.ndarray:
    """Lead of event times over their bounding clocks, (N,): their records' timestamps, if `believed`, and `now_ms`.
    Not at all where there is none."""
    clock = np.where(believed(recorded_ms, event_ms, now_ms), recorded_ms, LATEST_EVENT_TIME_MS)
    return event_ms - (clock if now_ms is None else np.minimum(clock, now_ms))


def in_seconds(event_ms: np.ndarray, recorded_ms: np.ndarray, now_ms: int | None = None) -> np.ndarray:
    """Mask (N,) bool of event times that are surely in seconds: in 1970 as milliseconds, and as seconds within a year
    of their record's timestamp, or of `now_ms` without one.

    >>> in_seconds(np.array([1_700_000_000, 500]), np.array([1_700_000_005_000, 1_700_000_005_000])).tolist()
    [True, False]
    """
    otherwise = -LATEST_EVENT_TIME_MS if now_ms is None or now_ms < FIRST_EVENT_TIME_MS else now_ms
    clock = np.where(_of_our_days(recorded_ms), recorded_ms, otherwise)
    early = (event_ms > 0) & (event_ms < FIRST_EVENT_TIME_MS)
    return early & (np.abs(np.where(early, event_ms, 0) * 1000 - clock) <= YEAR_MS)


def unit_hint(number: int) -> str:
    """Ask whether a number that is not a plausible time in milliseconds is one in another unit.

    >>> unit_hint(1_700_000_000_000_000), unit_hint(-5)
    (': microseconds? (as such 2023-11-14 22:13:20)', '')
    """
    for name, per_ms in (("microseconds", 1e3), ("nanoseconds", 1e6), ("seconds", 1e-3)):
        if FIRST_EVENT_TIME_MS <= (time_ms := number / per_ms) < FIRST_EVENT_TIME_MS + 100 * YEAR_MS:
            return f": {name}? (as such {datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S})"
    return ""


def _of_our_days(time_ms: np.ndarray) -> np.ndarray:
    return (time_ms >= FIRST_EVENT_TIME_MS) & (time_ms <= LATEST_EVENT_TIME_MS)


def _of_numbers(column: pa.Array, unit: Unit) -> pa.Array:
    missing = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(column.type):
        with np.errstate(invalid="ignore"):
            scaled = np.rint(values / PER_MS[unit])
        if len(lost := np.flatnonzero(~missing & ~(np.abs(scaled) < 2.0**63))):
            raise ValueError(f"{values[lost[0]]} is no time")
        return pa.array(np.where(missing, 0, scaled).astype(np.int64), mask=missing)
    whole = pa.array(column.fill_null(0)).cast(pa.int64())
    numbers = pc.multiply_checked(whole, 1000).to_numpy() if unit == "s" else whole.to_numpy() // int(PER_MS[unit])
    return pa.array(numbers, mask=missing)


def _read(column: pa.Array, unit: Unit) -> tuple[pa.Array | None, pa.Array | None]:
    """Milliseconds of the times that stand for a moment, and of those that clocks show somewhere, null where they are
    of the other kind; None where the column has none of a kind."""
    if not is_time(column.type):
        raise TypeError(f"{column.type} holds no times")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not is_written_time(column.type):
        return _of_numbers(column, unit), None
    if pa.types.is_timestamp(column.type):
        return (None, _of_timestamps(column)) if column.type.tz is None else (_of_timestamps(column), None)
    if pa.types.is_date(column.type):
        return None, _of_timestamps(column.cast(pa.timestamp("ms")))
    if pa.types.is_duration(column.type):
        return _of_numbers(column.cast(pa.int64()), column.type.unit), None
    return _of_texts(column.cast(pa.string()))


def _of_clocks(local: pa.Array, zone: str) -> pa.Array:
    """The moments at which clocks in a zone show these times, by the offset that they had before where they changed."""
    clock = local.cast(pa.timestamp("ms"))
    first = pc.assume_timezone(clock, zone, ambiguous="earliest", nonexistent="earliest")  # or just before the change
    ahead = pc.subtract(pc.local_timestamp(first).cast(pa.int64()), first.cast(pa.int64()))
    return pc.subtract(local, ahead)


def _of_timestamps(column: pa.Array) -> pa.Array:
    return _of_numbers(column.cast(pa.int64()), column.type.unit)


def _of_texts(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    try:
        return _of_iso(pc.replace_substring_regex(column, *_BEYOND_MS))
    except ValueError:
        for pattern, replacement in WRITTEN_OTHERWISE:
            column = pc.replace_substring_regex(column, pattern, replacement)
        return _of_iso(pc.replace_substring_regex(column, *_BEYOND_MS))


def _of_iso(text: pa.Array) -> tuple[pa.Array, pa.Array]:
    zoned = pc.match_substring_regex(text, WITH_ZONE)
    with_zone = pc.if_else(zoned, text, None).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    without = pc.if_else(zoned, None, text).cast(pa.timestamp("ms")).cast(pa.int64())
    return with_zone, without
