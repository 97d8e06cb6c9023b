"""Who and what a row is about: its id, its vertical, its user, its item; what replay may need: propensity, value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from pipelines.data.profile.finding import Finding, percent, warn
from pipelines.data.propose.columns import Seen
from pipelines.data.propose.guess import Guess, named, ranked, values_of
from pipelines.data.propose.labels import Label
from streaming.sources.tables.engine import Engine, parquet

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
    engine: Engine,
    path: Path,
    columns: Mapping[str, Seen],
    labels: list[Label],
    taken: Collection[str | None],
    asked: Mapping[str, str],
) -> tuple[Roles, list[Finding]]:
    """`taken`: columns that are time or label. `asked`: role -> column that the caller named."""
    free = [column for column in columns.values() if column.name not in taken]
    wrong: list[Finding] = []
    identity, odd = _identity(engine, path, columns, free, asked.get("id"))
    wrong += odd
    free = [column for column in free if column.name != identity.column]
    vertical, by_vertical, odd = _vertical(engine, path, columns, free, labels, asked.get("vertical"))
    wrong += odd

    def by_name(role: str, points: dict[str, float]) -> Guess:
        found = [columns[asked[role]]] if role in asked else ranked(free, lambda column: _named_id(column, points))
        if not found:
            return NONE
        return Guess(found[0].name, values_of(found[0]), found[1].name if len(found) > 1 else None)

    def number(points: dict[str, float], most: float) -> Guess:
        able = [c for c in free if c.is_number and not c.nulls and (c.low or 0) >= 0 and (c.high or 0) <= most]
        found = ranked([c for c in able if c.kind == "float" or most > 1], lambda column: named(column, points))
        return Guess(found[0].name, f"{found[0].low:g} to {found[0].high:g}") if found else NONE

    user = by_name("user", USERS)
    free = [column for column in free if column.name != user.column]
    item = by_name("item", ITEMS)
    return Roles(identity, vertical, user, item, number(PROPENSITIES, 1), number(VALUES, 1e12), by_vertical), wrong


def _named_id(column: Seen, points: dict[str, float]) -> float:
    """Ids have at least some values, and a row each in hardly any."""
    if (
        column.distinct < 20
        or column.kind not in ("int", "float", "text")
        or not (column.whole or column.kind == "text")
    ):
        return 0.0
    return named(column, points) + (1 if "id" in column.words else 0) if named(column, points) else 0.0


def _identity(
    engine: Engine, path: Path, columns: Mapping[str, Seen], free: list[Seen], asked: str | None
) -> tuple[Guess, list[Finding]]:
    """A column with another value in every row; with repeats if they are few enough to be the same rows sent twice."""

    def score(column: Seen) -> float:
        able = column.kind in ("int", "text") and not column.nulls and column.distinct > 0.5 * column.rows
        points = named(column, IDS) if able else 0.0
        unique = 1 if column.distinct >= 0.9 * column.rows else 0
        return points + unique if points >= 7 or (points and unique and column.name.lower() == "id") else 0.0

    found = [columns[asked]] if asked else ranked(free, score)
    for column in found[:1]:
        (distinct,) = engine.row(f"SELECT count(DISTINCT hash({column.sql})) FROM {parquet(path)}")
        repeats = column.rows - distinct
        other = found[1].name if len(found) > 1 else "none: rows are numbered"
        if not repeats:
            return Guess(column.name, "another value in every row", other), []
        seen = f"{repeats:,} of {column.rows:,} rows ({percent(repeats / column.rows)}) repeat another row's id"
        if repeats < SOME_REPEATS * column.rows:
            remedy = "repeats are dropped, as the same row sent twice; see where they come from"
            return Guess(column.name, f"{repeats:,} rows repeat one", other), [
                warn(f"id `{column.name}`", seen, remedy)
            ]
        remedy = "so it is no id: rows are numbered; with it, repeats would be dropped"
        return Guess(None, f"rows are numbered: `{column.name}` repeats", column.name), [
            warn(f"id `{column.name}`", seen, remedy)
        ]
    wrong = []
    for column in free:
        if named(column, IDS) >= SURELY_ID:
            why = f"{column.nulls:,} rows have none" if column.nulls else f"about {column.distinct:,} values"
            seen = f"{why}, in {column.rows:,} rows"
            wrong.append(warn(f"id `{column.name}`", seen, "so it is no id: rows are numbered; see what writes it"))
    return Guess(None, "no column is an id with another value in every row: rows are numbered"), wrong


def _vertical(
    engine: Engine,
    path: Path,
    columns: Mapping[str, Seen],
    free: list[Seen],
    labels: list[Label],
    asked: str | None,
) -> tuple[Guess, dict[str, tuple[int, int]], list[Finding]]:
    def score(column: Seen) -> float:
        able = column.kind in ("int", "text") and not column.nulls and 2 <= column.distinct <= MOST_VERTICALS
        return named(column, VERTICALS) if able else 0.0

    found = [columns[asked]] if asked else ranked(free, score)
    poor: list[str] = []
    for place, column in enumerate(found):
        positive = f"count_if({labels[0].sql})" if labels else "0"
        by_value = {
            str(value): (rows, positives)
            for value, rows, positives in engine.rows(
                f"SELECT {column.sql}, count(*), {positive} FROM {parquet(path)} GROUP BY 1 ORDER BY 2 DESC, 1"
            )
        }
        if any(not value or len(value) > LONGEST for value in by_value):
            continue
        enough = [value for value, (_, positives) in by_value.items() if positives >= FEW_POSITIVES]
        if asked is None and labels and len(enough) < 2 and score(column) < CALLED_SO:
            poor.append(column.name)
            continue
        others = [each.name for each in found[place + 1 :]]
        few = [value for value, (_, positives) in by_value.items() if positives < FEW_POSITIVES]
        wrong = []
        if labels and few:
            shown = ", ".join(f"`{value}` ({by_value[value][1]:,})" for value in few[:6]) + (", …" if few[6:] else "")
            seen = f"fewer than {FEW_POSITIVES} positives of {labels[0].task}: {shown}"
            wrong.append(warn(f"vertical `{column.name}`", seen, "they get no student of their own"))
        share = max(rows for rows, _ in by_value.values()) / column.rows
        why = f"{column.distinct} values, the largest has {percent(share)} of rows"
        return Guess(column.name, why, others[0] if others else "one for all rows"), by_value, wrong
    positives = labels[0].positives if labels else 0
    rows = next(iter(columns.values())).rows
    why = (
        f"`{'`, `'.join(poor)}`: fewer than two values have {FEW_POSITIVES} positives"
        if poor
        else "no column is named like one"
    )
    return Guess(None, f"{why}: one vertical for all rows"), {"all": (rows, positives)}, []
