"""Labels: which columns are what a model is to predict, which values count, how late they come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipelines.data.profile.finding import Finding, note, percent, warn
from pipelines.data.propose.columns import Seen, epoch_ms, finite
from pipelines.data.propose.guess import Guess, named, ranked
from pipelines.data.propose.times import IN_NAMES, EventTime, unit_of
from streaming.messages.times import PER_MS, Unit
from streaming.sources.tables.engine import Engine, literal, parquet

CLICKS: dict[str, float] = {
    "label": 9, "target": 8, "click": 9, "clicked": 9, "clk": 9, "clicks": 9, "ctr": 8, "y": 7,
}  # fmt: skip
AFTER: dict[str, float] = {
    "conversion": 8, "conversions": 8, "converted": 8, "convert": 8, "conv": 8, "purchase": 8, "purchased": 8,
    "buy": 8, "bought": 8, "install": 8, "installed": 8, "attributed": 8, "cvr": 8, "order": 6, "ordered": 8,
}  # fmt: skip
MORE: dict[str, float] = {
    "like": 7, "liked": 7, "follow": 7, "share": 7, "shared": 7, "comment": 7, "forward": 7, "cart": 6, "fav":
    6, "favourite": 6, "favorite": 6, "hate": 5, "long_view": 7, "read": 5, "finish": 5,
}  # fmt: skip
STARS: dict[str, float] = {
    "rating": 6, "ratings": 6, "stars": 6, "score": 4,
}  # fmt: skip
NOT_LABELS = frozenset([
    "count", "cnt", "num", "id", "time", "ts", "timestamp", "rate", "type", "category", "user", "item",
    "position", "pos", "since", "non", "verified",
])  # fmt: skip
YES = ("yes", "y", "true", "t", "click", "clicked", "positive", "1", "buy", "bought", "converted")
NO = ("no", "n", "false", "f", "none", "negative", "0", "-1", "")
SINCE = frozenset(["since", "last", "first", "previous"])
BESIDE = frozenset(["is", "has", "did", "was", "label", "flag", "target", "y", "user", "ad", "item", "next", "final"])
"""Words that may stand beside a label's own in its name."""

MOST = 4
FEW_EARLY = FEW_OUTSIDE = 0.01
WINDOWS_S = (60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 2 * 86_400, 3 * 86_400, 7 * 86_400,
             14 * 86_400, 30 * 86_400)  # fmt: skip
AT_ONCE_S = 600
ENOUGH = 0.99
LATEST_S = 60 * 86_400


class Label(NamedTuple):
    """A task. `sql` is true for a positive row, false for a negative one, null for an unknown one. `setting`: what
    source.labels says of it."""

    task: str
    guess: Guess
    setting: dict[str, Any]
    sql: str
    rows: int
    positives: int
    window_s: int
    window_why: str
    given: str | None = None
    given_why: str = ""

    @property
    def rate(self) -> float:
        return self.positives / self.rows if self.rows else 0.0


class Way(NamedTuple):
    """Which values of a column are positive."""

    setting: dict[str, Any]
    sql: str
    words: str


def find_labels(
    engine: Engine,
    path: Path,
    columns: Mapping[str, Seen],
    time: EventTime,
    asked: Collection[str],
    last_year: int,
) -> tuple[list[Label], list[Finding], list[str]]:
    """The labels, at most a few; what is odd about them; and columns that may be labels, too, which only the caller
    knows. `asked`: columns that the caller named."""
    taken = {time.guess.column}
    ways: dict[str, Way] = {}
    for column in columns.values():
        if column.name not in taken and (way := _way(engine, path, column, column.name in asked)) is not None:
            ways[column.name] = way
    able = [columns[name] for name in ways]
    best = [columns[name] for name in asked] if asked else _best(able, list(columns))
    best = [column for column in best if column.name in ways]
    doubtful = [] if asked else [column for column in best[1:] if not _surely(column)]
    best = [column for column in best if column not in doubtful]
    others = [column.name for column in (*doubtful, *able) if column not in best]
    found, wrong = [], [_asked_about(column, ways[column.name]) for column in doubtful]
    for column in best[:MOST]:
        label, odd = _label(engine, path, columns, time, column, ways[column.name], others, last_year)
        found.append(label)
        wrong += odd
    labels, odd = _conditional(engine, path, _apart(found))
    return labels, [*wrong, *odd], [column.name for column in doubtful]


def _surely(column: Seen) -> bool:
    """Whether a name says nothing but a label."""
    points = CLICKS | AFTER | MORE
    return column.name.lower() in points or column.words - BESIDE <= points.keys()


def _asked_about(column: Seen, way: Way) -> Finding:
    seen = f"it could be a second label ({way.words}), by a part of its name, and it is left out of the features"
    remedy = (
        f"if it is, name both: --label LABEL --label {column.name}; if it is known when the row is shown, name it "
        "under rows.columns and features"
    )
    return warn(f"column `{column.name}`", seen, remedy)


def possible(engine: Engine, path: Path, column: Seen) -> bool:
    """Whether a column could be a label, if somebody said so."""
    return _way(engine, path, column, asked=True) is not None


def _best(able: list[Seen], order: list[str]) -> list[Seen]:
    """By their names; else the first or the last column of the file, where that has two values."""
    points = CLICKS | AFTER | MORE

    def by_name(column: Seen) -> float:
        return 0.0 if column.words & NOT_LABELS else named(column, points)

    binary = [column for column in able if column.distinct == 2 or column.kind == "flag" or column.nulls]
    if found := ranked(binary, by_name):
        return found
    if found := ranked(able, by_name):
        return found[:1]
    if found := ranked(able, lambda column: named(column, STARS)):
        return found[:1]
    return [column for column in binary if column.name in (order[0], order[-1])][:1]


def _way(engine: Engine, path: Path, column: Seen, asked: bool = False) -> Way | None:
    """How a column would be read as a label; None: it cannot be. `asked`: the caller says that it is one."""
    x, name = finite(column.sql, column.type) if column.nans else column.sql, column.name
    if column.kind == "flag":
        return Way({"column": name}, x, "true or false") if column.distinct == 2 else None
    if column.kind == "text" and 0 < column.distinct <= 2:
        values = [value for (value,) in engine.rows(f"SELECT DISTINCT {x} FROM {parquet(path)} WHERE {x} IS NOT NULL")]
        yes = [value for value in values if value.lower() in YES]
        if len(yes) != 1 or any(value.lower() not in NO for value in values if value not in yes):
            return None
        return Way({"column": name, "values": yes}, f"{x} = {literal(yes[0])}", f"positive where `{yes[0]}`")
    if not column.is_number or column.low is None or column.high is None:
        return None
    if column.low >= 0 and column.high <= 10 and 3 <= column.distinct <= 21 and (asked or named(column, STARS)):
        least = 4 if column.high == 5 else float(np.ceil(0.8 * column.high))
        setting = {"column": name, "at_least": least}
        return Way(setting, f"{x} >= {least:g}", f"{least:g} of {column.high:g} or more")
    shares = not column.whole and 0 <= column.low <= column.high <= 1
    if shares and (asked or (column.low == 0 and column.distinct == 2 and named(column, CLICKS | AFTER))):
        return Way({"column": name}, f"{x} > 0", f"{column.low:g} to {column.high:g}: positive above 0")
    if not column.whole:
        return None
    if column.distinct == 1 and column.nulls and column.low == 1:
        setting = {"column": name, "nulls": "negative"}
        return Way(setting, f"{x} IS NOT NULL", f"1 in {column.rows - column.nulls:,} rows, null in the others")
    if column.distinct == 2 and column.low in (0, -1) and column.high == 1:
        return Way({"column": name}, f"{x} >= 1", f"{column.low:g} and 1")
    if column.low == 0 and column.distinct > 2 and named(column, CLICKS | AFTER) and not column.words & {"id", "time"}:
        return Way({"column": name}, f"{x} >= 1", f"a count up to {column.high:g}: 1 or more")
    return None


def _label(
    engine: Engine,
    path: Path,
    columns: Mapping[str, Seen],
    time: EventTime,
    column: Seen,
    way: Way,
    others: list[str],
    last_year: int,
) -> tuple[Label, list[Finding]]:
    rows, positives = engine.row(f"SELECT count({way.sql}), count_if({way.sql}) FROM {parquet(path)}")
    share = percent(positives / rows) if rows else "none"
    guess = Guess(column.name, f"{way.words}, {share} positive", others[0] if others else None)
    between = _between(engine, path, column) if column.kind == "float" and not column.whole else 0
    delays = _delays(engine, path, columns, time, column, way, last_year)
    setting, window_s, why, wrong = dict(way.setting), AT_ONCE_S, "known at once: nothing says when it came", []
    for delay in delays:
        setting |= delay.setting
        window_s, why, wrong = delay.window_s, delay.words, delay.wrong
    if between:
        seen = f"{between:,} of {rows:,} values lie between 0 and 1, and what is above 0 is positive"
        remedy = (
            f"`at_least` of source.labels says from where on one is positive: {{column: {column.name}, at_least: 0.5}}"
        )
        wrong = [*wrong, warn(f"label `{column.name}`", seen, remedy)]
    return Label(_task(column), guess, setting, way.sql, rows, positives, window_s, why), wrong


def _between(engine: Engine, path: Path, column: Seen) -> int:
    (count,) = engine.row(f"SELECT count_if({column.sql} > 0 AND {column.sql} < 1) FROM {parquet(path)}")
    return int(count)


class Delay(NamedTuple):
    setting: dict[str, Any]
    window_s: int
    words: str
    wrong: list[Finding]


def _delays(
    engine: Engine,
    path: Path,
    columns: Mapping[str, Seen],
    time: EventTime,
    label: Seen,
    way: Way,
    last_year: int,
) -> Iterator[Delay]:
    """The column that says when a label came, if there is one: by its name, and by what it holds for positives."""
    own = label.words - {"is", "has", "label"}
    marks = own | {word for word in CLICKS | AFTER if any(word[:4] == w[:4] for w in own)}
    for column in columns.values():
        if column.name in (label.name, time.guess.column) or not column.words & marks or column.words & SINCE:
            continue
        x, where = column.sql, f"`{column.name}`"
        if column.words & {"delay", "lag", "after"} and column.is_number:
            unit: Unit = next((IN_NAMES[word] for word in sorted(column.words) if word in IN_NAMES), "s")
            delay, setting = f"{x} * {1 / PER_MS[unit]:g}", {"delay_column": column.name}
            setting |= {"delay_unit": unit} if unit != "s" else {}
        elif column.words & {"time", "ts", "timestamp", "at", "datetime", "date"}:
            at = _time_of(column, time, last_year)
            if at is None:
                continue
            delay, setting = f"({at[0]} - ({time.sql}))", {"time_column": column.name}
            if at[1]:
                yield _unused(where, f"is in {at[1]}, and the event time is in {time.unit}")
                return
        else:
            continue
        rows, known, early, half, most, all_ = engine.row(
            f"SELECT count(*), count(d), count_if(d < 0), quantile_cont(d, 0.5), quantile_cont(d, {ENOUGH}), max(d) "
            f"FROM (SELECT {delay} AS d FROM {parquet(path)} WHERE {way.sql})"
        )
        if not known:
            continue
        few = early <= max(1, FEW_EARLY * rows)
        if known < rows or (early and (not few or early == rows)):
            what = f"{early:,} of {rows:,} come before their impression" if early else f"{rows - known:,} have none"
            yield _unused(where, f"is not when `{label.name}` came: of its positives {what}")
            return
        if time.as_is or "delay_column" in setting or column.kind == "time":
            window = next((w for w in WINDOWS_S if w * 1000 >= most), LATEST_S)
            words = f"half come within {_span(half)}, 99 % within {_span(most)}, all within {_span(all_)}"
            odd = []
            if early:
                seen = f"{early:,} of {rows:,} positives come before their impression"
                remedy = "they are counted as such by a run, and are no positives; settlement.early_ms lets them in"
                odd = [warn(f"label time {where}", seen, remedy)]
                words = f"{words}; {early:,} before their impression"
            yield Delay(setting, window, words, odd)
        else:
            yield _unused(where, "cannot be used: the event time is made in a copy, in another unit")
        return


def _unused(where: str, why: str) -> Delay:
    finding = warn(f"label time {where}", f"{where} {why}", "labels count as known at once; mend it, or name another")
    return Delay({}, AT_ONCE_S, f"known at once: {where} {why}", [finding])


def _time_of(column: Seen, time: EventTime, last_year: int) -> tuple[str, str | None] | None:
    """In ms, and the unit in which it is where that is not the event time's."""
    if column.kind == "time":
        return epoch_ms(column.sql, column.type), None
    if not column.is_number or column.high is None:
        return None
    own, unit = unit_of(column.high, last_year), time.unit
    if own is not None and own != unit and time.guess.column is not None:
        return column.sql, own
    return f"{column.sql} * {1 / PER_MS[unit]:g}", None


def _span(ms: float) -> str:
    """
    >>> [_span(1000 * s) for s in (0.5, 90, 7200, 200_000)]
    ['0.5 s', '90 s', '2 h', '2.3 days']
    """
    s = ms / 1000
    return f"{s:.3g} s" if s < 600 else f"{s / 60:.3g} min" if s < 7200 else (
        f"{s / 3600:.3g} h" if s < 172_800 else f"{s / 86_400:.2g} days"
    )  # fmt: skip


def _task(column: Seen) -> str:
    if named(column, AFTER):
        return "cvr"
    if named(column, CLICKS) or named(column, STARS):
        return "ctr"
    name = "_".join(word for word in column.name.lower().split("_") if word not in ("is", "has", "label"))
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name) if named(column, MORE) else "ctr"


def _apart(labels: list[Label]) -> list[Label]:
    """Two of one name keep those of their columns."""
    names = [label.task for label in labels]
    return [
        label._replace(task=f"{label.task}_{place}") if names[:place].count(label.task) else label
        for place, label in enumerate(labels)
    ]


def _conditional(engine: Engine, path: Path, labels: list[Label]) -> tuple[list[Label], list[Finding]]:
    """A conversion is of clicked rows where no other row has one."""
    click = next((label for label in labels if label.task == "ctr"), None)
    found, wrong = [], []
    for label in labels:
        if click is not None and label.task == "cvr":
            (outside,) = engine.row(
                f"SELECT count_if(({label.sql}) AND ({click.sql}) IS NOT TRUE) FROM {parquet(path)}"
            )
            if not outside and click.positives < click.rows:
                label = label._replace(
                    given="ctr", given_why="every one is of a click", window_s=max(label.window_s, click.window_s)
                )
            elif outside:
                seen = (
                    f"{outside:,} of its {label.positives:,} positives are of rows without a click in "
                    f"`{click.guess.column}`: it is a task of all rows"
                )
                remedy = "`given: ctr` would leave these out of the lake, as not applicable; see why they have no click"
                few = outside <= FEW_OUTSIDE * label.positives
                wrong.append((warn if few else note)(f"task {label.task}", seen, remedy))
        found.append(label)
    return found, wrong
