"""Event times as people write them: dates as one number, units, and whether they are of our days."""

from __future__ import annotations

from datetime import UTC, datetime

from pipelines.data.profile.profile import Times
from streaming.messages.times import PER_MS, Unit

FIRST_YEAR = 2000
WRITTEN = {
    "YYMMDD": "%y%m%d",
    "YYMMDDHH": "%y%m%d%H",
    "YYYYMMDD": "%Y%m%d",
    "YYYYMMDDHH": "%Y%m%d%H",
    "YYYYMMDDHHMM": "%Y%m%d%H%M",
    "YYYYMMDDHHMMSS": "%Y%m%d%H%M%S",
    "YYYYMMDDHHMMSSmmm": "%Y%m%d%H%M%S%g",
}
"""Dates that people write as one number, by how they call them; as DuckDB's strptime has them, whose %g are
milliseconds."""


def in_python(form: str) -> str:
    """A date format in the notation of Python's strptime.

    >>> in_python("%H%M%S%g")
    '%H%M%S%f'
    """
    return form.replace("%g", "%f")


def day(time_ms: int) -> str:
    """
    >>> day(1_700_000_000_000), day(10**17)
    ('2023-11-14 22:13', 'after the year 9999')
    """
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "after the year 9999" if time_ms > 0 else "before the year 1"


def written_as(seen: Times, last_year: int) -> str | None:
    """Date format of times written as one number, if both the lowest and the highest can be read that way.

    >>> hours = Times(14102100 * 1000, 14103023 * 1000, "s")
    >>> written_as(hours, 2027), written_as(Times(0, 86_400_000, "s"), 2027)
    ('YYMMDDHH', None)
    """
    if seen.unit is None:
        return None
    numbers = [as_written(time_ms, seen.unit) for time_ms in (seen.lowest_ms, seen.highest_ms)]
    for name, form in WRITTEN.items():
        try:
            if all(
                len(str(n)) == len(name) and FIRST_YEAR <= datetime.strptime(str(n), in_python(form)).year <= last_year
                for n in numbers
            ):
                return name
        except ValueError:
            continue
    return None


def other_unit(seen: Times, last_year: int) -> Unit | None:
    """The unit in which the times would be of our days, where they are not in the one they were read in.

    >>> other_unit(Times(1_700_000_000, 1_700_086_400, "ms"), 2027), other_unit(Times(0, 9, "ms"), 2027)
    ('s', None)
    """
    for unit in PER_MS:
        if seen.unit is not None and unit != seen.unit:
            times = (read_in(time_ms, seen.unit, unit) for time_ms in (seen.lowest_ms, seen.highest_ms))
            if all(plausible(time_ms, last_year) for time_ms in times):
                return unit
    return None


def plausible(time_ms: int, last_year: int) -> bool:
    """True for a time of our days.

    >>> plausible(1_700_000_000_000, 2027), plausible(1_700_000_000, 2027)
    (True, False)
    """
    first = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC).timestamp() * 1000
    return first <= time_ms < datetime(last_year + 1, 1, 1, tzinfo=UTC).timestamp() * 1000


def as_written(time_ms: int, unit: Unit | None) -> int:
    """Time as the file writes it."""
    return round(time_ms * PER_MS[unit or "ms"])


def read_in(time_ms: int, read_as: Unit | None, unit: Unit) -> int:
    """A time that was read in one unit, had it been read in another."""
    return round(as_written(time_ms, read_as) / PER_MS[unit])


def unit_words(unit: Unit | None) -> str:
    return {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", None: "times"}[unit]
