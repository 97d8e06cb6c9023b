"""Features: every other column becomes a table of ids, a float, a bag, a sequence, or nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pipelines.data.findings import Finding, Rules, Severity
from pipelines.data.profile.column import ColumnProfile
from pipelines.data.profile.file import FileProfile, float_step
from pipelines.data.propose.guess import named
from pipelines.data.propose.sizes import hashed_rows, share_words
from streaming.schema import LABEL_PREFIXES, RESERVED_NAMES, SAMPLE_WEIGHT

RULES = Rules("""
note|warn  init.column-left-out  column `{column}`
    {why}
    -> it is left out{instead}
note  init.column-weight  column `{column}`
    {why}
    -> no model reads it
note  init.column-nan  column `{column}`
    {nans:,} of {rows:,} values are NaN (not a number)
    -> NaN counts as null: the column is declared nullable, a missing value is 0
note  init.column-nulls-in-lists  column `{column}`
    {nulls:,} values inside lists are null
    -> lists are taken without them
warn  init.column-nulls-in-vectors  column `{column}`
    {nulls:,} values inside lists are null
    -> their rows become dead letters, for in a list of floats each has its place: fill them
warn  init.column-several-values  column `{column}`
    texts hold several values with `{mark}` between, and each text as a whole is taken for one id
    -> write them as lists, and each value has a row of its table: in DuckDB string_split(x, '{mark}')
warn  init.column-weighted-ids  column `{column}`
    texts hold ids, each with a number behind a colon, and each text as a whole is taken for one id
    -> write two columns: a list of the ids, and the numbers as dense features where their number is fixed
warn  init.column-shown-lists  column `{column}`
    texts hold items that were shown, each with 1 or 0 for clicked or not
    -> {recipe}
warn  init.column-merged-ids  column `{column}`
    {why}
    -> it was named, and so it is taken
note  init.column-beyond-int64  column `{column}`
    {why}
    -> type: string keeps them as they are written
note|warn  init.column-ids  column `{column}`
    {distinct:,} whole numbers from {low:,} to {high:,}: taken for ids, by their values{type}
    -> as numbers, they would be a dense feature: which is larger would count, and not which it is
""")

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
RECIPE = (
    "write a row for each: in DuckDB SELECT * EXCLUDE (x), regexp_extract(s, '(.*)-', 1) AS item, "
    "right(s, 1)::INT AS label FROM (SELECT *, unnest(string_split(x, ' ')) AS s FROM 'file')"
)
FEW = 100
SMALL = 1000
"""Whole numbers below it, and few of them, have a row each."""

SPREAD = 0.05
LOW_PART = 0.1
"""A mean below this share of the range: counts pile up near 0, ids do not."""

SEQUENCE = 20
MOST_FLOATS = 1024
"""Of a list: more would be most of a small model."""


class Feature(NamedTuple):
    """A feature and its `column`, as declared under rows.columns. `kind`: under which list of features `setting`
    stands; None: the column is kept in the lake, and no model reads it."""

    name: str
    source: str
    column: dict[str, Any]
    kind: str | None
    setting: dict[str, Any]
    why: str


class SkippedColumn(NamedTuple):
    """A column that is no feature, and why."""

    name: str
    why: str


class ProposedFeatures(NamedTuple):
    features: list[Feature]
    left_out: list[SkippedColumn]
    findings: list[Finding]


def find_features(
    file: FileProfile, left_out: Mapping[str, str], logged: Mapping[str, str], by_caller: Collection[str | None] = ()
) -> ProposedFeatures:
    """`left_out`: columns that are something else, or know the label, and why. `logged`: kept, but read by no model.
    `by_caller`: columns that the caller named."""
    proposed = ProposedFeatures([], [], [])
    names: set[str] = set()
    for column in file.columns.values():
        if column.name in left_out:
            if left_out[column.name]:
                proposed.left_out.append(SkippedColumn(column.name, left_out[column.name]))
            continue
        if (why := useless(column, by_caller)) is not None:
            proposed.left_out.append(SkippedColumn(column.name, why))
            severity = Severity.NOTE if column.kind == "other" else Severity.WARN
            about = {"column": column.name, "why": why, "instead": _instead(column)}
            proposed.findings.append(RULES("init.column-left-out", severity, **about))
            continue
        if column.name == SAMPLE_WEIGHT:
            feature = _weight(column)
            proposed.findings.append(RULES("init.column-weight", column=column.name, why=feature.why))
        else:
            feature = _feature(column, feature_name(column.name, names))
            proposed.findings.extend(_odd(column, feature))
        if column.name in logged:
            feature = feature._replace(kind=None, why=logged[column.name])
        names.add(feature.name)
        proposed.features.append(feature)
    return proposed


def useless(column: ColumnProfile, by_caller: Collection[str | None] = ()) -> str | None:
    """Reason why a column can be no feature, or should be none unless the caller asked for it."""
    low, high, distinct = column.low, column.high, column.distinct or 0
    if column.nulls == column.rows:
        return "null in every row"
    if column.kind == "other":
        return f"its type {column.type.lower():.40} is none that a row can hold"
    if distinct <= 1 and not column.nulls:
        return "constant: one value in every row"
    if column.type.startswith("DECIMAL") and column.whole and max(-low, high) >= 2**63:
        return "whole numbers that 64 bits do not hold: write them as text"
    if column.infinite:
        return f"{column.infinite:,} values are infinite, which would make their rows dead letters"
    if column.name == SAMPLE_WEIGHT:
        if not column.is_number or low is None:
            return f"it is {column.type.lower()}: a weight is a number, so every row counts 1"
        if not column.nulls and low >= 0:
            return None
        wrong = f"{column.nulls:,} rows have none" if column.nulls else f"the smallest is {low:g}"
        return f"{wrong}, and a weight is 0 or more: without it every row counts 1"
    if column.name in by_caller:
        return None
    if column.is_number and low is not None and low >= 0 and column.name.lower() in WEIGHTS:
        return f"by its name `{column.name}` says what a row counts ({low:g} to {high:g})"
    many = distinct > 0.9 * column.rows and column.rows > SMALL
    if column.is_number and column.whole:
        if distinct == column.rows >= FEW and high - low + 1 == column.rows:
            return f"a row number: {low:,.0f} to {high:,.0f}, another one in every row"
        if not _counts(column):
            if (step := float_step(column)) > 1:
                return merged(column, step)
            if many:
                return f"another whole number in nearly every row ({distinct:,} in {column.rows:,}): an id"
    return "another text in nearly every row: nothing to learn from" if column.kind == "text" and many else None


def _instead(column: ColumnProfile) -> str:
    """Setting to write for a column that is left out and yet wanted."""
    if column.name.lower() in WEIGHTS and column.is_number:
        return (
            f". If it does, write `columns: {{{SAMPLE_WEIGHT}: {column.name}}}` under source, and `- {{name: "
            f"{SAMPLE_WEIGHT}, type: float32}}` under rows.columns; if it is a feature, name it there and under "
            "features.dense"
        )
    if column.name == SAMPLE_WEIGHT or not column.is_number or not column.whole or (column.distinct or 0) <= 1:
        return ""
    return "; if it is a feature, name it under rows.columns and features"


def merged(column: ColumnProfile, step: int) -> str:
    """Words for large ids that floats have merged."""
    bits = 53 if column.type == "DOUBLE" else 24
    return (
        f"ids in floats: above 2^{bits} floats do not hold every whole number, and at {column.high:,.0f} they stand "
        f"{step:,} (2^{step.bit_length() - 1}) apart, so that ids next to each other are one; {column.distinct:,} "
        "values are left, and which ids they were cannot be known any more: write them as int64 or text"
    )


def _weight(column: ColumnProfile) -> Feature:
    why = f"what a row counts, in losses and metrics: {column.low:g} to {column.high:g}, mean {column.mean:.3g}"
    return Feature(SAMPLE_WEIGHT, column.name, {"name": SAMPLE_WEIGHT, "type": "float32"}, None, {}, why)


def _odd(column: ColumnProfile, feature: Feature) -> Iterator[Finding]:
    """Values that are taken for something else, or as they are though they look like more."""
    name, ids = column.name, column.is_number and column.whole and not _counts(column)
    if column.nans:
        yield RULES("init.column-nan", column=name, nans=column.nans, rows=column.rows)
    if column.inner_nulls:
        rule = "init.column-nulls-in-vectors" if column.kind == "floats" else "init.column-nulls-in-lists"
        yield RULES(rule, column=name, nulls=column.inner_nulls)
    if column.form == "weighted":
        yield RULES("init.column-weighted-ids", column=name)
    elif column.form == "shown":
        yield RULES("init.column-shown-lists", column=name, recipe=RECIPE)
    elif column.form:
        yield RULES("init.column-several-values", column=name, mark=column.form)
    if ids and (step := float_step(column)) > 1:
        yield RULES("init.column-merged-ids", column=name, why=merged(column, step))
    if not ids:
        return
    if column.high >= 2**63:
        yield RULES("init.column-beyond-int64", column=feature.name, why=feature.why)
    elif column.kind == "float" or (column.high > SMALL and not named(column, CODES)):
        severity = Severity.WARN if column.kind == "float" else Severity.NOTE
        type_ = "" if column.kind == "int" else f", though their type is {column.type.lower()}"
        about = {"column": name, "distinct": column.distinct, "low": int(column.low), "high": int(column.high)}
        yield RULES("init.column-ids", severity, **about, type=type_)


def feature_name(name: str, taken: set[str]) -> str:
    """A name that rows and features may have.

    >>> feature_name("user.id", set()), feature_name("block", set()), feature_name("a/b", {"a_b"})
    ('user_id', 'block_', 'a_b_')
    """
    clean = name.replace(".", "_").replace("/", "_").strip() or "column"
    while clean in taken or clean in RESERVED_NAMES or clean.startswith(LABEL_PREFIXES):
        clean = f"of_{clean}" if clean.startswith(LABEL_PREFIXES) else f"{clean}_"
    return clean


def _feature(column: ColumnProfile, name: str) -> Feature:
    declared: dict[str, Any] = {"name": name} | ({"nullable": True} if column.nulls else {})
    rows, distinct = hashed_rows(column.distinct or 0), column.distinct or 0
    hashed, shared = {"name": name, "rows": rows}, share_words(distinct, rows)
    if column.kind == "text":
        return Feature(
            name, column.name, declared | {"type": "string"}, "sparse", hashed, f"{distinct:,} texts{shared}"
        )
    if column.kind in ("ints", "texts"):
        return _list(column, name, declared)
    if column.kind == "floats":
        return _vector(column, name, declared)
    if column.kind == "flag":
        setting = {"name": name, "rows": 2, "transform": "index"}
        return Feature(name, column.name, declared, "sparse", setting, "true or false")
    if column.kind == "time":
        raise AssertionError("times are left out before")
    if not column.whole or _counts(column):
        return _number(column, name, declared)
    low, high = int(column.low), int(column.high)
    if high >= 2**63:
        why = f"{distinct:,} ids up to {high:,}, more than int64 holds: as texts{shared}"
        return Feature(name, column.name, declared | {"type": "string"}, "sparse", hashed, why)
    if low >= 0 and high < max(SMALL, 4 * distinct):
        setting = {"name": name, "rows": high + 1, "transform": "index"}
        why = f"{distinct:,} ids of {low} to {high}: a row each; else hashed, if larger ones may come"
        return Feature(name, column.name, declared | {"minimum": 0, "maximum": high}, "sparse", setting, why)
    why = f"{distinct:,} ids from {low:,} to {high:,}{shared}; else a number"
    return Feature(name, column.name, declared, "sparse", hashed, why)


def _counts(column: ColumnProfile) -> bool:
    """True if whole numbers are counts, and no codes."""
    which, how_many = named(column, CODES), named(column, NUMBERS)
    if which != how_many:
        return how_many > which
    if (column.distinct or 0) <= 50 or column.low < 0:
        return column.low < 0 and (column.distinct or 0) > 50
    spread = float(column.high) - float(column.low)
    return abs(column.mean - float(min(column.low, 0))) < LOW_PART * spread


def _number(column: ColumnProfile, name: str, declared: dict[str, Any]) -> Feature:
    low, high, mean, std = column.low, column.high, column.mean, column.std
    declared = declared if column.kind == "int" else {"name": name, "type": "float32"} | declared
    setting: dict[str, Any] = {"name": name}
    span = f"{low:g} to {high:g}, mean {mean:.3g}"
    if column.whole or max(abs(low), abs(high)) > 20 * max(std, 1e-9) or std > mean > 0:
        setting["transform"] = "log1p"
        why = f"{span}: the logarithm" + ("; else ids" if column.whole else "; else standardise")
    elif low >= -1 and high <= 1 and std > SPREAD:
        why = f"{span}: as it is"
    else:
        setting |= {"transform": "standardise", "mean": float(f"{mean:.4g}"), "std": float(f"{std:.4g}")}
        why = f"{span}; else log1p"
    return Feature(name, column.name, declared, "dense", setting, why)


def _vector(column: ColumnProfile, name: str, declared: dict[str, Any]) -> Feature:
    declared = declared | {"type": "list<float32>"}
    if column.shortest != column.longest or not 0 < column.longest <= MOST_FLOATS:
        lengths = f"lists of {column.shortest} to {column.longest} floats"
        why = f"{lengths}; a feature needs one length, {MOST_FLOATS:,} at most"
        return Feature(name, column.name, declared, None, {}, why)
    length, why = {"length": column.longest}, f"lists of {column.longest} floats"
    return Feature(name, column.name, declared | length, "dense", {"name": name} | length, why)


def _list(column: ColumnProfile, name: str, declared: dict[str, Any]) -> Feature:
    large = column.kind == "ints" and column.high is not None and column.high >= 2**63
    declared = declared | {"type": "list<string>" if column.kind == "texts" or large else "list<int64>"}
    setting = {"name": name, "rows": hashed_rows(column.distinct or 0)}
    kind = "texts" if column.kind == "texts" else "ids"
    what = f"{column.distinct:,} {kind} in lists of up to {column.longest}, {column.mean:.1f} on average"
    if column.words & IN_ORDER:
        setting["length"] = min(SEQUENCE, max(1, column.longest))
        return Feature(name, column.name, declared, "sequence", setting, f"{what}, the most recent last; else a bag")
    return Feature(name, column.name, declared, "sparse", setting, f"{what}: a bag, summed")


def unbounded(feature: Feature) -> Feature:
    """The feature for an unbounded stream: a number larger than those so far is hashed, not refused."""
    if "maximum" not in feature.column:
        return feature
    column = {key: value for key, value in feature.column.items() if key not in ("minimum", "maximum")}
    setting = {"name": feature.name, "rows": hashed_rows(feature.column["maximum"] + 1)}
    why = f"0 to {feature.column['maximum']:,} so far: hashed, for larger ones may come"
    return feature._replace(column=column, setting=setting, why=why)
