"""Types of text values: recognise and convert, one row of `TYPES` each.

A type is *proposed* from the first rows and *proven* on every row: the query that writes the values stops at the first
one that the type does not hold exactly, and then the type is chosen anew from all rows. A value is taken as it is
written, or read as null where the table below says so (and that is counted), or its column is text. In a column that a
config declares, a value that its type cannot hold stops the reading, with its row.

    text        number                   time
    (empty)     null                     null
    a NULL_WORD null, counted            null, counted
    007         text: 7 is another id    -
    1e3, 3.50   float                    -
    2^53 + 1    int64, or text beside fractions: a float does not hold it
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from streaming.sources.tables.copies import LOCAL_TIME
from streaming.sources.tables.engine import TableEngine, literal, quoted

NULL_WORDS = ("NULL", "null", "Null", "\\N", "NA", "N/A", "n/a", "NaN", "nan", "None", "-", "?")
"""What stands for an absent value in a column of numbers or times; in a column of text it is text."""

LARGEST_EXACT = 2**53
"""A float holds every whole number up to it, and not the next."""

NEARLY = 0.9
"""A column of text whose values are of another type in this share is named."""

PROOF = "exfm: a value that its column cannot hold: "


class Written(NamedTuple):
    """`holds`: SQL that is true of a text that the type holds exactly; `value`: SQL of its value. `x` is the text."""

    holds: str
    value: str


_NO_SIGN_OF_AN_ID = "NOT regexp_matches(x, '^[+-]?0[0-9]|_')"
_A_NUMBER = "NOT isnan(TRY_CAST(x AS DOUBLE)) AND (isfinite(TRY_CAST(x AS DOUBLE)) OR NOT regexp_matches(x, '[0-9]'))"
_FLOAT = (
    f"{_A_NUMBER} AND {_NO_SIGN_OF_AN_ID} "
    f"AND (abs(TRY_CAST(x AS DOUBLE)) < {LARGEST_EXACT} OR NOT regexp_full_match(x, '[+-]?[0-9]+'))"
)
_DATE = "CAST(TRY_CAST(x AS DATE) AS VARCHAR) = x"
_CLOCK = "[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?"
_ZONE = " ?(Z|UTC|[+-][0-9]{2}(:?[0-9]{2})?)?"

TYPES: Mapping[str, Written] = {
    "BIGINT": Written("CAST(TRY_CAST(x AS BIGINT) AS VARCHAR) = x", "TRY_CAST(x AS BIGINT)"),
    "DOUBLE": Written(_FLOAT, "TRY_CAST(x AS DOUBLE)"),
    "BOOLEAN": Written("lower(x) IN ('true', 'false')", "lower(x) = 'true'"),
    "DATE": Written(_DATE, "TRY_CAST(x AS DATE)"),
    "TIMESTAMP": Written(
        f"TRY_CAST(x AS TIMESTAMP) IS NOT NULL AND (regexp_full_match(x, '{_CLOCK}') OR {_DATE})",
        "TRY_CAST(x AS TIMESTAMP)",
    ),
    "TIMESTAMPTZ": Written(
        f"TRY_CAST(x AS TIMESTAMPTZ) IS NOT NULL AND (regexp_full_match(x, '{_CLOCK}{_ZONE}') OR {_DATE})",
        "TRY_CAST(x AS TIMESTAMPTZ)",
    ),
}
"""The types that a column of text may turn out to have, the narrowest first."""

TEXTS: Mapping[str, str] = {
    "whole numbers, not all of which are numbers of 64 bits as they are written (too large, or zeros in front)":
    "regexp_full_match(x, '[+-]?[0-9]+')",
    "numbers with a decimal comma (write 0.5 to have them as numbers)": "regexp_full_match(x, '[+-]?[0-9]+,[0-9]+')",
    "dates in a form of their own (an event time is read by `event_time_form`)":
    "regexp_full_match(x, '([0-9]{1,2}[/.][0-9]{1,2}[/.][0-9]{2,4}|[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2})([ T].*)?')",
    "numbers with a currency, a per cent sign or blanks (write plain ones to have them as numbers)":
    "regexp_full_match(x, '[$€£] ?[+-]?[0-9.,]+|[+-]?[0-9.,]+ ?[%$€£]|[+-]?[0-9]{1,3}( [0-9]{3})+([.,][0-9]+)?')",
}  # fmt: skip
"""What a column of text is said to hold, where all its values are so."""

DECLARED: Mapping[str, Written] = {
    "int64": Written(
        "((TRY_CAST(x AS BIGINT) IS NOT NULL AND regexp_full_match(x, '[+-]?[0-9]+([.]0*)?')) "
        "OR lower(x) IN ('true', 'false'))",
        "CASE lower(x) WHEN 'true' THEN 1 WHEN 'false' THEN 0 ELSE TRY_CAST(x AS BIGINT) END",
    ),
    "float32": Written(f"{_A_NUMBER} AND NOT contains(x, '_')", "TRY_CAST(x AS DOUBLE)"),
}
"""How a column is read that a config declares as a number: 007 is 7 there, and true is 1."""


class ColumnReading(NamedTuple):
    """Reading of a column of texts: `type`, a key of TYPES, or None: as text. `nulls`: the NULL_WORDS it has.
    `declared`: the type that a config gives it, a key of DECLARED. `nearly`: the type of most values of a text.
    `looks`: which of TEXTS all its values are."""

    type: str | None
    nulls: tuple[str, ...] = ()
    declared: str | None = None
    nearly: str | None = None
    looks: str | None = None

    @property
    def is_text(self) -> bool:
        return self.type is None and self.declared is None

    def sql(self, column: str) -> str:
        """The value of `column`, or an error of the engine whose words are PROOF, the column and the text."""
        text = quoted(column)
        if self.is_text:
            return text
        rule = DECLARED[self.declared] if self.declared is not None else TYPES[str(self.type)]
        x = f"trim({text})"
        of_null = f"{text} IS NULL OR {x} = ''" + (f" OR {x} IN ({_listed(self.nulls)})" if self.nulls else "")
        error = f"error({literal(PROOF + column + ' ')} || {text})"
        return (
            f"CASE WHEN {_of(rule.holds, text)} THEN {_of(rule.value, text)} WHEN {of_null} THEN NULL "
            f"WHEN {_of(rule.holds, x)} THEN {_of(rule.value, x)} ELSE {error} END"
        )

    def broken(self, column: str) -> str:
        """SQL that is true for a text of `column` that the type cannot hold."""
        rule = DECLARED[self.declared] if self.declared is not None else TYPES[str(self.type)]
        x = f"trim({quoted(column)})"
        return (
            f"NOT coalesce({x} = '' OR {x} IN ({_listed(NULL_WORDS)}) OR coalesce({_of(rule.holds, x)}, false), true)"
        )


def choose(
    engine: TableEngine, relation: str, columns: list[str], declared: Mapping[str, str]
) -> dict[str, ColumnReading]:
    """Choose a type for each of `columns`, texts in `relation`, so that no value changes.

    declared: the types that a config gives some of them: string, int64, float32 or LOCAL_TIME.
    """
    typed = [name for name in columns if declared.get(name) in DECLARED]
    free = [name for name in columns if declared.get(name, LOCAL_TIME) == LOCAL_TIME]
    chosen = {name: ColumnReading(None) for name in columns}
    counted = [count for name in free for count in _counts(name)]
    counted += [f"list_distinct(list(trim({quoted(n)})) FILTER ({_is_null_word(n)}))" for n in (*free, *typed)]
    if not counted:
        return chosen
    counts = iter(engine.row(f"SELECT {', '.join(counted)} FROM {relation}"))
    for name in free:
        values = next(counts)
        held = {type_: next(counts) for type_ in TYPES}
        texts = {text: next(counts) for text in TEXTS}
        best = max(held, key=lambda type_: held[type_])
        if fits := next((type_ for type_, count in held.items() if 0 < count == values), None):
            chosen[name] = ColumnReading(None if fits == "TIMESTAMPTZ" and name in declared else fits)
        elif looks := next((text for text, count in texts.items() if 0 < count == values), None):
            chosen[name] = ColumnReading(None, looks=looks)
        elif values and held[best] >= NEARLY * values:
            chosen[name] = ColumnReading(None, nearly=best)
    for name in typed:
        chosen[name] = ColumnReading(None, declared=declared[name])
    for name in (*free, *typed):
        if (words := next(counts)) and not chosen[name].is_text:
            chosen[name] = chosen[name]._replace(nulls=tuple(sorted(words)))
    return chosen


def moments(engine: TableEngine, relation: str, columns: list[str]) -> list[str]:
    """Text columns with a date and a time in every row."""
    if not columns:
        return []
    holds = [f"bool_and(regexp_full_match({quoted(name)}, '{_CLOCK}{_ZONE}'))" for name in columns]
    return [
        name
        for name, all_are in zip(columns, engine.row(f"SELECT {', '.join(holds)} FROM {relation}"), strict=True)
        if all_are
    ]


def strange_values(engine: TableEngine, relation: str, name: str, type_: str) -> tuple[int, int, int, str]:
    """Number of values of a text column that are not of `type_`, and of all; the first of them, its row and its
    text."""
    values, held = engine.row(f"SELECT {', '.join(_counts(name, (type_,)))} FROM {relation}")
    return values - held, values, *first_broken(engine, relation, name, ColumnReading(type_))


def _counts(name: str, types: Collection[str] = (*TYPES, *TEXTS)) -> list[str]:
    """SQL of how many values a column has, and how many of them each type holds or each of TEXTS is."""
    x = f"trim({quoted(name)})"
    value = f"{quoted(name)} IS NOT NULL AND {x} <> '' AND NOT {_is_null_word(name)}"
    rules = (_of(TYPES[each].holds if each in TYPES else TEXTS[each], x) for each in types)
    return [f"count(*) FILTER (WHERE {value})", *(f"count(*) FILTER (WHERE {value} AND ({rule}))" for rule in rules)]


def _is_null_word(name: str) -> str:
    return f"(trim({quoted(name)}) IN ({_listed(NULL_WORDS)}))"


def first_broken(engine: TableEngine, relation: str, name: str, read: ColumnReading) -> tuple[int, str]:
    """Row (from 1) and text of the first value that `read` cannot hold."""
    numbered = f"(SELECT row_number() OVER () AS n, {quoted(name)} FROM {relation})"
    row, text = engine.row(f"SELECT n, {quoted(name)} FROM {numbered} WHERE {read.broken(name)} ORDER BY n LIMIT 1")
    return int(row), str(text)


def _of(sql: str, x: str) -> str:
    """A rule of the tables above, of the text `x`."""
    return re.sub(r"\bx\b", lambda _: x, sql)


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(map(literal, words))
