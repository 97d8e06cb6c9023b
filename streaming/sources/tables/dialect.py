"""CSV or TSV dialect: separator, quotes, header, encoding; and lines that break it."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from streaming.errors import BadInput
from streaming.sources.tables.engine import TableEngine, file_literal, literal
from streaming.sources.tables.forms import Files

SNIFFED = 100_000
SEPARATORS = (",", "\t", ";", "|")
LINES_LOOKED_AT = 1000


class Dialect(NamedTuple):
    """`options`: of DuckDB's read_csv, every column a text. `header`: the first line names the columns."""

    options: str
    header: bool
    separator: str
    encoding: str | None


def dialect_of(engine: TableEngine, files: Files, header: bool | None, encoding: str | None) -> Dialect:
    """Detect the files' dialect from the first one. Raises BadInput where that cannot be told."""
    first = files.paths[0]
    encoding = encoding or _of_mark(first)
    more = "" if encoding is None else f", encoding = {literal(encoding)}"
    if header is not None:
        more += f", header = {str(header).lower()}"
    try:
        sniffed = _sniffed(engine, first, more)
        if sniffed.columns == 1:
            separator = _of_first_line(first, encoding)
            if separator == "::":  # two signs, which are not looked for by themselves
                more += ", delim = '::'" + (", header = false" if header is None else "")
                sniffed = _sniffed(engine, first, more)
            elif separator is not None:
                sniffed = _sniffed(engine, first, f"{more}, delim = {literal(separator)}")
    except duckdb.Error as error:
        guess = Dialect("", header is not False, _of_first_line(first, encoding) or ",", encoding)
        if (why := ragged(files, guess)) is not None:
            raise BadInput(why) from None
        if "GZIP" in str(error):
            raise
        raise BadInput(
            f"{first} cannot be read as a table: its separator, quotes and ends of lines cannot be told; see whether "
            "all lines end alike (\\n, or \\r\\n), and whether every quote that is opened is closed"
        ) from None
    if (line := _first_line(first, encoding)).startswith("sep="):
        raise BadInput(f"{first}: its first line is `{line}`, which Excel writes before the names; delete that line")
    dialect = Dialect(_options(sniffed, encoding), sniffed.header, sniffed.separator, encoding)
    if sniffed.skipped and (why := ragged(files, dialect)) is not None:  # lines that DuckDB would leave out
        raise BadInput(why)
    return dialect


class _Sniffed(NamedTuple):
    """`skipped`: lines before the first row that were taken for no rows. `quote` and `escape`: None where none was
    seen."""

    separator: str
    header: bool
    columns: int
    quote: str | None
    escape: str | None
    skipped: int


def _sniffed(engine: TableEngine, path: Path, more: str) -> _Sniffed:
    separator, header, columns, quote, escape, skipped = engine.row(
        "SELECT Delimiter, HasHeader, len(Columns), Quote, Escape, SkipRows "
        f"FROM sniff_csv({file_literal(path)}, sample_size = {SNIFFED}{more})"
    )
    return _Sniffed(
        "\t" if separator == "\\t" else str(separator),
        bool(header),
        int(columns),
        _sign(quote),
        _sign(escape),
        int(skipped),
    )


def _sign(sign: str | None) -> str | None:
    return None if sign in ("(empty)", "\0", None) else str(sign)


def _options(sniffed: _Sniffed, encoding: str | None) -> str:
    """All that read_csv would otherwise find out by itself. Quotes may come behind the lines that were looked at; no
    line is passed over as a comment."""
    quote = sniffed.quote or '"'
    options = {
        "all_varchar": "true",
        "union_by_name": "true",
        "header": str(sniffed.header).lower(),
        "delim": literal(sniffed.separator),
        "quote": literal(quote),
        "escape": literal(sniffed.escape or quote),
        "comment": "''",
        "skip": "0",
    }
    if encoding is not None:
        options["encoding"] = literal(encoding)
    return ", ".join(f"{name} = {value}" for name, value in options.items())


def ragged(files: Files, dialect: Dialect) -> str | None:
    """Describe the first line with a different number of fields or another encoding; None if all lines agree."""
    if len(dialect.separator) != 1:
        return None
    for path in files.paths:
        line = 0
        try:
            with pa.input_stream(str(path), compression="detect") as raw:
                text = io.TextIOWrapper(io.BufferedReader(raw), encoding=dialect.encoding or "utf-8", newline="")
                rows = csv.reader(text, delimiter=dialect.separator, strict=True)
                most: int | None = None
                for fields in rows:
                    line = rows.line_num
                    if not fields:
                        continue
                    if most is None:
                        most = len(fields)
                    elif len(fields) != most:
                        what = (
                            "was the file cut off there?"
                            if len(fields) < most and next(rows, None) is None
                            else ("a field that holds the separator has to stand in quotes")
                        )
                        return (
                            f"{path}, line {line:,} has {len(fields)} fields, and the first line has {most} (separated "
                            f"by {dialect.separator!r}): {dialect.separator.join(fields)!r:.80}; mend that line: {what}"
                        )
        except UnicodeDecodeError as error:
            strange = error.object[error.start : error.start + 1].hex()
            return (
                f"{path}, after line {line:,}: a byte (0x{strange}) that is not {dialect.encoding or 'UTF-8'}; say how "
                "the file is written: `encoding: latin-1` (of exfm init: --encoding latin-1), or utf-16"
            )
        except csv.Error as error:
            why = "a quote is opened there, or later, and not closed" if "unexpected end" in str(error) else str(error)
            return f"{path}, after line {line:,}: {why}"
        except (OSError, EOFError) as error:
            return f"{path}, after line {line:,}: {error}"
    return None


def _first_line(path: Path, encoding: str | None) -> str:
    try:
        with pa.input_stream(str(path), compression="detect") as raw:
            return str(raw.read(1 << 16).decode(encoding or "utf-8", "replace").partition("\n")[0].strip("\r"))
    except (OSError, LookupError):
        return ""


def _of_mark(path: Path) -> str | None:
    """The encoding that the first bytes of a file are a mark of."""
    with pa.input_stream(str(path), compression="detect") as raw:
        return "utf-16" if raw.read(2) in (b"\xff\xfe", b"\xfe\xff") else None


def _of_first_line(path: Path, encoding: str | None) -> str | None:
    """The sign that stands most often in the first line, where one does."""
    line = _first_line(path, encoding)
    if "::" in line:
        return "::"
    counts = Counter({sign: line.count(sign) for sign in SEPARATORS if sign in line})
    return counts.most_common(1)[0][0] if counts else None
