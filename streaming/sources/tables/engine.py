"""DuckDB with a memory bound and without network access: statistics and sorts spill to a folder."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa
from duckdb.func import PythonUDFType

from streaming.errors import BadInput
from streaming.messages.times import milliseconds

MEMORY_MB = 450
THREADS = 2
GROUP_ROWS = 65_536
ASKED_EVERY_S = 0.2

Advance = Callable[[float], None]
"""Called with the share, 0 to 1, of what is being done."""


def quoted(name: str) -> str:
    """Quote a column's name for SQL.

    >>> quoted('C"1')
    '"C""1"'
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: object) -> str:
    """Quote a text for SQL.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + str(text).replace("'", "''") + "'"


def file_literal(path: object) -> str:
    """Quote a file's name for SQL, escaping the signs that DuckDB takes for a pattern.

    >>> file_literal("log[1]*.csv")
    "'log[[]1][*].csv'"
    """
    return literal(re.sub(r"[*?[]", r"[\g<0>]", str(path)))


class TableEngine:
    """An in-memory database; `folder` holds spilled data, and is empty again afterwards. `advance` hears how far a
    file is that is written."""

    def __init__(self, folder: Path, advance: Advance | None = None) -> None:
        # jemalloc's background threads and the network are nothing that a look at one file needs.
        self._database = duckdb.connect(config={"autoinstall_known_extensions": "false"})
        self._scratch, self._advance, self._functions = folder / ".exfm-scratch", advance, 0
        for setting, value in (
            ("memory_limit", literal(f"{MEMORY_MB}MB")),
            ("threads", str(THREADS)),
            ("temp_directory", literal(self._scratch)),
            ("TimeZone", "'UTC'"),
            ("enable_progress_bar", "true"),
            ("enable_progress_bar_print", "false"),
        ):
            self._database.execute(f"SET {setting} = {value}")

    def __enter__(self) -> TableEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()
        if self._scratch.is_dir() and not any(self._scratch.iterdir()):
            self._scratch.rmdir()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._database.execute(sql).fetchall()

    def row(self, sql: str) -> tuple[Any, ...]:
        (row,) = self.rows(sql)
        return row

    def arrow(self, sql: str) -> pa.Table:
        return self._database.sql(sql).to_arrow_table()

    def types(self, relation: str) -> dict[str, str]:
        """The columns of a relation and their types, as DuckDB names them."""
        return {str(name): str(kind) for name, kind, *_ in self.rows(f"DESCRIBE SELECT * FROM {relation}")}

    def times(self, sql: str, kind: str, zone: str) -> str:
        """SQL for the milliseconds of times of a type, with `milliseconds` in a zone."""
        name = f"times_{self._functions}"
        self._functions += 1

        def read(column: pa.ChunkedArray) -> pa.Array:
            return milliseconds(column.combine_chunks(), "ms", zone)

        self._database.create_function(name, read, [kind], "BIGINT", type=PythonUDFType.ARROW)
        return f"{name}({sql})"

    def write(self, sql: str, path: Path, *, threads: int = THREADS) -> None:
        """The rows of a query as a Parquet file, in their order. threads: 1 for a query over several files of text,
        whose rows DuckDB 2.0 writes file by file in any order where two threads read them."""
        self._database.execute(f"SET threads = {threads}")
        with self._watched():
            self._database.execute(
                f"COPY ({sql}) TO {literal(path)} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {GROUP_ROWS})"
            )
        self._database.execute(f"SET threads = {THREADS}")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        if (advance := self._advance) is None:
            yield
            return
        over, furthest = threading.Event(), 0.0

        def watch() -> None:
            nonlocal furthest
            while not over.wait(ASKED_EVERY_S):
                furthest = max(furthest, self._database.query_progress() / 100)
                advance(furthest)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        advance(1.0)


def parquet(path: Path) -> str:
    """The relation of a Parquet file, its rows numbered by `file_row_number`."""
    return f"read_parquet({file_literal(path)}, file_row_number = true, hive_partitioning = false)"


def in_words(error: duckdb.Error, path: Path) -> BadInput:
    """Convert DuckDB's error into one line."""
    message = str(error).strip().splitlines()[0]
    if "GZIP" in message:
        message = "it is no gzip file, or is cut off"
    return BadInput(f"{path} cannot be read: {message}")
