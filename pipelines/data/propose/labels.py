"""Labels: the columns to predict, their positive values, and their delays."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from pipelines.data.findings import Finding, Rules, Severity, percent
from pipelines.data.profile.column import ColumnProfile
from pipelines.data.profile.file import FileProfile, epoch_ms, finite
from pipelines.data.propose.guess import Guess, named, ranked
from pipelines.data.propose.times import IN_NAMES, EventTimeColumn, unit_of
from streaming.messages.times import PER_MS, Unit
from streaming.sources.tables.engine import literal

RULES = Rules("""
warn  init.label-doubtful  column `{column}`
    it could be a second label ({positive}), by a part of its name, and it is left out of the features
    -> if it is, name both: --label LABEL --label {column}; if it is known when the row is shown, name it under
    rows.columns and features
warn  init.label-between  label `{column}`
    {between:,} of {rows:,} values lie between 0 and 1, and what is above 0 is positive
    -> `at_least` of source.labels says from where on one is positive: {{column: {column}, at_least: 0.5}}
warn  init.label-early  label time `{column}`
    {early:,} of {rows:,} positives come before their impression
    -> they are counted as such by a run, and are no positives; settlement.early_ms lets them in
warn  init.label-time-unused  label time `{column}`
    `{column}` {why}
    -> labels count as known at once; mend it, or name another
note|warn  init.label-outside  task {task}
    {outside:,} of its {positives:,} positives are of rows without a click in `{click}`: it is a task of all rows
    -> `given: ctr` would leave these out of the lake, as not applicable; see why they have no click
""")

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
AT_ONCE_S = 10
"""The tick of as-of features: nothing is waited for."""

ENOUGH = 0.99
LATEST_S = 60 * 86_400


class Positive(NamedTuple):
    """Rule for the positive values of a column. `setting`: what source.labels says of it."""

    setting: dict[str, Any]
    sql: str
    words: str


class Delay(NamedTuple):
    """When labels come: what source.labels says of it, the window that holds most of them, and why. `ms_sql`: the time
    from a positive row to its label."""

    setting: dict[str, Any]
    window_s: int
    words: str
    findings: tuple[Finding, ...] = ()
    ms_sql: str = "0"


class Label(NamedTuple):
    """A task. `sql` is true for a positive row, false for a negative one, null for an unknown one. `setting`: what
    source.labels says of it. `delay_ms_sql`: the time from a positive row to its label."""

    task: str
    guess: Guess
    setting: dict[str, Any]
    sql: str
    rows: int
    positives: int
    window_s: int
    window_why: str
    delay_ms_sql: str = "0"
    given: str | None = None
    given_why: str = ""


class ProposedLabels(NamedTuple):
    """Find the labels, at most a few; with oddities, and further candidates that only the caller can confirm."""

    labels: list[Label]
    findings: list[Finding]
    doubtful: list[str]


def find_labels(
    file: FileProfile, time: EventTimeColumn, named_ones: Collection[str], last_year: int
) -> ProposedLabels:
    """`named_ones`: columns that the caller named."""
    columns = file.columns
    positives: dict[str, Positive] = {}
    for column in columns.values():
        if column.name != time.guess.column and (positive := _positive(file, column, column.name in named_ones)):
            positives[column.name] = positive
    able = [columns[name] for name in positives]
    best = [columns[name] for name in named_ones] if named_ones else _best(able, list(columns))
    best = [column for column in best if column.name in positives]
    doubtful = [] if named_ones else [column.name for column in best[1:] if not _surely(column)]
    best = [column for column in best if column.name not in doubtful]
    others = [*doubtful, *(column.name for column in able if column not in best)]
    findings = [RULES("init.label-doubtful", column=name, positive=positives[name].words) for name in doubtful]
    labels = []
    for column in best[:MOST]:
        label, odd = _label(file, time, column, positives[column.name], others, last_year)
        labels.append(label)
        findings += odd
    labels, odd = _conditional(file, _apart(labels))
    return ProposedLabels(labels, [*findings, *odd], doubtful)


def _surely(column: ColumnProfile) -> bool:
    """True if a name means a label and nothing else."""
    points = CLICKS | AFTER | MORE
    return column.name.lower() in points or column.words - BESIDE <= points.keys()


def possible(file: FileProfile, column: ColumnProfile) -> bool:
    """True for a column that could be a label, if somebody said so."""
    return _positive(file, column, by_caller=True) is not None


def _best(able: list[ColumnProfile], order: list[str]) -> list[ColumnProfile]:
    """By their names; else the first or the last column of the file, where that has two values."""
    points = CLICKS | AFTER | MORE

    def by_name(column: ColumnProfile) -> float:
        return 0.0 if column.words & NOT_LABELS else named(column, points)

    binary = [column for column in able if column.distinct == 2 or column.kind == "flag" or column.nulls]
    if several := ranked(binary, by_name):
        return several
    if one := ranked(able, by_name) or ranked(able, lambda column: named(column, STARS)):
        return one[:1]
    return [column for column in binary if column.name in (order[0], order[-1])][:1]


def _positive(file: FileProfile, column: ColumnProfile, by_caller: bool = False) -> Positive | None:
    """Reading of a column as a label; None if it cannot be one. `by_caller`: the caller says that it is one."""
    x, name, low, high = column.sql, column.name, column.low, column.high
    x, distinct = finite(x, column.type) if column.nans else x, column.distinct or 0
    if column.kind == "flag":
        return Positive({"column": name}, x, "true or false") if distinct == 2 else None
    if column.kind == "text" and 0 < distinct <= 2:
        rows = file.engine.rows(f"SELECT DISTINCT {x} FROM {file.relation} WHERE {x} IS NOT NULL")
        yes = [value for (value,) in rows if value.lower() in YES]
        if len(yes) != 1 or any(value.lower() not in NO for (value,) in rows if value not in yes):
            return None
        return Positive({"column": name, "values": yes}, f"{x} = {literal(yes[0])}", f"positive where `{yes[0]}`")
    if not column.is_number or low is None:
        return None
    after = named(column, CLICKS | AFTER)
    if low >= 0 and high <= 10 and 3 <= distinct <= 21 and (by_caller or named(column, STARS)):
        least = 4 if high == 5 else float(np.ceil(0.8 * high))
        return Positive({"column": name, "at_least": least}, f"{x} >= {least:g}", f"{least:g} of {high:g} or more")
    if not column.whole:
        shares = 0 <= low <= high <= 1 and (by_caller or (low == 0 and distinct == 2 and after))
        return Positive({"column": name}, f"{x} > 0", f"{low:g} to {high:g}: positive above 0") if shares else None
    if distinct == 1 and column.nulls and low == 1:
        words = f"1 in {column.rows - column.nulls:,} rows, null in the others"
        return Positive({"column": name, "nulls": "negative"}, f"{x} IS NOT NULL", words)
    if distinct == 2 and low in (0, -1) and high == 1:
        return Positive({"column": name}, f"{x} >= 1", f"{low:g} and 1")
    if low == 0 and distinct > 2 and after and not column.words & {"id", "time"}:
        return Positive({"column": name}, f"{x} >= 1", f"a count up to {high:g}: 1 or more")
    return None


def _label(
    file: FileProfile,
    time: EventTimeColumn,
    column: ColumnProfile,
    positive: Positive,
    others: list[str],
    last_year: int,
) -> tuple[Label, list[Finding]]:
    x, y = column.sql, positive.sql
    shares = column.kind == "float" and not column.whole
    rows, positives, between = file.ask(
        f"count({y}), count(*) FILTER (WHERE {y}), {f'count(*) FILTER (WHERE {x} > 0 AND {x} < 1)' if shares else 0}"
    )
    share = percent(positives / rows) if rows else "none"
    guess = Guess(column.name, f"{positive.words}, {share} positive", others[0] if others else None)
    delay = _delay(file, time, column, positive, last_year)
    findings = list(delay.findings)
    if between:
        findings.append(RULES("init.label-between", column=column.name, between=between, rows=rows))
    setting = positive.setting | delay.setting
    label = Label(_task(column), guess, setting, y, rows, positives, delay.window_s, delay.words, delay.ms_sql)
    return label, findings


def _delay(file: FileProfile, time: EventTimeColumn, label: ColumnProfile, positive: Positive, last_year: int) -> Delay:
    """The column that says when a label came, if there is one: by its name, and by what it holds for positives."""
    own = label.words - {"is", "has", "label"}
    marks = own | {word for word in CLICKS | AFTER if any(word[:4] == w[:4] for w in own)}
    for column in file.columns.values():
        if column.name in (label.name, time.guess.column) or not column.words & marks or column.words & SINCE:
            continue
        if column.words & {"delay", "lag", "after"} and column.is_number:
            unit: Unit = next((IN_NAMES[word] for word in sorted(column.words) if word in IN_NAMES), "s")
            delay, setting = f"{column.sql} * {1 / PER_MS[unit]:g}", {"delay_column": column.name}
            setting |= {"delay_unit": unit} if unit != "s" else {}
        elif column.words & {"time", "ts", "timestamp", "at", "datetime", "date"}:
            if (at := _in_ms(column, time)) is None:
                continue
            other = unit_of(column.high, last_year) if column.is_number else None
            if other not in (None, time.reading.unit) and time.guess.column is not None:
                return _unused(column, f"is in {other}, and the event time is in {time.reading.unit}")
            delay, setting = f"({at} - ({time.sql}))", {"time_column": column.name}
        else:
            continue
        rows, known, early, half, most, all_ = file.engine.row(
            "SELECT count(*), count(d), count(*) FILTER (WHERE d < 0), quantile_cont(d, 0.5), "
            f"quantile_cont(d, {ENOUGH}), max(d) "
            f"FROM (SELECT {delay} AS d FROM {file.relation} WHERE {positive.sql})"
        )
        if not known:
            continue
        few = early <= max(1, FEW_EARLY * rows)
        if known < rows or (early and (not few or early == rows)):
            what = f"{early:,} of {rows:,} come before their impression" if early else f"{rows - known:,} have none"
            return _unused(column, f"is not when `{label.name}` came: of its positives {what}")
        if not (time.reading.as_is or "delay_column" in setting or column.kind == "time"):
            return _unused(column, "cannot be used: the event time is made in a copy, in another unit")
        window = next((w for w in WINDOWS_S if w * 1000 >= most), LATEST_S)
        words = f"half come within {_span(half)}, 99 % within {_span(most)}, all within {_span(all_)}"
        if not early:
            return Delay(setting, window, words, ms_sql=delay)
        odd = RULES("init.label-early", column=column.name, early=early, rows=rows)
        return Delay(setting, window, f"{words}; {early:,} before their impression", (odd,), delay)
    return Delay({}, AT_ONCE_S, "known at once: nothing says when it came")


def _unused(column: ColumnProfile, why: str) -> Delay:
    finding = RULES("init.label-time-unused", column=column.name, why=why)
    return Delay({}, AT_ONCE_S, f"known at once: `{column.name}` {why}", (finding,))


def _in_ms(column: ColumnProfile, time: EventTimeColumn) -> str | None:
    """A time, where it is in the unit of the event time if it is a number."""
    if column.kind == "time":
        return epoch_ms(column.sql, column.type)
    if not column.is_number or column.high is None:
        return None
    return f"{column.sql} * {1 / PER_MS[time.reading.unit]:g}"


def _span(ms: float) -> str:
    """
    >>> [_span(1000 * s) for s in (0.5, 90, 7200, 200_000)]
    ['0.5 s', '90 s', '2 h', '2.3 days']
    """
    s = ms / 1000
    return f"{s:.3g} s" if s < 600 else f"{s / 60:.3g} min" if s < 7200 else (
        f"{s / 3600:.3g} h" if s < 172_800 else f"{s / 86_400:.2g} days"
    )  # fmt: skip


def _task(column: ColumnProfile) -> str:
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


def _conditional(file: FileProfile, labels: list[Label]) -> tuple[list[Label], list[Finding]]:
    """A conversion is of clicked rows where no other row has one."""
    click = next((label for label in labels if label.task == "ctr"), None)
    place, conversion = next(((n, label) for n, label in enumerate(labels) if label.task == "cvr"), (0, None))
    if click is None or conversion is None:
        return labels, []
    (outside,) = file.ask(f"count(*) FILTER (WHERE ({conversion.sql}) AND ({click.sql}) IS NOT TRUE)")
    if outside:
        severity = Severity.WARN if outside <= FEW_OUTSIDE * conversion.positives else Severity.NOTE
        counts = {"outside": outside, "positives": conversion.positives}
        return labels, [RULES("init.label-outside", severity, task="cvr", click=click.guess.column, **counts)]
    if click.positives < click.rows:
        window_s = max(conversion.window_s, click.window_s)
        given = conversion._replace(given="ctr", given_why="every one is of a click", window_s=window_s)
        labels = [*labels[:place], given, *labels[place + 1 :]]
    return labels, []
