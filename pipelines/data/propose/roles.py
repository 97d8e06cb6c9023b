"""Roles of columns: impression id, vertical, user, item; for replay propensity and value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pipelines.data.findings import Finding, Rules, percent
from pipelines.data.profile.column import ColumnProfile
from pipelines.data.profile.file import FileProfile
from pipelines.data.propose.guess import Guess, named, ranked, values_of
from pipelines.data.propose.labels import Label

RULES = Rules("""
warn  init.id-repeats  id `{column}`
    {repeats:,} of {rows:,} rows ({share}) repeat another row's id
    -> {remedy}
warn  init.id-unusable  id `{column}`
    {why}, in {rows:,} rows
    -> so it is no id: rows are numbered; see what writes it
warn  init.vertical-few-positives  vertical `{column}`
    fewer than {fewest} positives of {task}: {verticals}
    -> they get no student of their own
""")

IDS: dict[str, float] = {
    "impression_id": 9, "event_id": 8, "request_id": 7, "row_id": 8, "uuid": 8, "id": 3, "impression": 7,
    "imp_id": 8, "display_id": 7, "log_id": 7,
}  # fmt: skip
VERTICALS: dict[str, float] = {
    "vertical": 10, "surface": 9, "placement": 9, "scenario": 9, "tab": 8, "channel": 8, "page": 7, "category":
    7, "categories": 6, "cate": 7, "cat": 7, "site": 6, "market": 7, "country": 6, "segment": 7, "domain": 6,
    "pid": 6, "platform": 5, "device": 5, "genre": 5, "slot": 6, "banner": 4, "os": 4, "region": 5, "section":
    7, "product": 4, "app": 4,
}  # fmt: skip
USERS: dict[str, float] = {
    "user": 8, "user_id": 9, "uid": 9, "member": 7, "visitor": 7, "customer": 7, "userid": 9, "viewer": 6,
    "account": 6, "cookie": 6, "device_id": 5, "ip": 3, "device": 2, "session": 2, "reader": 5,
}  # fmt: skip
ITEMS: dict[str, float] = {
    "item": 8, "ad": 8, "ad_id": 9, "adid": 9, "sku": 8, "product": 6, "movie": 8, "video": 8, "adgroup": 7,
    "creative": 7, "item_id": 9, "itemid": 9, "campaign": 5, "article": 7, "track": 7, "song": 7, "goods": 7,
    "doc": 5, "news": 7, "app": 3,
}  # fmt: skip
PROPENSITIES: dict[str, float] = {
    "propensity": 9, "prob": 5, "probability": 5, "pscore": 8,
}  # fmt: skip
VALUES: dict[str, float] = {
    "value": 6, "revenue": 8, "price": 7, "bid": 6, "amount": 6, "gmv": 8, "payout": 7, "cost": 5,
}  # fmt: skip
MOST_VERTICALS = 64
LONGEST = 100
CALLED_SO = 9
"""A column of such a name is the vertical however few its positives."""

FEW_POSITIVES = 100
"""Fewer say nothing about a vertical's student."""

MOST_STUDENTS = 4
SOME_REPEATS = 0.01
SURELY_ID = 9
"""Points of a column that is called as an id is."""


class Roles(NamedTuple):
    """`of_vertical`: rows and positives of the first label by vertical, the largest first."""

    id: Guess
    vertical: Guess
    user: Guess
    item: Guess
    propensity: Guess
    value: Guess
    of_vertical: dict[str, tuple[int, int]]


NONE = Guess(None, "no column is named like one")


def find_roles(
    file: FileProfile, labels: list[Label], taken: Collection[str | None], by_caller: Mapping[str, str]
) -> tuple[Roles, list[Finding]]:
    """`taken`: columns that are time or label. `by_caller`: role -> column that the caller named."""
    free = [column for column in file.columns.values() if column.name not in taken]
    identity, findings = _identity(file, free, by_caller.get("id"))
    free = [column for column in free if column.name != identity.column]
    vertical, of_vertical, odd = _vertical(file, free, labels, by_caller.get("vertical"))

    def by_name(role: str, points: dict[str, float]) -> Guess:
        columns = [file.columns[by_caller[role]]] if role in by_caller else ranked(free, lambda c: _named_id(c, points))
        if not columns:
            return NONE
        return Guess(columns[0].name, values_of(columns[0]), columns[1].name if len(columns) > 1 else None)

    def number(points: dict[str, float], most: float) -> Guess:
        able = [c for c in free if c.is_number and not c.nulls and (c.low or 0) >= 0 and (c.high or 0) <= most]
        columns = ranked([c for c in able if c.kind == "float" or most > 1], lambda column: named(column, points))
        return Guess(columns[0].name, f"{columns[0].low:g} to {columns[0].high:g}") if columns else NONE

    user = by_name("user", USERS)
    free = [column for column in free if column.name != user.column]
    guesses = user, by_name("item", ITEMS), number(PROPENSITIES, 1), number(VALUES, 1e12)
    return Roles(identity, vertical, *guesses, of_vertical), [*findings, *odd]


def _named_id(column: ColumnProfile, points: dict[str, float]) -> float:
    """Ids have at least some values, and a row each in hardly any."""
    if (column.distinct or 0) < 20 or not (column.kind == "text" or (column.is_number and column.whole)):
        return 0.0
    score = named(column, points)
    return score + (1 if score and "id" in column.words else 0)


def _identity(file: FileProfile, free: list[ColumnProfile], by_caller: str | None) -> tuple[Guess, list[Finding]]:
    """A column with another value in every row; with repeats if they are few enough to be the same rows sent twice."""

    def score(column: ColumnProfile) -> float:
        distinct = column.distinct or 0
        able = column.kind in ("int", "text") and not column.nulls and distinct > 0.5 * column.rows
        points, unique = named(column, IDS) if able else 0.0, 1 if distinct >= 0.9 * column.rows else 0
        return points + unique if points >= 7 or (points and unique and column.name.lower() == "id") else 0.0

    columns = [file.columns[by_caller]] if by_caller else ranked(free, score)
    if columns:
        column = columns[0]
        (distinct,) = file.ask(f"count(DISTINCT hash({column.sql}))")
        repeats = column.rows - distinct
        other = columns[1].name if len(columns) > 1 else "none: rows are numbered"
        if not repeats:
            return Guess(column.name, "another value in every row", other), []
        about = {"column": column.name, "repeats": repeats, "rows": column.rows}
        about["share"] = percent(repeats / column.rows)
        if repeats < SOME_REPEATS * column.rows:
            remedy = "repeats are dropped, as the same row sent twice; see where they come from"
            guess = Guess(column.name, f"{repeats:,} rows repeat one", other)
        else:
            remedy = "so it is no id: rows are numbered; with it, repeats would be dropped"
            guess = Guess(None, f"rows are numbered: `{column.name}` repeats", column.name)
        return guess, [RULES("init.id-repeats", **about, remedy=remedy)]
    findings = []
    for column in free:
        if named(column, IDS) >= SURELY_ID:
            why = f"{column.nulls:,} rows have none" if column.nulls else f"about {column.distinct:,} values"
            findings.append(RULES("init.id-unusable", column=column.name, why=why, rows=column.rows))
    return Guess(None, "no column is an id with another value in every row: rows are numbered"), findings


def _vertical(
    file: FileProfile, free: list[ColumnProfile], labels: list[Label], by_caller: str | None
) -> tuple[Guess, dict[str, tuple[int, int]], list[Finding]]:
    def score(column: ColumnProfile) -> float:
        able = column.kind in ("int", "text") and not column.nulls and 2 <= (column.distinct or 0) <= MOST_VERTICALS
        return named(column, VERTICALS) if able else 0.0

    columns = [file.columns[by_caller]] if by_caller else ranked(free, score)
    poor: list[str] = []
    positive = f"count(*) FILTER (WHERE {labels[0].sql})" if labels else "0"
    for place, column in enumerate(columns):
        counts = f"SELECT {column.sql}, count(*), {positive} FROM {file.relation} GROUP BY 1 ORDER BY 2 DESC, 1"
        by_value = {str(value): (rows, positives) for value, rows, positives in file.engine.rows(counts)}
        if any(not value or len(value) > LONGEST for value in by_value):
            continue
        few = [value for value, (_, positives) in by_value.items() if positives < FEW_POSITIVES] if labels else []
        if by_caller is None and labels and len(by_value) - len(few) < 2 and score(column) < CALLED_SO:
            poor.append(column.name)
            continue
        findings = []
        if few:
            shown = ", ".join(f"`{value}` ({by_value[value][1]:,})" for value in few[:6]) + (", …" if few[6:] else "")
            about = {"column": column.name, "fewest": FEW_POSITIVES, "task": labels[0].task}
            findings = [RULES("init.vertical-few-positives", **about, verticals=shown)]
        share = max(rows for rows, _ in by_value.values()) / column.rows
        why = f"{column.distinct} values, the largest has {percent(share)} of rows"
        other = columns[place + 1].name if columns[place + 1 :] else "one for all rows"
        return Guess(column.name, why, other), by_value, findings
    why = "no column is named like one"
    if poor:
        why = f"`{'`, `'.join(poor)}`: fewer than two values have {FEW_POSITIVES} positives"
    positives = labels[0].positives if labels else 0
    return Guess(None, f"{why}: one vertical for all rows"), {"all": (file.rows, positives)}, []
