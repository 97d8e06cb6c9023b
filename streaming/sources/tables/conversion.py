"""Text files and folders as one Parquet file, in constant memory, without changing a value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from streaming.errors import BadInput
from streaming.sources.tables.dialect import Dialect, dialect_of, ragged
from streaming.sources.tables.engine import THREADS, TableEngine, file_literal, literal, quoted
from streaming.sources.tables.forms import Files
from streaming.sources.tables.written import (
    LARGEST_EXACT,
    PROOF,
    ColumnReading,
    choose,
    first_broken,
    moments,
    strange_values,
)

LOOKED_AT = 20_000
"""Rows from which types are proposed. They decide nothing: see written.py."""

LONG_DIGITS = 16
"""Whole numbers of fewer digits are exact as floats."""


def as_parquet(
    engine: TableEngine,
    files: Files,
    to: Path,
    *,
    header: bool | None = None,
    encoding: str | None = None,
    declared: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Write the rows of `files` to `to`, in their order; yields a description of each action.

    header: whether the first line of a table names its columns; None: found out. encoding: of a table; None: UTF-8.
    declared: the types of columns, string, int64 or float32; names that the files do not have are passed over.
    Raises BadInput for a value that a declared type cannot hold, lines of another number of fields, files of one column
    that cannot be united.
    """
    declared = declared or {}
    names = "[" + ", ".join(file_literal(path) for path in files.paths) + "]"
    yield f"{files.words} written as one Parquet file"
    if files.form in ("parquet", "delta"):
        yield from _parquet(engine, files, names, to)
    elif files.form == "lines":
        relation, texts, mixed = _lines(engine, f"{names}, {_hive(files)}", declared)
        yield from (f"`{name}` is read as text, as it is written: its values are of several kinds" for name in mixed)
        yield from _proven(engine, files, relation, texts, declared, to)
    else:
        dialect = dialect_of(engine, files, header, encoding)
        dialect = dialect._replace(options=f"{_hive(files)}, hive_types_autocast = false, {dialect.options}")
        relation = f"read_csv({names}, {dialect.options})"
        yield from _table(engine, files, relation, dialect, declared, to)


def _parquet(engine: TableEngine, files: Files, names: str, to: Path) -> Iterator[str]:
    options = f"union_by_name = true, {_hive(files)}"
    if files.partitions:
        types = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in files.partitions.items())
        options += f", hive_types = {{{types}}}"
    yield from _united(files)
    relation = f"read_parquet({names}, {options})"
    wide = {name for name, kind in engine.types(relation).items() if kind in ("HUGEINT", "UHUGEINT")}
    columns = ", ".join(
        f"{quoted(name)}::VARCHAR AS {quoted(name)}" if name in wide else quoted(name)
        for name in engine.types(relation)
    )
    engine.write(f"SELECT {columns} FROM {relation}", to)
    if wide:
        yield f"read as text, for not every value is a number of 64 bits: {', '.join(sorted(wide))}"


def _hive(files: Files) -> str:
    """Option by which names of folders are columns: DuckDB would take those above the files, too."""
    return f"hive_partitioning = {str(files.hive).lower()}"


def _united(files: Files) -> Iterator[str]:
    """Effect of a union of Parquet files on columns that not all have; BadInput where it would change values."""
    if len(files.paths) < 2:
        return
    of: dict[str, dict[str, Path]] = {}
    count: dict[str, int] = {}
    for path in files.paths:
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError):
            return  # the engine says what is wrong with it
        for field in schema:
            of.setdefault(field.name, {}).setdefault(_kind(field.type), path)
            count[field.name] = count.get(field.name, 0) + 1
    for name, kinds in of.items():
        if "whole" in kinds and "float" in kinds and (beyond := _beyond_floats(files, name)) is not None:
            raise BadInput(
                f"`{name}` is of whole numbers in {beyond.name}, some beyond 2^53, and of floats in "
                f"{kinds['float'].name}, which cannot hold these: different ids would become one; write all files with "
                "one type"
            )
        if "text" in kinds and len(kinds) > 1:
            other = next(kind for kind in kinds if kind != "text")
            if other == "float":
                raise BadInput(
                    f"`{name}` is text in {kinds['text'].name} and of floats in {kinds['float'].name}; write all files "
                    "with one type"
                )
            yield f"`{name}` is text, as in {kinds['text'].name}; in {kinds[other].name} it is {other}"
    yield from _absent(count, len(files.paths))


def _absent(count: Mapping[str, int], files: int) -> Iterator[str]:
    yield from (
        f"`{name}` is in {there:,} of {files:,} files, and null in the others"
        for name, there in count.items()
        if there < files
    )


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "whole"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "float"
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else str(kind)


def _beyond_floats(files: Files, name: str) -> Path | None:
    """The first file whose whole numbers in a column are too large for a float."""
    for path in files.paths:
        file = pq.ParquetFile(path)
        if name not in file.schema_arrow.names or not pa.types.is_integer(file.schema_arrow.field(name).type):
            continue
        for batch in file.iter_batches(columns=[name]):
            if any(value is not None and abs(value) > LARGEST_EXACT for value in batch.column(0).unique().to_pylist()):
                return path
    return None


def _lines(engine: TableEngine, names: str, declared: Mapping[str, str]) -> tuple[str, list[str], list[str]]:
    """The relation of files of JSON, its columns that come as the texts of their numbers and times, and those whose
    values are of several kinds.

    A JSON text is a text, whatever it looks like, but for one that has a date and a time in every row.
    """
    structure = structure_of(engine, f"read_json_objects({names})")
    types = {name: "VARCHAR" if kind in NUMBERS else sql_type(kind) for name, kind in structure.items()}
    for name, kind in types.items():
        as_text = kind if structure[name] in NUMBERS else sql_type(structure[name], "VARCHAR")
        if as_text != kind and _long_numbers(engine, names, name, as_text) > _long_numbers(engine, names, name, kind):
            raise BadInput(
                f"`{name}` holds whole numbers of {LONG_DIGITS} digits or more where other rows have fractions "
                f"({kind}): as floats, different ids would become one; write them as texts"
            )
    relation = _json(names, types)
    numbers = [name for name, kind in structure.items() if kind in NUMBERS and declared.get(name) != "string"]
    free = [name for name, kind in structure.items() if kind == "VARCHAR" and name not in declared]
    mixed = [name for name, kind in structure.items() if kind == MIXED and name not in declared]
    return relation, [*numbers, *moments(engine, f"(FROM {relation} LIMIT {LOOKED_AT})", free)], mixed


def _json(names: str, types: Mapping[str, str]) -> str:
    columns = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in types.items())
    return f"read_json({names}, format = 'auto', records = 'true', columns = {{{columns}}})"


def _long_numbers(engine: TableEngine, names: str, name: str, kind: str) -> int:
    """Count of the texts of long whole numbers in a nested column, where it is read as `kind`."""
    count_sql = f"len(regexp_extract_all(to_json({quoted(name)})::VARCHAR, '\"-?[0-9]{{{LONG_DIGITS},}}\"'))"
    (count,) = engine.row(f"SELECT coalesce(sum({count_sql}), 0) FROM {_json(names, {name: kind})}")
    return int(count)


def _table(
    engine: TableEngine, files: Files, relation: str, dialect: Dialect, declared: Mapping[str, str], to: Path
) -> Iterator[str]:
    try:
        columns = list(engine.types(relation))
        yield from _proven(engine, files, relation, columns, declared, to)
    except duckdb.Error as error:
        if (fault := ragged(files, dialect)) is not None:
            raise BadInput(fault) from None
        raise error
    if len(files.paths) > 1 and dialect.header:
        count = {name: 0 for name in columns}
        for path in files.paths:
            for name in engine.types(f"read_csv({file_literal(path)}, {dialect.options})"):
                count[name] += 1
        yield from _absent(count, len(files.paths))


def _proven(
    engine: TableEngine, files: Files, relation: str, texts: list[str], declared: Mapping[str, str], to: Path
) -> Iterator[str]:
    """Write a relation, its columns `texts` in the types that their values have, each proven on every row."""
    reads = choose(engine, f"(FROM {relation} LIMIT {LOOKED_AT})", texts, declared)
    try:
        _write(engine, files, relation, reads, to)
    except duckdb.Error as error:
        if PROOF not in str(error):
            raise
        _declared_hold(engine, files, relation, reads)
        reads = choose(engine, relation, texts, declared)
        _write(engine, files, relation, reads, to)
    for name, read in reads.items():
        if read.nulls:
            words = ", ".join(read.nulls)
            yield f"`{name}`: {_nulls(engine, relation, name, read):,} values read as null ({words})"
        if read.looks is not None:
            yield f"`{name}` is read as text: it holds {read.looks}"
        elif read.nearly is not None:
            strange, values, row, text = strange_values(engine, relation, name, read.nearly)
            yield (
                f"`{name}` is read as text: {strange:,} of {values:,} values are no {read.nearly.lower()}, the first "
                f"in row {row:,}: {text!r:.60}; mend them to have numbers or times"
            )


def _write(engine: TableEngine, files: Files, relation: str, reads: Mapping[str, ColumnReading], to: Path) -> None:
    columns = [
        f"{reads[name].sql(name)} AS {quoted(name)}" if name in reads else quoted(name)
        for name in engine.types(relation)
    ]
    threads = 1 if len(files.paths) > 1 else THREADS
    engine.write(f"SELECT {', '.join(columns)} FROM {relation}", to, threads=threads)


def _declared_hold(engine: TableEngine, files: Files, relation: str, reads: Mapping[str, ColumnReading]) -> None:
    """Raises BadInput for the first value that is none of the type that a config declares."""
    for name, read in reads.items():
        if read.declared is None:
            continue
        try:
            row, text = first_broken(engine, relation, name, read)
        except ValueError:  # there is none
            continue
        raise BadInput(
            f"{files.words}, row {row:,}: `{name}` is {text!r:.60}, and it is declared {read.declared}; mend the row, "
            f"or declare the column as what it is (`type: {'float32' if _is_float(text) else 'string'}`)"
        )


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _nulls(engine: TableEngine, relation: str, name: str, read: ColumnReading) -> int:
    words = ", ".join(map(literal, read.nulls))
    (count,) = engine.row(f"SELECT count(*) FILTER (WHERE trim({quoted(name)}) IN ({words})) FROM {relation}")
    return int(count)


NUMBERS = ("BIGINT", "UBIGINT", "DOUBLE")
MIXED = "JSON"
"""Of a key whose values are of several kinds: they stay as they are written."""


def structure_of(engine: TableEngine, objects: str) -> dict[str, Any]:
    """Name -> the kind of its values: the name of a type of JSON's own, a dictionary of the same, or a list of one.
    `objects`: a relation with a column `json`.

    Raises BadInput for a row that is no object, and for keys that differ by capitals only.
    """
    structure: Any = "NULL"
    for (text,) in engine.rows(f"SELECT DISTINCT json_structure(json) FROM {objects}"):
        structure = united(structure, json.loads(text))
    if not isinstance(structure, dict):
        raise BadInput("a row is no JSON object: `{…}` is needed, one after the other or in one array")
    if "" in structure:
        raise BadInput("a key is empty; give it a name")
    spelled: dict[str, str] = {}
    for name in structure:
        if (other := spelled.setdefault(name.lower(), name)) != name:
            raise BadInput(f"keys `{other}` and `{name}` differ by capitals only; give one of them another name")
    return structure


def united(one: Any, other: Any) -> Any:
    """
    >>> united({"a": "UBIGINT", "b": ["NULL"]}, {"a": "DOUBLE", "b": ["VARCHAR"], "c": "BOOLEAN"})
    {'a': 'DOUBLE', 'b': ['VARCHAR'], 'c': 'BOOLEAN'}
    >>> united("BIGINT", "UBIGINT"), united("VARCHAR", {"a": "NULL"})
    ('BIGINT', 'JSON')
    """
    if one == other or other == "NULL":
        return one
    if one == "NULL":
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: united(one.get(name, "NULL"), kind) for name, kind in other.items()}
    if isinstance(one, list) and isinstance(other, list):
        return [united(one[0], other[0])]
    if isinstance(one, str) and isinstance(other, str) and {one, other} <= {*NUMBERS}:
        return "DOUBLE" if "DOUBLE" in (one, other) else "BIGINT"
    return MIXED


def sql_type(kind: Any, floats: str = "DOUBLE") -> str:
    """The type that DuckDB reads such values as; `floats`: the one of fractions.

    >>> sql_type({"id": "UBIGINT", "seen": [{"at": "DOUBLE"}]})
    'STRUCT("id" BIGINT, "seen" STRUCT("at" DOUBLE)[])'
    """
    if isinstance(kind, Mapping):
        return "STRUCT(" + ", ".join(f"{quoted(name)} {sql_type(each, floats)}" for name, each in kind.items()) + ")"
    if isinstance(kind, list):
        return f"{sql_type(kind[0], floats)}[]"
    if kind in NUMBERS:
        return floats if kind == "DOUBLE" else "BIGINT"
    return "BOOLEAN" if kind == "BOOLEAN" else "VARCHAR"
