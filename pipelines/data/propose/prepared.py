"""Prepared rows: the given ones as one Parquet file for examination, and the file that the config names, which is
the given one if a recorded source can read it, else a copy."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import duckdb

from pipelines.data.profile.file import FileProfile
from pipelines.data.propose.times import EventTimeColumn
from streaming.errors import BadInput
from streaming.sources.tables.conversion import as_parquet
from streaming.sources.tables.engine import TableEngine, in_words, parquet, quoted
from streaming.sources.tables.forms import files_at
from streaming.sources.tables.in_order import MADE, write_in_order
from streaming.store.files import move


class RowsFile(NamedTuple):
    """A Parquet file at `path`; `made`: converted here. `said`: what was done to come to it. `joined`: with columns
    of another file."""

    path: Path
    made: bool
    said: tuple[str, ...]
    joined: bool = False


def opened(engine: TableEngine, path: Path, to: Path, header: bool | None, encoding: str | None = None) -> RowsFile:
    """The rows at `path`. What is no single Parquet file is written as one to `to`.

    header: whether the first line of a text names its columns; None: found out. encoding: of text; None: UTF-8.
    Raises BadInput for what is absent, empty, or none of these forms.
    """
    files = files_at(path)
    try:
        source = RowsFile(files.paths[0], False, ())
        if not files.is_one_parquet:
            source = RowsFile(to, True, tuple(as_parquet(engine, files, to, header=header, encoding=encoding)))
        if not engine.row(f"SELECT count(*) FROM {parquet(source.path)}")[0]:
            raise BadInput(f"{path} has no rows; give a file that has some")
    except duckdb.Error as error:
        raise in_words(error, path) from None
    return source


class PreparedSource(NamedTuple):
    """A source file, with `event_time`, `unit` and `form` as in the file. `said`: what was done, or will be, in
    words."""

    path: Path
    event_time: str | None
    unit: str
    said: tuple[str, ...]
    form: str | None = None


def as_it_lies(
    path: Path, source: RowsFile, file: FileProfile, time: EventTimeColumn, back: int
) -> PreparedSource | None:
    """The file at `path` itself; None if its rows have to be rewritten: feedback was joined, fields of records are
    columns, or times are of two units."""
    records = any(column.sql != quoted(name) for name, column in file.columns.items())
    units = time.guess.column is not None and not time.reading.as_is and time.reading.form is None
    if source.joined or records or units:
        return None
    said = []
    if source.made:
        said.append("played from a copy that the run makes, one Parquet file in order of time")
    if back:
        said.append(f"{back:,} rows are earlier than the row before: the run sorts a copy on disk by time")
    if time.guess.column is None:
        said.append("there are no times: rows are a second apart, in the order of the file")
    return PreparedSource(path, time.guess.column, time.reading.unit, (*source.said[1:], *said), time.reading.form)


def prepared(source: RowsFile, file: FileProfile, time: EventTimeColumn, back: int, copy: Path) -> PreparedSource:
    """A copy at `copy`, in order of time, with the columns that a row can hold. `back`: rows that are earlier than the
    row before them."""
    reasons = []
    if back:
        reasons.append(f"{back:,} rows were earlier than the row before: sorted on disk by time")
    if time.guess.column is None:
        reasons.append(f"`{MADE}` made of the order of the rows")
    elif not time.reading.as_is:
        reasons.append(f"`{MADE}` made of `{time.guess.column}` ({time.guess.why})")
    if records := [name for name, column in file.columns.items() if column.sql != quoted(name)]:
        reasons.append(f"fields of records stand as columns: {', '.join(records)}")
    if not reasons:  # feedback was joined
        move(source.path, copy)
        return PreparedSource(copy, str(time.guess.column), time.reading.unit, source.said)
    held = [f"{c.sql} AS {quoted(c.name)}" for c in file.columns.values() if c.kind != "other" and c.name != MADE]
    begun = copy.with_name(f".{copy.name}.begun")
    selected = [*held, f"({time.sql})::BIGINT AS {MADE}"]
    try:
        write_in_order(file.engine, source.path, begun, selected, MADE if back else None)
    except duckdb.Error as error:
        begun.unlink(missing_ok=True)
        raise in_words(error, source.path) from None
    move(begun, copy)
    if source.made:
        source.path.unlink()
    return PreparedSource(copy, MADE, "ms", (*source.said, *reasons))
