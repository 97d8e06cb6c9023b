"""The event time: its column, its unit, and whether rows are in its order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from pipelines.data.checks.sample import TimeSeen
from pipelines.data.checks.times import WRITTEN, day, plausible, written_as
from pipelines.data.profile.finding import Finding, warn
from pipelines.data.propose.columns import Seen, epoch_ms, float_step
from pipelines.data.propose.guess import Guess, named, ranked
from streaming.messages.times import LATEST_EVENT_TIME_MS, PER_MS, WITH_ZONE, Unit, milliseconds, zone_hint
from streaming.sources.tables.engine import Engine, literal, parquet
from streaming.sources.tables.in_order import MADE_FROM_MS, ROW, SECOND_MS, iso, made_times

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
"""Of the forms that read every row, the first that the rows come in the order of is taken, else the first."""

FIRST = {"%d": "day first", "%m": "month first", "%Y": "year first", "%y": "year first"}
YEAR_1000_MS = -30_610_224_000_000
"""Years of two digits are none of %Y, which would read 24 as the year 24."""

IN_UTC = ", without an offset: taken as UTC (event_time_zone names another zone)"
UNIT_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
UNNAMED_DISTINCT = 100
IN_ORDER = 0.9
"""A column that nothing names a time is one where rows come in its order."""

MOST_CANDIDATES = 12
UNNAMED, NAMED_LEAST = 0.1, 0.2
DATED, ORDERED, FINE = 5.0, 8.0, 4.0
"""Points of dates of our days, of rows that come in the column's order, of a distinct value in every row."""
SKEWED = 0.1
"""The middle 98 % of rows in less than this share of the time."""


class EventTime(NamedTuple):
    """`sql` gives ms since 1970, int64. `as_is`: a recorded source reads the column by itself, numbers in `unit`.
    `form`: it reads dates that are written so, as strptime has it."""

    guess: Guess
    sql: str
    unit: Unit
    as_is: bool
    low_ms: int
    high_ms: int
    form: str | None = None


Read = tuple[str, Unit, bool, int, int, str, list[Finding], str | None]


class Candidate(NamedTuple):
    """A column that may be the event time. `order`: 1 where rows come in its order, 0 where they come in any."""

    column: Seen
    read: Read
    order: float
    points: float

    @property
    def words(self) -> str:
        return f"{self.column.name} ({self.column.distinct:,} distinct, {order_words(self.order)})"


def event_time(
    engine: Engine, path: Path, columns: Mapping[str, Seen], this_year: int, asked: str | None
) -> tuple[EventTime, list[Finding]]:
    """The column of the event time, or rows a second apart where there is none. `asked`: the column that the caller
    named."""
    named_ones = [columns[asked]] if asked is not None else columns.values()
    candidates = _candidates(engine, path, named_ones, this_year + 1, asked is not None)
    rejected: list[Finding] = []
    if candidates:
        (best, *others) = candidates
        sql, unit, as_is, low, high, why, wrong, form = best.read
        why = f"{why}, {day(low)} to {day(high)}, {order_words(best.order)}"
        guess = Guess(best.column.name, why, others[0].words if others else "the order of the file")
        return EventTime(guess, sql, unit, as_is, low, high, form), [*wrong, *_coarse(best.column)]
    rows = next(iter(columns.values())).rows
    for column in columns.values():
        if column.nulls and column.nulls < rows and _score(replace(column, nulls=0), this_year + 1):
            seen = f"{column.nulls:,} of {rows:,} rows have no time, so it is not taken"
            rejected.append(warn(f"event time `{column.name}`", seen, "leave these rows out of the file, or fill them"))
        if column.kind == "text" and _score(column, this_year + 1):
            (text,) = engine.row(f"SELECT any_value({column.sql}) FROM {parquet(path)}")
            if hint := zone_hint(text):
                rejected.append(warn(f"event time `{column.name}`", f"`{text}` is no time{hint}"))
        if column.infinite and column.kind == "time":
            seen = f"{column.infinite:,} of {rows:,} times are infinite, or at the edge of 64 bits: it is not taken"
            rejected.append(warn(f"event time `{column.name}`", seen, "leave these rows out of the file, or fill them"))
    why = (
        f"no column is one: rows are {SECOND_MS // 1000} s apart, in the order of the file; hours and days say nothing"
    )
    sql = made_times(None, None)
    made = EventTime(Guess(None, why), sql, "ms", False, MADE_FROM_MS, MADE_FROM_MS + (rows - 1) * SECOND_MS)
    return made, rejected


def another_time(column: Seen, last_year: int) -> bool:
    """Whether a column that is not the event time holds times, by its name and its values: a date, a moment."""
    if column.kind == "time":
        return True
    if not column.whole or column.low is None or column.high is None or not named(column, NAMES):
        return False
    low, high = int(column.low), int(column.high)
    written = written_as(TimeSeen(low, high, "ms"), last_year) is not None
    return written or (unit_of(low, last_year) is not None and unit_of(high, last_year) is not None)


def _candidates(engine: Engine, path: Path, columns: Iterable[Seen], last_year: int, asked: bool) -> list[Candidate]:
    """Columns that can be read as times, the best first: by name, by dates of our days, by whether rows come in their
    order, and by how finely they tell rows apart."""
    found = []
    for column in ranked(columns, lambda each: 1.0 if asked else _score(each, last_year))[:MOST_CANDIDATES]:
        if column.infinite or (column.low is None and column.kind != "text"):
            continue
        read = _read(engine, path, column, last_year)
        if read is None:
            continue
        order = _order(engine, path, read[0])
        name = _score(column, last_year)
        if not asked and name < NAMED_LEAST and order < IN_ORDER:
            continue
        dated = DATED if plausible(read[3], last_year) and plausible(read[4], last_year) else 0.0
        fine = FINE * math.log(max(2, column.distinct)) / math.log(max(2, column.rows))
        found.append(Candidate(column, read, order, name + dated + ORDERED * order + fine))
    return sorted(found, key=lambda candidate: -candidate.points)


def _order(engine: Engine, path: Path, sql: str) -> float:
    """How far rows come in the order of a time: of steps from row to row, those forward less those back; or how their
    place goes along with it, where streams were laid side by side."""
    forward, back, along = engine.row(
        f"SELECT count_if(t > before), count_if(t < before), corr(t, place) FROM (SELECT t, place, "
        f"lag(t) OVER () AS before FROM (SELECT {sql} AS t, {ROW} AS place FROM {parquet(path)}))"
    )
    along = 0.0 if along is None or math.isnan(along) else along
    return max(0.0, along, (forward - back) / max(1, forward + back))


def order_words(order: float) -> str:
    """
    >>> [order_words(order) for order in (1.0, 0.95, 0.3)]
    ['ascending', 'nearly ascending', 'not ascending']
    """
    return "ascending" if order == 1 else "nearly ascending" if order >= IN_ORDER else "not ascending"


def _coarse(column: Seen) -> list[Finding]:
    """float32 holds 24 bits of a number."""
    if column.type != "FLOAT" or column.high is None or (step := float_step(column)) <= 1:
        return []
    seen = (
        f"it is float32, which holds numbers of this size only to the nearest {step:,}: {column.distinct:,} times in "
    )
    remedy = "rows of one time keep the order of the file; write it as a double, or as whole numbers"
    return [warn(f"event time `{column.name}`", f"{seen}{column.rows:,} rows", remedy)]


def _score(column: Seen, last_year: int) -> float:
    """0 for what is no time by its name, or has nulls; a time of something that comes after the impression is the last
    to be taken, and so are numbers without such a name that could be times of our days."""
    if column.nulls or column.infinite or column.words & LENGTHS or column.distinct < 2:
        return 0.0
    points = named(column, NAMES)
    if column.words & OTHER_TIMES or (column.words & NOT_TIMES and not points):
        return 0.0
    points += 1 if column.kind == "time" else 0
    if not points and column.whole and column.is_number and column.distinct > UNNAMED_DISTINCT:
        assert column.low is not None
        assert column.high is not None
        edges = {unit_of(column.low, last_year), unit_of(column.high, last_year)}
        points = UNNAMED if len(edges) == 1 and None not in edges else 0
    if column.kind not in ("int", "float", "text", "time"):
        return 0.0
    after = bool(column.words & LATER) and column.name.lower() not in NAMES
    return max(NAMED_LEAST, points - 6) if points and after else points


def _read(engine: Engine, path: Path, column: Seen, last_year: int) -> Read | None:
    if column.kind == "time":
        assert column.low is not None
        assert column.high is not None
        low, high = int(column.low), int(column.high)
        why = column.type.lower() + (IN_UTC if "TIMESTAMPTZ" not in column.type and "ZONE" not in column.type else "")
        return epoch_ms(column.sql, column.type), "ms", True, low, high, why, [], None
    if column.kind == "text":
        return _text(engine, path, column)
    return _number(engine, path, column, last_year)


def _number(engine: Engine, path: Path, column: Seen, last_year: int) -> Read | None:
    assert column.low is not None
    assert column.high is not None
    low, high, x = column.low, column.high, column.sql
    if column.whole and (form := written_as(TimeSeen(int(low), int(high), "ms"), last_year)) is not None:
        sql = f"epoch_ms(strptime(({x}::BIGINT)::VARCHAR, {literal(WRITTEN[form])}))"
        return sql, "ms", False, *_edges(engine, path, sql), f"dates written as {form}{IN_UTC}", [], WRITTEN[form]
    of_low, of_high = unit_of(low, last_year), unit_of(high, last_year)
    where, said = f"event time `{column.name}`", next((IN_NAMES[w] for w in column.words if w in IN_NAMES), None)
    wrong: list[Finding] = []
    if of_low is not None and of_high is not None:
        if of_low == of_high:
            if said is not None and said != of_low:
                first = day(_ms(low, of_low))
                seen = f"its name says {UNIT_WORDS[said]}, and its values are {UNIT_WORDS[of_low]}, the first {first}"
                wrong.append(warn(where, seen, f"event_time_unit: {of_low} is set; see who else reads it by its name"))
            sql = _in_ms(x, of_low, column)
            return sql, of_low, True, _ms(low, of_low), _ms(high, of_low), UNIT_WORDS[of_low], wrong, None
        edge = 10 ** (len(str(int(low))) + 1)
        few = engine.row(f"SELECT count_if({x} < {edge}) FROM {parquet(path)}")[0]
        seen = f"{few:,} of {column.rows:,} rows are in {UNIT_WORDS[of_low]}, the others in {UNIT_WORDS[of_high]}"
        wrong.append(warn(where, seen, "each is read in its own unit, in a copy; mend what writes them"))
        sql = f"CASE WHEN {x} < {edge} THEN {_in_ms(x, of_low, column)} ELSE {_in_ms(x, of_high, column)} END"
        return sql, "ms", False, *_edges(engine, path, sql), "of two units", wrong, None
    unit = said or "s"
    if low < 0 or named(column, NAMES) < 5 or _ms(high, unit) > LATEST_EVENT_TIME_MS:
        return None
    sql = _in_ms(x, unit, column)
    why = f"counts from the start of a log, taken as {UNIT_WORDS[unit]}"
    return sql, unit, True, _ms(low, unit), _ms(high, unit), why, wrong, None


def unit_of(value: float, last_year: int) -> Unit | None:
    """The unit in which a number is a time of our days.

    >>> unit_of(1_700_000_000, 2027), unit_of(1_700_000_000_000, 2027), unit_of(17, 2027)
    ('s', 'ms', None)
    """
    return next((unit for unit in PER_MS if plausible(_ms(value, unit), last_year)), None)


def _ms(value: float, unit: Unit) -> int:
    return round(value / PER_MS[unit])


def _in_ms(sql: str, unit: Unit, column: Seen) -> str:
    if column.kind == "float":
        return f"round({sql}::DOUBLE * {1 / PER_MS[unit]:g})::BIGINT"
    return f"{sql}::BIGINT * 1000" if unit == "s" else f"{sql}::BIGINT // {int(PER_MS[unit])}"


def _text(engine: Engine, path: Path, column: Seen) -> Read | None:
    """ISO 8601, or another usual form that every value has."""
    x = column.sql
    texts = engine.arrow(f"SELECT {x} AS x FROM {parquet(path)} WHERE {ROW} % {max(1, column.rows // 1000)} = 0")["x"]
    try:
        milliseconds(texts.combine_chunks().cast(pa.string()), "ms")
        sql = f"epoch_ms({iso(x)}::TIMESTAMPTZ)"
        naive = f"count_if(NOT regexp_matches({iso(x)}, {literal(WITH_ZONE)}))"
        low, high, of_no_zone = engine.row(f"SELECT min({sql}), max({sql}), {naive} FROM {parquet(path)}")
        return sql, "ms", True, low, high, f"ISO 8601 text{IN_UTC if of_no_zone else ''}", [], None
    except (ValueError, duckdb.Error):
        pass
    return _dates(engine, path, column)


class _Reading(NamedTuple):
    form: str
    sql: str
    low_ms: int
    high_ms: int


def _dates(engine: Engine, path: Path, column: Seen) -> Read | None:
    """One of TEXT_FORMS that every value has, and what else reads every value."""
    readings = [_Reading(form, f"epoch_ms(try_strptime({column.sql}, {literal(form)}))", 0, 0) for form in TEXT_FORMS]
    for rows in (f"{parquet(path)} WHERE {ROW} % {max(1, column.rows // 1000)} = 0", parquet(path)):  # most fail early
        asked = ", ".join(f"count({x}), min({x}), max({x})" for _, x, _, _ in readings)
        (count, *seen) = engine.row(f"SELECT count(*), {asked} FROM {rows}")
        readings = [
            each._replace(low_ms=seen[3 * n + 1], high_ms=seen[3 * n + 2])
            for n, each in enumerate(readings)
            if seen[3 * n] == count and seen[3 * n + 1] >= YEAR_1000_MS
        ]
        if not readings:
            return None
    best, why = readings[0], ""
    if len(readings) > 1:
        orders = [_order(engine, path, each.sql) for each in readings]
        level = next((level for level in (1.0, IN_ORDER) if max(orders) >= level), 0.0)
        (best, *as_well) = (each for each, order in zip(readings, orders, strict=True) if order >= level)
        decided = "" if as_well else ", but the rows are not in its order"
        others = " and ".join(f"{FIRST[each.form[:2]]}, {each.form}," for each in readings if each != best)
        why = f" ({FIRST[best.form[:2]]}; {others} would read every row, too{decided}: event_time_form says which)"
    why += "" if "%z" in best.form else IN_UTC
    return best.sql, "ms", False, best.low_ms, best.high_ms, f"text written as {best.form}{why}", [], best.form


def _edges(engine: Engine, path: Path, sql: str) -> tuple[int, int]:
    low, high = engine.row(f"SELECT min({sql}), max({sql}) FROM {parquet(path)}")
    return low, high


def order(engine: Engine, path: Path, time: EventTime) -> tuple[int, list[Finding]]:
    """How many rows are earlier than the row before, and what else is odd about the times."""
    t = f"(SELECT {time.sql} AS t FROM {parquet(path)})"
    back, early, late = engine.row(
        f"SELECT count_if(t < before), approx_quantile(t, 0.01), approx_quantile(t, 0.99) "
        f"FROM (SELECT t, lag(t) OVER () AS before FROM {t})"
    )
    wrong = []
    if time.guess.column is not None and late - early < SKEWED * (time.high_ms - time.low_ms):
        seen = (
            f"98 of 100 rows lie between {day(int(early))} and {day(int(late))}, the others reach from "
            f"{day(time.low_ms)} to {day(time.high_ms)}"
        )
        wrong.append(warn(f"event time `{time.guess.column}`", seen, "see whether the first or last rows are strays"))
    return back, wrong
