"""Delta tables in memory, for `streaming.lake.delta.table.CheckedTable`: what it uses of deltalake, and `append_rows`.

They keep what Delta keeps: identifiers that move with the rows of their commit, a refusal for a commit through a handle
older than another commit of the same identifiers, metadata in the log. tests/contracts/test_fake_tables.py holds them
to the real ones.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from streaming.lake.delta.files import DataFile
from streaming.lake.delta.handle import METADATA_KEY
from streaming.lake.delta.table import RowsElsewhere
from streaming.lake.layout import DATES
from tests.simulation.scheduler import Scheduler


@dataclass
class _Version:
    identifiers: dict[str, int]
    """Of the table as of this version."""
    changed: frozenset[str]
    metadata: str | None
    rows: pa.Table
    files: dict[Path, pa.Table]
    """Those that processes had written before the commit, and what they held then."""


@dataclass
class TableLog:
    """What lies on the disk of one table. Versions up to `flushed` outlive a power cut."""

    id: str
    schema: pa.Schema
    versions: list[_Version] = field(default_factory=list)
    flushed: int = -1

    @property
    def rows(self) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *(version.rows for version in self.versions)])


class Tables:
    """All tables of a world, by path."""

    def __init__(
        self,
        scheduler: Scheduler,
        key: Callable[[str | Path], str] = str,
        is_there: Callable[[Path], bool] = lambda file: True,
    ) -> None:
        """`key`: what a table is known by, wherever it lies; `is_there`: a data file is where readers look for it."""
        self.scheduler, self.key, self._is_there = scheduler, key, is_there
        self.logs: dict[str, TableLog] = {}
        self._ids = itertools.count()

    def handle(self, path: str | Path) -> FakeDeltaTable:
        return FakeDeltaTable(self, path)

    def create(
        self,
        path: str | Path,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str],
        configuration: Mapping[str, str],
        commit_properties: Any,
        storage_options: Mapping[str, str] | None = None,
    ) -> FakeDeltaTable:
        self.scheduler.point(f"create table {Path(path).name}", writes=True)
        if self.key(path) in self.logs:
            raise DeltaError(f"a table exists at {path} already")
        log = self.logs[self.key(path)] = TableLog(f"table-{next(self._ids)}", schema)
        self._append(log, schema.empty_table(), commit_properties)
        self.scheduler.point("table is created")
        return self.handle(path)

    def write(
        self,
        handle: FakeDeltaTable,
        rows: pa.Table,
        *,
        path: Path,
        commit_properties: Any,
        post_commithook_properties: Any,
        elsewhere: RowsElsewhere | None = None,
    ) -> None:
        """As `append_rows`, of tables that keep their columns."""
        name = Path(handle.path).name
        written = [] if elsewhere is None else elsewhere.files(handle.metadata().partition_columns, ["lake_seq"])
        files = {path / file.path: _rows_of(path, file, rows.schema) for file in written}
        self.scheduler.point(f"commit {rows.num_rows} rows and {len(files)} files to {name}", writes=True)
        log = self.logs[handle.path]
        mine = {t.app_id for t in commit_properties.app_transactions}
        since = log.versions[handle.version() + 1 :]
        if any(version.changed & mine for version in since):
            raise CommitFailedError("Failed to commit transaction: concurrent transaction of the same identifier")
        if files:
            there = [part for file, part in files.items() if self._is_there(file)]
            rows = pa.concat_tables([log.schema.empty_table(), *there]).sort_by("lake_seq")
        self._append(log, rows, commit_properties, files)
        handle.update_incremental()
        if self.scheduler.take_unsure():
            raise CommitFailedError("the answer was lost")
        self.scheduler.point(f"{name} is committed")

    def _append(
        self, log: TableLog, rows: pa.Table, properties: Any, files: Mapping[Path, pa.Table] | None = None
    ) -> None:
        before = log.versions[-1].identifiers if log.versions else {}
        new = {t.app_id: t.version for t in properties.app_transactions}
        metadata = properties.custom_metadata.get(METADATA_KEY)
        log.versions.append(_Version({**before, **new}, frozenset(new), metadata, rows, dict(files or {})))

    def flush(self, table: Path, versions: range) -> None:
        """As `streaming.lake.delta.log.flush`."""
        if versions:
            self.scheduler.point(f"flush {table.name}")
            log = self.logs[self.key(table)]
            log.flushed = max(log.flushed, versions[-1])

    def no_lock(self, table: Path) -> AbstractContextManager[None]:
        """As `in_flight_lock`: there is no vacuum here."""
        return nullcontext()

    def power_cut(self) -> None:
        """Commits that were not flushed may be gone, from any one on; of the others, rows in files that are torn."""
        for path, log in list(self.logs.items()):
            kept = self.scheduler.random.randint(log.flushed + 1, len(log.versions))
            del log.versions[kept:]
            for version in log.versions:
                whole = [rows for file, rows in version.files.items() if _is_whole(file)]
                if len(whole) < len(version.files):
                    version.rows = pa.concat_tables([log.schema.empty_table(), *whole]).sort_by("lake_seq")
            log.flushed = kept - 1
            if not log.versions:
                del self.logs[path]

    def lake_reader(self, path: str | Path, schema: Any) -> FakeLakeReader:
        return FakeLakeReader(self.logs[self.key(path)])

    def files(self, path: str | Path) -> Any:
        """As `TableFiles` of a lake without rows, laid out by dates."""
        return SimpleNamespace(partition_by=DATES, files=[], repartition=lambda wanted, added: True)


class FakeDeltaTable:
    """A handle: what the table was when it was loaded."""

    def __init__(self, tables: Tables, path: str | Path) -> None:
        tables.scheduler.point(f"load {Path(path).name}")
        self._tables, self.path = tables, tables.key(path)
        self.table_uri = f"file://{path}"
        if self.path not in tables.logs:
            raise TableNotFoundError(f"no table at {path}")
        self.update_incremental()

    def update_incremental(self) -> None:
        self._version = len(self._log.versions) - 1

    @property
    def _log(self) -> TableLog:
        return self._tables.logs[self.path]

    def version(self) -> int:
        return self._version

    def transaction_version(self, name: str) -> int | None:
        return self._log.versions[self._version].identifiers.get(name)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        versions = self._log.versions[self._version :: -1]
        named = [{} if v.metadata is None else {METADATA_KEY: v.metadata} for v in versions]
        return named if limit is None else named[:limit]

    def get_add_actions(self) -> pa.Table:
        """Of a table whose rows lie in no files."""
        return pa.table({"path": pa.array([], pa.string()), "modification_time": pa.array([], pa.int64())})

    def schema(self) -> Any:
        return SimpleNamespace(to_arrow=lambda: self._log.schema)

    def metadata(self) -> Any:
        return SimpleNamespace(id=self._log.id, partition_columns=list(DATES))


class FakeLakeReader:
    """Committed blocks, as `LakeReader.blocks` gives them."""

    first_lake_seq = 0

    def __init__(self, log: TableLog) -> None:
        self._log = log

    def blocks(self, after: int) -> Iterator[pa.Table]:
        rows = self._log.rows
        rows = rows.filter(pc.greater(rows["lake_seq"], after))
        for block in rows["block"].unique().to_pylist():
            yield rows.filter(pc.equal(rows["block"], block))


def _rows_of(table: Path, file: DataFile, schema: pa.Schema) -> pa.Table:
    """The rows of a file, with the columns that its folder names."""
    rows = _read(table / file.path)
    for name, value in file.partition:
        rows = rows.append_column(name, pa.array([value] * file.rows, schema.field(name).type))
    return rows.select(schema.names).cast(schema)


def _read(file: Path) -> pa.Table:
    with pq.ParquetFile(file) as opened:
        return opened.read(use_threads=False)


def _is_whole(file: Path) -> bool:
    try:
        _read(file)
    except (pa.ArrowException, OSError):
        return False
    return True


def last_counts(log: TableLog) -> dict[str, Any] | None:
    """The metadata of the newest commit that carries some."""
    found = [v.metadata for v in log.versions if v.metadata is not None]
    counts: dict[str, Any] = json.loads(found[-1]) if found else {}
    return counts.get("counts")
