"""The event time: its column, its unit, and whether rows are in its order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import duckdb
import pyarrow as pa

from pipelines.data.findings import Finding, Rules
from pipelines.data.profile.column import ColumnProfile
from pipelines.data.profile.file import FileProfile, epoch_ms, float_step
from pipelines.data.profile.profile import Times
from pipelines.data.profile.times import WRITTEN, day, plausible, unit_words, written_as
from pipelines.data.propose.guess import Guess, named, ranked
from streaming.messages.times import LATEST_EVENT_TIME_MS, PER_MS, WITH_ZONE, Unit, milliseconds, zone_hint
from streaming.sources.tables.engine import literal
from streaming.sources.tables.in_order import MADE_FROM_MS, ROW, SECOND_MS, iso, made_times

RULES = Rules("""
warn  init.time-unusable  event time `{column}`
    {count:,} of {rows:,} {problem}it is not taken
    -> leave these rows out of the file, or fill them
warn  init.time-zone  event time `{column}`
    `{text}` is no time{hint}
warn  init.time-float32  event time `{column}`
    it is float32, which holds numbers of this size only to the nearest {step:,}: {distinct:,} times in {rows:,} rows
    -> rows of one time keep the order of the file; write it as a double, or as whole numbers
warn  init.time-name  event time `{column}`
    its name says {by_name}, and its values are {unit}, the first {first}
    -> event_time_unit: {setting} is set; see who else reads it by its name
warn  init.time-units  event time `{column}`
    {few:,} of {rows:,} rows are in {unit}, the others in {other}
    -> each is read in its own unit, in a copy; mend what writes them
warn  init.time-strays  event time `{column}`
    98 of 100 rows lie between {early} and {late}, the others reach from {first} to {last}
    -> see whether the first or last rows are strays
""")

NAMES: dict[str, float] = {
    "event_time": 6, "timestamp": 5, "time": 5, "ts": 5, "datetime": 5, "stamp": 5, "at": 3, "date": 3, "hour":
    2, "day": 2, "created": 4, "shown": 4, "served": 4, "t": 3, "epoch": 5, "unix": 4, "utc": 3, "when": 4,
}  # fmt: skip
LATER = frozenset([
    "click", "clicked", "conversion", "converted", "conv", "purchase", "order", "install", "attributed",
    "attribution", "end", "last", "first", "since", "until", "update", "updated", "delay", "feedback",
])  # fmt: skip
OTHER_TIMES = frozenset(["birth", "birthday", "birthdate", "dob", "born", "bday"])
NOT_TIMES = frozenset(["id", "ids", "uid", "uuid", "code", "key", "zip", "phone", "campaign", "sku"])
LENGTHS = frozenset([
    "duration", "dwell", "watch", "play", "length", "spent", "elapsed", "gap", "minutes", "seconds", "hours",
    "age",
])  # fmt: skip
IN_NAMES: dict[str, Unit] = {
    "ms": "ms", "millis": "ms", "milliseconds": "ms", "us": "us", "micros": "us", "ns": "ns", "nanos": "ns",
    "sec": "s", "secs": "s", "seconds": "s", "s": "s",
}  # fmt: skip
_DATES = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%m.%d.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d",
          "%d/%m/%y", "%m/%d/%y", "%y/%m/%d", "%d.%m.%y", "%d-%m-%y", "%m-%d-%y")  # fmt: skip
_CLOCKS = (" %H:%M:%S", " %H:%M", "", " %H:%M:%S.%f", " %I:%M:%S %p", " %I:%M %p")
TEXT_FORMS = (*(date + clock for date in _DATES for clock in _CLOCKS), "%d/%b/%Y:%H:%M:%S %z")
"""Forms of dates as texts. Of those that read every row, the first in whose order rows come is taken, else the
first."""

FIRST = {"%d": "day first", "%m": "month first", "%Y": "year first", "%y": "year first"}
YEAR_1000_MS = -30_610_224_000_000
"""Years of two digits are none of %Y, which would read 24 as the year 24."""

IN_UTC = ", without an offset: taken as UTC (event_time_zone names another zone)"
UNNAMED_DISTINCT = 100
IN_ORDER = 0.9
"""A column that nothing names a time is one where rows come in its order."""

MOST_CANDIDATES = 12
UNNAMED, NAMED_LEAST = 0.1, 0.2
DATED, ORDERED, FINE = 5.0, 8.0, 4.0
"""Points of dates of our days, of rows that come in the column's order, of a distinct value in every row."""
SKEWED = 0.1
"""The middle 98 % of rows in less than this share of the time."""


class TimeReading(NamedTuple):
    """Reading of a column as times: `sql` gives ms since 1970, int64. `as_is`: a recorded source reads the column by
    itself, numbers in `unit`. `form`: it reads dates that are written so, as strptime has it."""

    sql: str
    low_ms: int
    high_ms: int
    why: str
    unit: Unit = "ms"
    as_is: bool = False
    form: str | None = None
    findings: tuple[Finding, ...] = ()


class EventTimeColumn(NamedTuple):
    """The column that was taken, None where rows are a second apart, and how it is read."""

    guess: Guess
    reading: TimeReading

    @property
    def sql(self) -> str:
        return self.reading.sql


class Candidate(NamedTuple):
    """A column that may be the event time. `order`: 1 where rows come in its order, 0 where they come in any."""

    column: ColumnProfile
    reading: TimeReading
    order: float
    points: float

    @property
    def words(self) -> str:
        return f"{self.column.name} ({self.column.distinct:,} distinct, {order_words(self.order)})"


def event_time(file: FileProfile, this_year: int, named_one: str | None) -> tuple[EventTimeColumn, list[Finding]]:
    """Find the column of the event time, or generate times a second apart. `named_one`: by the caller."""
    candidates = _candidates(file, this_year + 1, named_one)
    if candidates:
        (best, *others) = candidates
        reading = best.reading
        why = f"{reading.why}, {day(reading.low_ms)} to {day(reading.high_ms)}, {order_words(best.order)}"
        guess = Guess(best.column.name, why, others[0].words if others else "the order of the file")
        return EventTimeColumn(guess, reading), [*reading.findings, *_coarse(best.column)]
    why = (
        f"no column is one: rows are {SECOND_MS // 1000} s apart, in the order of the file; hours and days say nothing"
    )
    last_ms = MADE_FROM_MS + (file.rows - 1) * SECOND_MS
    made = EventTimeColumn(Guess(None, why), TimeReading(made_times(None, None), MADE_FROM_MS, last_ms, why))
    return made, list(_unusable(file, this_year + 1))


def _unusable(file: FileProfile, last_year: int) -> Iterator[Finding]:
    """Columns that would be the event time but for some of their values."""
    for column in file.columns.values():
        about = {"column": column.name, "rows": file.rows}
        if column.nulls and column.nulls < file.rows and _score(replace(column, nulls=0), last_year):
            yield RULES("init.time-unusable", **about, count=column.nulls, problem="rows have no time, so ")
        if column.kind == "text" and _score(column, last_year):
            (text,) = file.ask(f"any_value({column.sql})")
            if hint := zone_hint(text):
                yield RULES("init.time-zone", column=column.name, text=text, hint=hint)
        if column.infinite and column.kind == "time":
            problem = "times are infinite, or at the edge of 64 bits: "
            yield RULES("init.time-unusable", **about, count=column.infinite, problem=problem)


def another_time(column: ColumnProfile, last_year: int) -> bool:
    """True for a column that holds times and is not the event time, by its name and its values: a date, a moment."""
    if column.kind == "time":
        return True
    if not column.whole or column.low is None or not named(column, NAMES):
        return False
    edges = int(column.low), int(column.high)
    if written_as(Times(*edges, "ms"), last_year) is not None:
        return True
    return all(unit_of(edge, last_year) is not None for edge in edges)


def _candidates(file: FileProfile, last_year: int, named_one: str | None) -> list[Candidate]:
    """Columns that can be read as times, the best first: by name, by dates of our days, by whether rows come in their
    order, and by how finely they tell rows apart."""
    columns = file.columns.values() if named_one is None else [file.columns[named_one]]
    candidates = []
    for column in ranked(columns, lambda each: 1.0 if named_one else _score(each, last_year))[:MOST_CANDIDATES]:
        if column.infinite or (column.low is None and column.kind != "text"):
            continue
        reading = _read(file, column, last_year)
        if reading is None:
            continue
        order, name = _order(file, reading.sql), _score(column, last_year)
        if not named_one and name < NAMED_LEAST and order < IN_ORDER:
            continue
        dated = DATED if plausible(reading.low_ms, last_year) and plausible(reading.high_ms, last_year) else 0.0
        fine = FINE * math.log(max(2, column.distinct or 0)) / math.log(max(2, column.rows))
        candidates.append(Candidate(column, reading, order, name + dated + ORDERED * order + fine))
    return sorted(candidates, key=lambda candidate: -candidate.points)


def _order(file: FileProfile, sql: str) -> float:
    """Score of the order of rows by a time: of steps from row to row, those forward less those back; or how their place
    goes along with it, where streams were laid side by side."""
    forward, back, along = file.engine.row(
        "SELECT count(*) FILTER (WHERE t > before), count(*) FILTER (WHERE t < before), corr(t, place) "
        "FROM (SELECT t, place, "
        f"lag(t) OVER () AS before FROM (SELECT {sql} AS t, {ROW} AS place FROM {file.relation}))"
    )
    along = 0.0 if along is None or math.isnan(along) else along
    return max(0.0, along, (forward - back) / max(1, forward + back))


def order_words(order: float) -> str:
    """
    >>> [order_words(order) for order in (1.0, 0.95, 0.3)]
    ['ascending', 'nearly ascending', 'not ascending']
    """
    return "ascending" if order == 1 else "nearly ascending" if order >= IN_ORDER else "not ascending"


def _coarse(column: ColumnProfile) -> Iterator[Finding]:
    """float32 holds 24 bits of a number."""
    if column.type == "FLOAT" and column.high is not None and (step := float_step(column)) > 1:
        yield RULES("init.time-float32", column=column.name, step=step, distinct=column.distinct, rows=column.rows)


def _score(column: ColumnProfile, last_year: int) -> float:
    """0 for what is no time by its name, or has nulls; a time of something that comes after the impression is the last
    to be taken, and so are numbers without such a name that could be times of our days."""
    if column.nulls or column.infinite or column.words & LENGTHS or (column.distinct or 0) < 2:
        return 0.0
    points = named(column, NAMES)
    if column.words & OTHER_TIMES or (column.words & NOT_TIMES and not points):
        return 0.0
    points += 1 if column.kind == "time" else 0
    if not points and column.whole and column.is_number and (column.distinct or 0) > UNNAMED_DISTINCT:
        edges = {unit_of(column.low, last_year), unit_of(column.high, last_year)}
        points = UNNAMED if len(edges) == 1 and None not in edges else 0
    if column.kind not in ("int", "float", "text", "time"):
        return 0.0
    after = bool(column.words & LATER) and column.name.lower() not in NAMES
    return max(NAMED_LEAST, points - 6) if points and after else points


def _read(file: FileProfile, column: ColumnProfile, last_year: int) -> TimeReading | None:
    if column.kind == "time":
        why = column.type.lower() + (IN_UTC if "TIMESTAMPTZ" not in column.type and "ZONE" not in column.type else "")
        return TimeReading(epoch_ms(column.sql, column.type), int(column.low), int(column.high), why, as_is=True)
    return _text(file, column) if column.kind == "text" else _number(file, column, last_year)


def _number(file: FileProfile, column: ColumnProfile, last_year: int) -> TimeReading | None:
    low, high, x = column.low, column.high, column.sql
    if column.whole and (written := written_as(Times(int(low), int(high), "ms"), last_year)) is not None:
        form = WRITTEN[written]
        sql = f"epoch_ms(strptime(({x}::BIGINT)::VARCHAR, {literal(form)}))"
        first, last = file.ask(f"min({sql}), max({sql})")
        return TimeReading(sql, first, last, f"dates written as {written}{IN_UTC}", form=form)
    of_low, of_high = unit_of(low, last_year), unit_of(high, last_year)
    by_name = next((IN_NAMES[word] for word in column.words if word in IN_NAMES), None)
    if of_low is None or of_high is None:
        unit = by_name or "s"
        if low < 0 or named(column, NAMES) < 5 or _ms(high, unit) > LATEST_EVENT_TIME_MS:
            return None
        why = f"counts from the start of a log, taken as {unit_words(unit)}"
        return TimeReading(_in_ms(x, unit, column), _ms(low, unit), _ms(high, unit), why, unit, as_is=True)
    about = {"column": column.name, "unit": unit_words(of_low)}
    if of_low == of_high:
        findings: tuple[Finding, ...] = ()
        if by_name is not None and by_name != of_low:
            about |= {"by_name": unit_words(by_name), "first": day(_ms(low, of_low)), "setting": of_low}
            findings = (RULES("init.time-name", **about),)
        span = _ms(low, of_low), _ms(high, of_low)
        return TimeReading(_in_ms(x, of_low, column), *span, unit_words(of_low), of_low, as_is=True, findings=findings)
    edge = 10 ** (len(str(int(low))) + 1)
    sql = f"CASE WHEN {x} < {edge} THEN {_in_ms(x, of_low, column)} ELSE {_in_ms(x, of_high, column)} END"
    few, first, last = file.ask(f"count(*) FILTER (WHERE {x} < {edge}), min({sql}), max({sql})")
    units = RULES("init.time-units", **about, other=unit_words(of_high), few=few, rows=column.rows)
    return TimeReading(sql, first, last, "of two units", findings=(units,))


def unit_of(value: float, last_year: int) -> Unit | None:
    """The unit in which a number is a time of our days.

    >>> unit_of(1_700_000_000, 2027), unit_of(1_700_000_000_000, 2027), unit_of(17, 2027)
    ('s', 'ms', None)
    """
    return next((unit for unit in PER_MS if plausible(_ms(value, unit), last_year)), None)


def _ms(value: float, unit: Unit) -> int:
    return round(value / PER_MS[unit])


def _in_ms(sql: str, unit: Unit, column: ColumnProfile) -> str:
    if column.kind == "float":
        return f"round({sql}::DOUBLE * {1 / PER_MS[unit]:g})::BIGINT"
    return f"{sql}::BIGINT * 1000" if unit == "s" else f"{sql}::BIGINT // {int(PER_MS[unit])}"


def _text(file: FileProfile, column: ColumnProfile) -> TimeReading | None:
    """ISO 8601, or another usual form that every value has."""
    x = column.sql
    texts = file.engine.arrow(f"SELECT {x} AS x FROM {file.relation} WHERE {_some(column)}")["x"]
    try:
        milliseconds(texts.combine_chunks().cast(pa.string()), "ms")
        sql = f"epoch_ms({iso(x)}::TIMESTAMPTZ)"
        naive = f"count(*) FILTER (WHERE NOT regexp_matches({iso(x)}, {literal(WITH_ZONE)}))"
        low, high, of_no_zone = file.ask(f"min({sql}), max({sql}), {naive}")
        return TimeReading(sql, low, high, f"ISO 8601 text{IN_UTC if of_no_zone else ''}", as_is=True)
    except (ValueError, duckdb.Error):
        return _dates(file, column)


def _some(column: ColumnProfile) -> str:
    """About a thousand rows, as SQL."""
    return f"{ROW} % {max(1, column.rows // 1000)} = 0"


def _dates(file: FileProfile, column: ColumnProfile) -> TimeReading | None:
    """One of TEXT_FORMS that every value has, and what else reads every value."""
    sqls = {form: f"epoch_ms(try_strptime({column.sql}, {literal(form)}))" for form in TEXT_FORMS}
    readings: list[TimeReading] = []
    for where in (f"WHERE {_some(column)}", ""):  # most fail early
        count, *values = file.ask(
            f"count(*), {', '.join(f'count({x}), min({x}), max({x})' for x in sqls.values())}", where
        )
        each = zip(sqls.items(), values[::3], values[1::3], values[2::3], strict=True)
        readings = [
            TimeReading(sql, low, high, "", form=form)
            for (form, sql), known, low, high in each
            if known == count and low >= YEAR_1000_MS
        ]
        sqls = {str(reading.form): reading.sql for reading in readings}
        if not readings:
            return None
    best, why = readings[0], ""
    if len(readings) > 1:
        orders = [_order(file, each.sql) for each in readings]
        level = next((level for level in (1.0, IN_ORDER) if max(orders) >= level), 0.0)
        (best, *as_well) = (each for each, order in zip(readings, orders, strict=True) if order >= level)
        decided = "" if as_well else ", but the rows are not in its order"
        others = " and ".join(f"{FIRST[str(r.form)[:2]]}, {r.form}," for r in readings if r != best)
        why = f" ({FIRST[str(best.form)[:2]]}; {others} would read every row, too{decided}: event_time_form says which)"
    why += "" if "%z" in str(best.form) else IN_UTC
    return best._replace(why=f"text written as {best.form}{why}")


def order(file: FileProfile, time: EventTimeColumn) -> tuple[int, list[Finding]]:
    """Number of rows earlier than the row before, and other oddities of the times."""
    back, early, late = file.engine.row(
        f"SELECT count(*) FILTER (WHERE t < before), approx_quantile(t, 0.01), approx_quantile(t, 0.99) "
        f"FROM (SELECT t, lag(t) OVER () AS before FROM (SELECT {time.sql} AS t FROM {file.relation}))"
    )
    low, high = time.reading.low_ms, time.reading.high_ms
    if time.guess.column is None or late - early >= SKEWED * (high - low):
        return back, []
    days = {"early": day(int(early)), "late": day(int(late)), "first": day(low), "last": day(high)}
    return back, [RULES("init.time-strays", column=time.guess.column, **days)]
