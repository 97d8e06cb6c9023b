"""A file as people have it, as one Parquet file: Parquet as it is, text and folders converted once, constant memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb

from pipelines.init.engine import Engine, in_words, literal, parquet, quoted
from streaming.errors import BadInput

PACKED = (".gz", ".gzip", ".zst", ".zstd")
TABLES, LINES, COLUMNS = (".csv", ".tsv", ".txt", ".dat"), (".json", ".jsonl", ".ndjson"), (".parquet", ".pq")
LOOKED_AT = 100_000
EXACT = 2**53
"""Beyond it a float no longer holds every whole number: ids that are read as floats fall together."""


class Source(NamedTuple):
    """`path`: a Parquet file; `made`: it was made here. `said`: what was done to come to it."""

    path: Path
    made: bool
    said: tuple[str, ...]


def opened(engine: Engine, path: Path, to: Path, header: bool | None) -> Source:
    """The rows at `path`. What is no single Parquet file is written as one to `to`.

    header: whether the first line of a text names its columns; None: found out.
    Raises BadInput for what is absent, empty, or none of these forms.
    """
    files, form = _files(path)
    try:
        source = Source(files[0], False, ())
        if form != "parquet" or len(files) > 1:
            source = Source(to, True, tuple(_converted(engine, files, form, to, header)))
        if not engine.row(f"SELECT count(*) FROM {parquet(source.path)}")[0]:
            raise BadInput(f"{path} has no rows; give a file that has some")
    except duckdb.Error as error:
        raise in_words(error, path) from None
    return source


def _converted(engine: Engine, files: list[Path], form: str, to: Path, header: bool | None) -> Iterator[str]:
    names = "[" + ", ".join(literal(file) for file in files) + "]"
    what = f"{len(files):,} files" if len(files) > 1 else files[0].name
    yield f"{what} written as one Parquet file"
    if form != "table":
        reader = "read_parquet" if form == "parquet" else "read_json"
        sampled = "" if form == "parquet" else f", sample_size = {LOOKED_AT}"
        engine.write(f"SELECT * FROM {reader}({names}, union_by_name = true{sampled})", to)
        return
    options = "" if header is None else f", header = {str(header).lower()}"
    found = engine.types(_csv(names, options, []))
    if len(found) == 1 and "::" in next(iter(found)):  # two signs, which are not looked for by themselves
        options += ", delim = '::'" + (", header = false" if header is None else "")
    as_text = _too_large(engine, names, options)
    while True:
        try:
            engine.write(f"SELECT * FROM {_csv(names, options, as_text)}", to)
            break
        except duckdb.Error as error:
            wrong = re.search(r'column "(.+?)"', str(error))
            if wrong is None or wrong[1] in as_text or "onver" not in str(error):
                raise
            as_text.append(wrong[1])
    if as_text:
        yield f"read as text, for not every value is a number of 64 bits: {', '.join(as_text)}"


def _csv(names: str, options: str, as_text: list[str]) -> str:
    """The relation of CSV or TSV files; separator, quotes and types are found out."""
    given = options
    if as_text:
        given += ", types = {" + ", ".join(f"{literal(name)}: 'VARCHAR'" for name in as_text) + "}"
    return f"read_csv({names}, sample_size = {LOOKED_AT}{given})"


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


def _files(path: Path) -> tuple[list[Path], str]:
    """The files at `path`, in the order of their names, and their one form."""
    if not path.exists():
        raise BadInput(f"{path}: no such file or folder; give a Parquet, CSV, TSV or JSON-lines file, or a folder")
    if path.is_dir():
        if (path / "_delta_log").is_dir():
            raise BadInput(
                f"{path} is a Delta table: its folder holds files of old versions, too; write its rows once: python "
                f"-c \"import deltalake as d, pyarrow.parquet as pq; pq.write_table(d.DeltaTable('{path}')"
                f".to_pyarrow_table(), '{path.name}.parquet')\""
            )
        files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith(("_", ".")))
        known = [file for file in files if _form(file) is not None]
        if not known:
            raise BadInput(f"{path} holds no Parquet, CSV, TSV or JSON-lines file; their names say what they are")
        forms = {str(_form(file)) for file in known}
        if len(forms) > 1:
            raise BadInput(f"{path} holds files of several forms ({', '.join(sorted(forms))}); give one of them")
        return known, forms.pop()
    form = _form(path)
    if form is None and path.open("rb").read(4) == b"PAR1":
        form = "parquet"
    if form is None:
        known_names = ", ".join((*COLUMNS, *TABLES, *LINES))
        raise BadInput(
            f"{path}: what it holds cannot be told from its name; name it {known_names}, perhaps .gz or .zst"
        )
    return [path], form


def _form(path: Path) -> str | None:
    """
    >>> [_form(Path(name)) for name in ("a.parquet", "a.csv.gz", "day_0.tsv", "a.jsonl.zst", "a.xls")]
    ['parquet', 'table', 'table', 'lines', None]
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    forms = {"parquet": COLUMNS, "table": TABLES, "lines": LINES}
    return next((form for form, names in forms.items() if last in names), None)
