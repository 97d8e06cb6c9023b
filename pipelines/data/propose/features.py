"""What becomes of every other column: a table of ids, a float, a bag, a sequence, or nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pipelines.data.profile.finding import Finding, note, warn
from pipelines.data.propose.columns import Seen, float_step
from pipelines.data.propose.guess import named
from pipelines.data.propose.sizes import hashed_rows, share_words
from streaming.schema import SAMPLE_WEIGHT, RowSchema, Task

NUMBERS: dict[str, float] = {
    "count": 3, "cnt": 3, "num": 3, "price": 3, "amount": 3, "length": 3, "len": 3, "duration": 3, "seconds": 3,
    "score": 3, "rate": 3, "since": 4, "elapsed": 4, "gap": 4, "delay": 3, "time": 2, "ms": 3, "ctr": 3, "cvr":
    3, "cost": 3, "bid": 3, "minutes": 3, "hours": 3, "ratio": 3, "sum": 3, "avg": 3, "mean": 3, "total": 3,
    "views": 2, "size": 2, "weight": 2, "value": 2, "depth": 2, "lat": 3, "lon": 3,
}  # fmt: skip
CODES: dict[str, float] = {
    "id": 3, "code": 3, "cd": 3, "type": 2, "category": 3, "cat": 3, "cate": 3, "hash": 3, "zip": 3, "brand": 3,
    "level": 2, "user": 3, "item": 3, "ad": 3, "sku": 3, "ip": 3, "app": 2, "device": 2, "os": 2, "channel": 2,
    "campaign": 3, "model": 2, "uid": 3, "pid": 3, "site": 2, "domain": 2, "city": 2, "country": 2, "gender": 3,
    "sex": 3, "occupation": 3, "key": 2,
}  # fmt: skip
IN_ORDER = frozenset([
    "hist", "history", "seq", "sequence", "recent", "last", "seen", "clicked", "viewed", "past",
])  # fmt: skip
WEIGHTS = frozenset([
    "weight", "weights", "ipw", "importance", "importance_weight", "row_weight", "example_weight", "sampling_weight",
    "sampleweight", "inverse_propensity", "inverse_propensity_weight",
])  # fmt: skip
_SPLIT = "texts hold several values with `{0}` between, and each text as a whole is taken for one id"
_AS_LISTS = "write them as lists, and each value has a row of its table: in DuckDB string_split(x, '{0}')"
RECIPE = (
    "write a row for each: in DuckDB SELECT * EXCLUDE (x), regexp_extract(s, '(.*)-', 1) AS item, "
    "right(s, 1)::INT AS label FROM (SELECT *, unnest(string_split(x, ' ')) AS s FROM 'file')"
)
TEXT_FORMS = {
    **{mark: (_SPLIT.format(mark), _AS_LISTS.format(mark)) for mark in "|,;"},
    "weighted": (
        "texts hold ids, each with a number behind a colon, and each text as a whole is taken for one id",
        "write two columns: a list of the ids, and the numbers as dense features where their number is fixed",
    ),
    "shown": ("texts hold items that were shown, each with 1 or 0 for clicked or not", RECIPE),
}
FEW = 100
SMALL = 1000
"""Whole numbers below it, and few of them, have a row each."""

SPREAD = 0.05
LOW_PART = 0.1
"""A mean below this share of the range: counts pile up near 0, ids do not."""

SEQUENCE = 20
MOST_FLOATS = 1024
"""Of a list: more would be most of a small model."""
_TASK = Task(name="t", window_s=1)
RESERVED = frozenset({*RowSchema(columns=(), tasks=(_TASK,)).augmented.names, "vertical"}) - {
    "label_t",
    "teacher_logit_t",
}


class Feature(NamedTuple):
    """`column`: as declared under rows.columns. `kind`: under which list of features `setting` stands; None: the column
    is kept in the lake, and no model reads it."""

    name: str
    source: str
    column: dict[str, Any]
    kind: str | None
    setting: dict[str, Any]
    why: str


class LeftOut(NamedTuple):
    name: str
    why: str


def find_features(
    columns: Mapping[str, Seen],
    left_out: Mapping[str, str],
    logged: Mapping[str, str],
    asked: Collection[str | None] = (),
) -> tuple[list[Feature], list[LeftOut], list[Finding]]:
    """`left_out`: columns that are something else, or know the label, and why. `logged`: kept, but read by no model.
    `asked`: columns that the caller named."""
    found: list[Feature] = []
    out: list[LeftOut] = []
    wrong: list[Finding] = []
    names: set[str] = set()
    for column in columns.values():
        if column.name in left_out:
            if left_out[column.name]:
                out.append(LeftOut(column.name, left_out[column.name]))
            continue
        if (why := useless(column, asked)) is not None:
            out.append(LeftOut(column.name, why))
            kind = note if column.kind == "other" else warn
            wrong.append(kind(f"column `{column.name}`", why, f"it is left out{_instead(column)}"))
            continue
        if column.name == SAMPLE_WEIGHT:
            names.add(SAMPLE_WEIGHT)
            found.append(_weight(column))
            wrong.append(note(f"column `{SAMPLE_WEIGHT}`", found[-1].why, "no model reads it"))
            continue
        wrong += _said(column)
        name = feature_name(column.name, names)
        names.add(name)
        feature, odd = _feature(column, name)
        if column.name in logged:
            feature = feature._replace(kind=None, why=logged[column.name])
        found.append(feature)
        wrong += odd
    return found, out, wrong


def useless(column: Seen, asked: Collection[str | None] = ()) -> str | None:
    """Why a column can be no feature, or should be none unless the caller asked for it."""
    if column.nulls == column.rows:
        return "null in every row"
    if column.kind == "other":
        return f"its type {column.type.lower():.40} is none that a row can hold"
    if column.distinct <= 1 and not column.nulls:
        return "constant: one value in every row"
    if column.type.startswith("DECIMAL") and column.whole and max(-column.low, column.high) >= 2**63:  # type: ignore
        return "whole numbers that 64 bits do not hold: write them as text"
    if column.infinite:
        return f"{column.infinite:,} values are infinite, which would make their rows dead letters"
    if column.name == SAMPLE_WEIGHT:
        if not column.is_number or column.low is None:
            return f"it is {column.type.lower()}: a weight is a number, so every row counts 1"
        wrong = f"{column.nulls:,} rows have none" if column.nulls else f"the smallest is {column.low:g}"
        return (
            f"{wrong}, and a weight is 0 or more: without it every row counts 1"
            if column.nulls or column.low < 0
            else None
        )
    if column.name in asked:
        return None
    if column.is_number and column.low is not None and column.low >= 0 and column.name.lower() in WEIGHTS:
        return f"by its name `{column.name}` says what a row counts ({column.low:g} to {column.high:g})"
    if column.is_number and column.whole:
        if column.distinct == column.rows >= FEW and column.high - column.low + 1 == column.rows:  # type: ignore
            return f"a row number: {column.low:,.0f} to {column.high:,.0f}, another one in every row"
        if not _counts(column):
            if (step := float_step(column)) > 1:
                return merged(column, step)
            if column.distinct > 0.9 * column.rows and column.rows > SMALL:
                return f"another whole number in nearly every row ({column.distinct:,} in {column.rows:,}): an id"
    if column.kind == "text" and column.distinct > 0.9 * column.rows and column.rows > SMALL:
        return "another text in nearly every row: nothing to learn from"
    return None


def _instead(column: Seen) -> str:
    """What to write where a column that is left out is wanted."""
    if column.name.lower() in WEIGHTS and column.is_number:
        return (
            f". If it does, write `columns: {{{SAMPLE_WEIGHT}: {column.name}}}` under source, and `- {{name: "
            f"{SAMPLE_WEIGHT}, type: float32}}` under rows.columns; if it is a feature, name it there and under "
            "features.dense"
        )
    if column.name == SAMPLE_WEIGHT or not column.is_number or not column.whole or column.distinct <= 1:
        return ""
    return "; if it is a feature, name it under rows.columns and features"


def merged(column: Seen, step: int) -> str:
    """What floats have made of large ids."""
    bits = 53 if column.type == "DOUBLE" else 24
    return (
        f"ids in floats: above 2^{bits} floats do not hold every whole number, and at {column.high:,.0f} they stand "
        f"{step:,} (2^{step.bit_length() - 1}) apart, so that ids next to each other are one; {column.distinct:,} "
        "values are left, and which ids they were cannot be known any more: write them as int64 or text"
    )


def _weight(column: Seen) -> Feature:
    why = f"what a row counts, in losses and metrics: {column.low:g} to {column.high:g}, mean {column.mean:.3g}"
    return Feature(SAMPLE_WEIGHT, column.name, {"name": SAMPLE_WEIGHT, "type": "float32"}, None, {}, why)


def _said(column: Seen) -> list[Finding]:
    """Values that are taken for something else, or as they are though they look like more."""
    where, found = f"column `{column.name}`", []
    if column.nans:
        seen = f"{column.nans:,} of {column.rows:,} values are NaN (not a number)"
        found.append(note(where, seen, "NaN counts as null: the column is declared nullable, a missing value is 0"))
    if column.inner_nulls:
        seen = f"{column.inner_nulls:,} values inside lists are null"
        if column.kind == "floats":
            remedy = "their rows become dead letters, for in a list of floats each has its place: fill them"
            found.append(warn(where, seen, remedy))
        else:
            found.append(note(where, seen, "lists are taken without them"))
    if column.form:
        found.append(warn(where, *TEXT_FORMS[column.form]))
    if float_step(column) > 1 and column.whole and not _counts(column):
        found.append(warn(where, merged(column, float_step(column)), "it was named, and so it is taken"))
    return found


def feature_name(name: str, taken: set[str]) -> str:
    """A name that rows and features may have.

    >>> feature_name("user.id", set()), feature_name("block", set()), feature_name("a/b", {"a_b"})
    ('user_id', 'block_', 'a_b_')
    """
    clean = name.replace(".", "_").replace("/", "_").strip() or "column"
    while clean in taken or clean in RESERVED or clean.startswith(("label_", "teacher_logit_")):
        clean = f"of_{clean}" if clean.startswith(("label_", "teacher_logit_")) else f"{clean}_"
    return clean


def _feature(column: Seen, name: str) -> tuple[Feature, list[Finding]]:
    declared: dict[str, Any] = {"name": name}
    if column.nulls:
        declared["nullable"] = True
    if column.kind == "text":
        rows = hashed_rows(column.distinct)
        why = f"{column.distinct:,} texts{share_words(column.distinct, rows)}"
        return Feature(
            name, column.name, declared | {"type": "string"}, "sparse", {"name": name, "rows": rows}, why
        ), []
    if column.kind in ("ints", "texts"):
        return _list(column, name, declared), []
    if column.kind == "floats":
        return _vector(column, name, declared), []
    if column.kind == "flag":
        setting = {"name": name, "rows": 2, "transform": "index"}
        return Feature(name, column.name, declared, "sparse", setting, "true or false"), []
    if column.kind == "time":
        raise AssertionError("times are left out before")
    if not column.whole or _counts(column):
        return _number(column, name, declared)
    return _ids(column, name, declared)


def _counts(column: Seen) -> bool:
    """Whether whole numbers say how many, and not which."""
    assert column.low is not None
    assert column.high is not None
    which, how_many = named(column, CODES), named(column, NUMBERS)
    if which != how_many:
        return how_many > which
    if column.distinct <= 50 or column.low < 0:
        return column.low < 0 and column.distinct > 50
    spread = float(column.high) - float(column.low)
    return abs(column.mean - float(min(column.low, 0))) < LOW_PART * spread


def _ids(column: Seen, name: str, declared: dict[str, Any]) -> tuple[Feature, list[Finding]]:
    assert column.low is not None
    assert column.high is not None
    low, high, wrong = int(column.low), int(column.high), []
    what = f"{column.distinct:,} ids"
    if high >= 2**63:
        rows = hashed_rows(column.distinct)
        why = f"{what} up to {high:,}, more than int64 holds: as texts{share_words(column.distinct, rows)}"
        wrong.append(note(f"column `{name}`", why, "type: string keeps them as they are written"))
        return Feature(
            name, column.name, declared | {"type": "string"}, "sparse", {"name": name, "rows": rows}, why
        ), wrong
    if column.kind == "float" or (column.high > SMALL and not named(column, CODES)):
        seen = (
            f"{column.distinct:,} whole numbers from {low:,} to {high:,}: taken for ids, by "
            f"{'their values' if column.kind == 'int' else f'their values, though their type is {column.type.lower()}'}"
        )
        remedy = "as numbers, they would be a dense feature: which is larger would count, and not which it is"
        wrong.append((warn if column.kind == "float" else note)(f"column `{column.name}`", seen, remedy))
    if low >= 0 and high < max(SMALL, 4 * column.distinct):
        setting = {"name": name, "rows": high + 1, "transform": "index"}
        why = f"{what} of {low} to {high}: a row each; else hashed, if larger ones may come"
        return Feature(name, column.name, declared | {"minimum": 0, "maximum": high}, "sparse", setting, why), wrong
    rows = hashed_rows(column.distinct)
    why = f"{what} from {low:,} to {high:,}{share_words(column.distinct, rows)}; else a number"
    return Feature(name, column.name, declared, "sparse", {"name": name, "rows": rows}, why), wrong


def _number(column: Seen, name: str, declared: dict[str, Any]) -> tuple[Feature, list[Finding]]:
    assert column.low is not None
    assert column.high is not None
    declared = declared if column.kind == "int" else {"name": name, "type": "float32"} | declared
    setting: dict[str, Any] = {"name": name}
    span = f"{column.low:g} to {column.high:g}, mean {column.mean:.3g}"
    if (
        column.whole
        or max(abs(column.low), abs(column.high)) > 20 * max(column.std, 1e-9)
        or column.std > column.mean > 0
    ):
        setting["transform"] = "log1p"
        why = f"{span}: the logarithm" + ("; else ids" if column.whole else "; else standardise")
    elif column.low >= -1 and column.high <= 1 and column.std > SPREAD:
        why = f"{span}: as it is"
    else:
        setting |= {"transform": "standardise", "mean": float(f"{column.mean:.4g}"), "std": float(f"{column.std:.4g}")}
        why = f"{span}; else log1p"
    return Feature(name, column.name, declared, "dense", setting, why), []


def _vector(column: Seen, name: str, declared: dict[str, Any]) -> Feature:
    declared = declared | {"type": "list<float32>"}
    if column.shortest != column.longest or not 0 < column.longest <= MOST_FLOATS:
        lengths = f"lists of {column.shortest} to {column.longest} floats"
        why = f"{lengths}; a feature needs one length, {MOST_FLOATS:,} at most"
        return Feature(name, column.name, declared, None, {}, why)
    length = {"length": column.longest}
    return Feature(
        name, column.name, declared | length, "dense", {"name": name} | length, f"lists of {column.longest} floats"
    )


def _list(column: Seen, name: str, declared: dict[str, Any]) -> Feature:
    large = column.kind == "ints" and column.high is not None and column.high >= 2**63
    declared = declared | {"type": "list<string>" if column.kind == "texts" or large else "list<int64>"}
    rows = hashed_rows(column.distinct)
    kind = "texts" if column.kind == "texts" else "ids"
    what = f"{column.distinct:,} {kind} in lists of up to {column.longest}, {column.mean:.1f} on average"
    if column.words & IN_ORDER:
        setting = {"name": name, "rows": rows, "length": min(SEQUENCE, max(1, column.longest))}
        return Feature(name, column.name, declared, "sequence", setting, f"{what}, the most recent last; else a bag")
    return Feature(name, column.name, declared, "sparse", {"name": name, "rows": rows}, f"{what}: a bag, summed")


def unbounded(feature: Feature) -> Feature:
    """The feature as a stream has it that goes on: a number that is larger than those so far is hashed, not refused."""
    if "maximum" not in feature.column:
        return feature
    column = {key: value for key, value in feature.column.items() if key not in ("minimum", "maximum")}
    setting = {"name": feature.name, "rows": hashed_rows(feature.column["maximum"] + 1)}
    why = f"0 to {feature.column['maximum']:,} so far: hashed, for larger ones may come"
    return feature._replace(column=column, setting=setting, why=why)
