"""A file as people have it, as one Parquet file: Parquet as it is, text and folders converted once."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import duckdb

from streaming.errors import BadInput
from streaming.tables import Engine, as_parquet, files_at, in_words, parquet


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
    files = files_at(path)
    try:
        source = Source(files.paths[0], False, ())
        if not files.is_one_parquet:
            source = Source(to, True, tuple(as_parquet(engine, files, to, header=header)))
        if not engine.row(f"SELECT count(*) FROM {parquet(source.path)}")[0]:
            raise BadInput(f"{path} has no rows; give a file that has some")
    except duckdb.Error as error:
        raise in_words(error, path) from None
    return source
