"""Whether event times are what they are said to be: their range, and the unit in which they would make sense."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

from pipelines.core.config.sections import Generated, Recorded
from pipelines.data.checks.sample import Sample, TimeSeen
from pipelines.data.profile.finding import Finding, stop, warn
from streaming.messages.times import PER_MS, Unit
from streaming.sources.pacer import Pacer

FIRST_YEAR = 2000
BURST_S = 5.0
SMOOTH_S = 0.25
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
    """A form as Python's strptime has it.

    >>> in_python("%H%M%S%g")
    '%H%M%S%f'
    """
    return form.replace("%g", "%f")


def judge_times(sample: Sample, this_year: int, where: str, unit_setting: str | None) -> Iterator[Finding]:
    """`where`: the column of the time. `unit_setting` says in what unit it is; None: it has to be in milliseconds."""
    seen = sample.time
    if seen is None:
        return
    last_year = this_year + 1
    if plausible(seen.lowest_ms, last_year) and plausible(seen.highest_ms, last_year):
        if seen.lowest_ms == seen.highest_ms and (sample.rows or 0) > 1:
            yield warn(where, f"every row happened at {day(seen.lowest_ms)}", "a stream needs the times of its rows")
        return
    shown = f"times go from {day(seen.lowest_ms)} to {day(seen.highest_ms)}"
    if (kind := written_as(seen, last_year)) is not None:
        number = _number(seen.lowest_ms, seen.unit)
        yield stop(
            where,
            f"{number} looks like a date written as {kind}, and is read as a count of {_words(seen.unit)}: {shown}",
            "make a time of it first (pandas: "
            f'`pd.to_datetime(column.astype(str), format="{in_python(WRITTEN[kind])}")`)',
        )
    elif (unit := other_unit(seen, last_year)) is not None:
        yield stop(
            where,
            f"read as {_words(seen.unit)}, {shown}; as {_words(unit)} they would be of "
            f"{day(_as(seen.lowest_ms, seen.unit, unit))[:10]} to {day(_as(seen.highest_ms, seen.unit, unit))[:10]}",
            f"set {unit_setting}: {unit}" if unit_setting else "send milliseconds since 1970",
        )
    else:
        yield warn(
            where,
            f"{shown}; dates of {FIRST_YEAR} to {last_year} are usual",
            "see that this is the column of the time, and its unit; times that count from the start of a log are fine",
        )


def judge_pace(source: Generated | Recorded) -> Iterator[Finding]:
    """Whether rows are sent a few at a time, or many seconds' worth at once."""
    every_s = Pacer(source.rate).seconds_of(source.chunk_rows)
    if every_s > BURST_S:
        smooth = max(1, math.floor(source.chunk_rows * SMOOTH_S / every_s))
        yield warn(
            "source.rate",
            f"{source.rate} rows a second are sent {source.chunk_rows:,} at a time, one burst every {every_s:,.0f} s",
            f"set source.chunk_rows={smooth} before the first start; a run that was begun keeps its own",
        )


def day(time_ms: int) -> str:
    """
    >>> day(1_700_000_000_000), day(10**17)
    ('2023-11-14 22:13', 'after the year 9999')
    """
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "after the year 9999" if time_ms > 0 else "before the year 1"


def written_as(seen: TimeSeen, last_year: int) -> str | None:
    """How a date is written as one number, where both the lowest and the highest time can be read so.

    >>> hours = TimeSeen(14102100 * 1000, 14103023 * 1000, "s")
    >>> written_as(hours, 2027), written_as(TimeSeen(0, 86_400_000, "s"), 2027)
    ('YYMMDDHH', None)
    """
    if seen.unit is None:
        return None
    numbers = [_number(time_ms, seen.unit) for time_ms in (seen.lowest_ms, seen.highest_ms)]
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


def other_unit(seen: TimeSeen, last_year: int) -> Unit | None:
    """The unit in which the times would be of our days, where they are not in the one they were read in.

    >>> other_unit(TimeSeen(1_700_000_000, 1_700_086_400, "ms"), 2027), other_unit(TimeSeen(0, 9, "ms"), 2027)
    ('s', None)
    """
    for unit in PER_MS:
        if seen.unit is not None and unit != seen.unit:
            times = (_as(time_ms, seen.unit, unit) for time_ms in (seen.lowest_ms, seen.highest_ms))
            if all(plausible(time_ms, last_year) for time_ms in times):
                return unit
    return None


def plausible(time_ms: int, last_year: int) -> bool:
    """Whether a time is of our days.

    >>> plausible(1_700_000_000_000, 2027), plausible(1_700_000_000, 2027)
    (True, False)
    """
    first = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC).timestamp() * 1000
    return first <= time_ms < datetime(last_year + 1, 1, 1, tzinfo=UTC).timestamp() * 1000


def _number(time_ms: int, unit: Unit | None) -> int:
    """As the file has it."""
    return round(time_ms * PER_MS[unit or "ms"])


def _as(time_ms: int, read_as: Unit | None, unit: Unit) -> int:
    """A time that was read in one unit, had it been read in another."""
    return round(_number(time_ms, read_as) / PER_MS[unit])


def _words(unit: Unit | None) -> str:
    return {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", None: "times"}[unit]
