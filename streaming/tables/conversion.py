"""Text and folders as one Parquet file, in constant memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import duckdb

from streaming.tables.engine import Engine, literal, quoted
from streaming.tables.forms import Files

LOOKED_AT = 100_000
EXACT = 2**53
"""Beyond it a float no longer holds every whole number: ids that are read as floats fall together."""


def as_parquet(
    engine: Engine, files: Files, to: Path, *, header: bool | None = None, texts: Collection[str] = ()
) -> Iterator[str]:
    """Write the rows of `files` to `to`, in their order; yields what was done, in words.

    header: whether the first line of a table names its columns; None: found out. texts: columns that stay text whatever
    they look like; a name that the files do not have is passed over.
    """
    names = "[" + ", ".join(literal(file) for file in files.paths) + "]"
    yield f"{files.words} written as one Parquet file"
    if files.form == "parquet":
        engine.write(f"SELECT * FROM read_parquet({names}, union_by_name = true)", to)
    elif files.form == "delta":  # columns that it is partitioned by stand in the names of folders
        engine.write(f"SELECT * FROM read_parquet({names}, union_by_name = true, hive_partitioning = true)", to)
    elif files.form == "lines":
        engine.write(f"SELECT * FROM {_lines(engine, names, texts)}", to)
    else:
        yield from _table(engine, files, names, to, header, texts)


def _lines(engine: Engine, names: str, texts: Collection[str]) -> str:
    """The relation of files of JSON lines. An id of 32 digits is a text like any other."""
    found = f"{names}, union_by_name = true, sample_size = {LOOKED_AT}"
    types = engine.types(f"read_json({found})")
    own = {name: "VARCHAR" for name, kind in types.items() if kind == "UUID" or name in texts}
    if not own:
        return f"read_json({found})"
    return f"read_json({found}, columns = {_types(types | own)})"


def _table(
    engine: Engine, files: Files, names: str, to: Path, header: bool | None, texts: Collection[str]
) -> Iterator[str]:
    options = "" if header is None else f", header = {str(header).lower()}"
    found = engine.types(_csv(names, options, []))
    if len(found) == 1 and "::" in next(iter(found)):  # two signs, which are not looked for by themselves
        options += ", delim = '::'" + (", header = false" if header is None else "")
        found = engine.types(_csv(names, options, []))
    elif header is None and (own := [name for name in texts if name in found]):
        # Found out before types are given: where all columns are text, a first line of names looks like any other.
        (seen,) = engine.row(f"SELECT HasHeader FROM sniff_csv({literal(files.paths[0])})")
        options += f", header = {str(bool(seen)).lower()}" if own else ""
    too_large = _too_large(engine, names, options)
    as_text = [*too_large, *(name for name in texts if name in found and name not in too_large)]
    wide = list(too_large)
    while True:
        try:
            engine.write(f"SELECT * FROM {_csv(names, options, as_text)}", to)
            break
        except duckdb.Error as error:
            wrong = re.search(r'column "(.+?)"', str(error))
            if wrong is None or wrong[1] in as_text or "onver" not in str(error):
                raise
            as_text.append(wrong[1])
            wide.append(wrong[1])
    if wide:
        yield f"read as text, for not every value is a number of 64 bits: {', '.join(wide)}"


def _csv(names: str, options: str, as_text: list[str]) -> str:
    """The relation of CSV or TSV files; separator, quotes and types are found out."""
    given = f", types = {_types(dict.fromkeys(as_text, 'VARCHAR'))}" if as_text else ""
    return f"read_csv({names}, sample_size = {LOOKED_AT}{options}{given})"


def _types(types: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in types.items()) + "}"


def _too_large(engine: Engine, names: str, options: str) -> list[str]:
    """Columns of whole numbers that were taken for floats because they are too large: their ids would fall together."""
    relation = _csv(names, options, [])
    types = engine.types(relation)
    found = [name for name, kind in types.items() if kind in ("HUGEINT", "UHUGEINT") or kind.endswith(",0)")]
    floats = [name for name, kind in types.items() if kind == "DOUBLE"]
    if not floats:
        return found
    largest = ", ".join(f"max(abs({quoted(name)}))" for name in floats)
    most = engine.row(f"SELECT {largest} FROM (FROM {relation} LIMIT {LOOKED_AT})")
    return found + [
        name for name, high in zip(floats, most, strict=True) if high is not None and EXACT <= high < 2.0**127
    ]
