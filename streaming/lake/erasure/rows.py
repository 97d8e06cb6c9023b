"""A Delta table rewritten without some of its rows, and then without its history.

A deletion in Delta is a commit: the files from before it, which still hold the rows, and the log's entries, which hold
the lowest and highest values of columns, stay. So after the commit the table is made to begin with it:

    1  one commit replaces the files that change; it carries the metadata of the commit before, which its log is to keep
    2  a checkpoint of the log at that version
    3  entries and checkpoints from before it are deleted
    4  files that no version names are deleted

Each step finds out what was done before it, so that the same call completes one that was killed. No process may have
the table open to write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from streaming.errors import StreamingError
from streaming.lake.delta.files import DataFile, NoTable, TableFiles, write_file
from streaming.lake.delta.lock import housekeeping_lock, in_flight_lock
from streaming.lake.delta.log import LOG, LogFiles, flush
from streaming.lake.delta.vacuum import vacuum_table
from streaming.store.files import remove_file, sync

ROW_GROUP_ROWS = 32_768
"""As compaction writes them."""
WAIT_S = 30.0

Change = Callable[[pa.Table], pa.Table | None]
"""Rows of a file, with the columns of its partition -> what is to stay of them; None: they stay as they are."""


class RewrittenTable(NamedTuple):
    """Result of a rewriting: rows that are gone, and files that were written anew."""

    rows: int
    files: int


def rewrite_table(
    path: Path, change: Change, metadata: Callable[[dict[str, Any]], dict[str, Any]] = lambda value: value
) -> RewrittenTable:
    """Rewrite the table at `path` by `change`, and delete all that it held before; nothing where there is no table.
    `metadata`: of the newest commit, what is to stay of it.

    Raises StreamingError where others hold the table, DataLost for a damaged one.
    """
    try:
        table = TableFiles(path)
    except NoTable:
        return RewrittenTable(0, 0)
    with housekeeping_lock(path, WAIT_S) as alone:
        if not alone:
            raise StreamingError(f"another process has kept house in {path} for {WAIT_S:g} s; try again")
        with in_flight_lock(path):
            done = _replaced(table, change, metadata)
        _forget_history(path, table.version)
    return done


def _replaced(
    table: TableFiles, change: Change, metadata: Callable[[dict[str, Any]], dict[str, Any]]
) -> RewrittenTable:
    removed: list[DataFile] = []
    added: list[DataFile] = []
    for file in table.files:
        with pq.ParquetFile(table.place(file)) as parquet:
            rows = parquet.read(use_threads=False)
        whole = rows
        for name, value in file.partition:
            whole = whole.append_column(name, pa.array([value] * rows.num_rows, pa.string()))
        if (left := change(whole)) is None:
            continue
        name, kept = table.new_place(file), left.select(rows.column_names).cast(rows.schema)
        made = write_file(table.path, name, file.partition, [kept], table.statistics, group_rows=ROW_GROUP_ROWS)
        removed.append(file)
        added += [] if made is None else [made]
    before = table.metadata()
    after = None if before is None else metadata(before)
    if not table.replace(removed, added, {}, rows_change=True, metadata=after):
        raise StreamingError(f"another process wrote to {table.path} meanwhile; try again")
    return RewrittenTable(sum(f.rows for f in removed) - sum(f.rows for f in added), len(added))


def _forget_history(path: Path, version: int) -> None:
    """Let the table's log begin at `version`, and its folder hold the files of that alone."""
    DeltaTable(path).create_checkpoint()
    flush(path, range(version, version + 1))
    log, files = path / LOG, LogFiles.of(path)
    for ending, versions in ((".json", files.entries), (".checkpoint.parquet", files.checkpoints)):
        for each in versions:
            if each < version:
                remove_file(log / f"{each:020d}{ending}")
    sync(log)
    if vacuum_table(path, 0.0, wait_s=WAIT_S).busy:
        raise StreamingError(f"another process has been writing to {path} for {WAIT_S:g} s; try again")
