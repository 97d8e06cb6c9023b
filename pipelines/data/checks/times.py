"""Rules of event times: their range, the unit in which they would make sense, and how many are sent at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

from pipelines.core.config.sections import FollowedLake, Recorded
from pipelines.core.config.settings import Config
from pipelines.data.findings import Finding, Rules
from pipelines.data.profile.profile import Profile
from pipelines.data.profile.times import (
    FIRST_YEAR,
    WRITTEN,
    as_written,
    day,
    in_python,
    other_unit,
    plausible,
    read_in,
    unit_words,
    written_as,
)
from streaming.sources.pacer import Pacer

RULES = Rules("""
warn  time.one  {where}
    every row happened at {day}
    -> a stream needs the times of its rows
stop  time.written  {where}
    {number} looks like a date written as {form}, and is read as a count of {unit}: times go from {first} to {last}
    -> make a time of it first (pandas: `pd.to_datetime(column.astype(str), format="{python}")`)
stop  time.unit  {where}
    read as {unit}, times go from {first} to {last}; as {other} they would be of {other_first} to {other_last}
    -> {setting}
warn  time.unusual  {where}
    times go from {first} to {last}; dates of {first_year} to {last_year} are usual
    -> see that this is the column of the time, and its unit; times that count from the start of a log are fine
warn  source.burst  source.rate
    {rate} rows a second are sent {rows:,} at a time, one burst every {seconds:,.0f} s
    -> set source.chunk_rows={smooth} before the first start; a run that was begun keeps its own
""")

BURST_S = 5.0
SMOOTH_S = 0.25


def judge_times(config: Config, profile: Profile) -> Iterator[Finding]:
    seen, source, last_year = profile.time, config.source, datetime.now(UTC).year + 1
    if seen is None:
        return
    where = f"event time `{source.event_time if isinstance(source, Recorded) else 'event_time_ms'}`"
    if plausible(seen.lowest_ms, last_year) and plausible(seen.highest_ms, last_year):
        if seen.lowest_ms == seen.highest_ms and (profile.rows or 0) > 1:
            yield RULES("time.one", where=where, day=day(seen.lowest_ms))
        return
    about = {"where": where, "first": day(seen.lowest_ms), "last": day(seen.highest_ms), "unit": unit_words(seen.unit)}
    if (form := written_as(seen, last_year)) is not None:
        number, python = as_written(seen.lowest_ms, seen.unit), in_python(WRITTEN[form])
        yield RULES("time.written", **about, number=number, form=form, python=python)
    elif (unit := other_unit(seen, last_year)) is not None:
        first, last = (day(read_in(at, seen.unit, unit))[:10] for at in (seen.lowest_ms, seen.highest_ms))
        recorded = isinstance(source, Recorded)
        setting = f"set source.event_time_unit: {unit}" if recorded else "send milliseconds since 1970"
        others = {"other": unit_words(unit), "other_first": first, "other_last": last}
        yield RULES("time.unit", **about, **others, setting=setting)
    else:
        yield RULES("time.unusual", **about, first_year=FIRST_YEAR, last_year=last_year)


def judge_pace(config: Config) -> Iterator[Finding]:
    """Name rows that are sent many seconds' worth at once."""
    source = config.source
    if source is None or isinstance(source, FollowedLake):
        return
    every_s = Pacer(source.rate).seconds_of(source.chunk_rows)
    if every_s > BURST_S:
        smooth = max(1, math.floor(source.chunk_rows * SMOOTH_S / every_s))
        yield RULES("source.burst", rate=source.rate, rows=source.chunk_rows, seconds=every_s, smooth=smooth)
