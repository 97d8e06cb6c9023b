"""The data files of a Delta table as its newest version names them, and replacing some of them in one commit.

Replacing carries a transaction identifier of its own, `exfm/housekeeping`, raised by one each time: Delta accepts two
commits that remove the same file (and would double its rows), but not two that raise the same identifier through
handles of the same age. Appending is unaffected: the writer's commits and these do not block each other.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streaming.errors import BadInput
from streaming.lake.delta.identifiers import HOUSEKEEPING
from streaming.lake.delta.log import LOG, flush, unfinished, unopened
from streaming.lake.delta.vacuum import retire
from streaming.store.files import move_to_new_name, sync

_STATISTICS = "delta.dataSkippingStatsColumns"

_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


class DataFile(NamedTuple):
    """A file: `path` below the table; `low`, `high`, `nulls` the statistics of some columns, bounds at least."""

    path: str
    partition: tuple[tuple[str, str | None], ...]
    bytes: int
    rows: int
    changed_s: float
    low: Mapping[str, Any]
    high: Mapping[str, Any]
    nulls: Mapping[str, int]

    @property
    def first(self) -> int:
        """Lowest `lake_seq`; 0 where the table has none."""
        return int(self.low.get("lake_seq") or 0)

    @property
    def last(self) -> int:
        return int(self.high.get("lake_seq") or 0)


class Statistics:
    """Of these columns in all rows that were added: the lowest value, the highest, and how many are null; a column of
    nulls alone has no lowest.

    >>> known = Statistics(["at", "absent"])
    >>> known.add(pa.table({"at": [3, None]}))
    >>> known.add(pa.table({"at": [5]}))
    >>> known.low, known.high, known.nulls
    ({'at': 3}, {'at': 5}, {'at': 1})
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self.low: dict[str, Any] = {}
        self.high: dict[str, Any] = {}
        self.nulls: dict[str, int] = {}

    def add(self, rows: pa.Table) -> None:
        for name in self._columns:
            if name not in rows.column_names:
                continue
            self.nulls[name] = self.nulls.get(name, 0) + rows[name].null_count
            bounds = pc.min_max(rows[name]).as_py()
            if bounds["min"] is not None:
                self.low[name] = min(self.low.get(name, bounds["min"]), bounds["min"])
                self.high[name] = max(self.high.get(name, bounds["max"]), bounds["max"])


def new_name(folders: Sequence[str]) -> str:
    """Of a file in such folders below the table, which no other has."""
    return "/".join([*folders, f"part-00000-{uuid.uuid4()}-c000.parquet"])


def statistics_of(handle: DeltaTable) -> list[str]:
    """The columns that files of the table have statistics of."""
    return [name for name in handle.metadata().configuration.get(_STATISTICS, "").split(",") if name]


def add_actions(files: Sequence[DataFile], *, rows_change: bool) -> list[AddAction | RemoveAction]:
    """What a commit says of files that it adds."""
    now_ms = time.time_ns() // 1_000_000
    return [AddAction(f.path, f.bytes, dict(f.partition), now_ms, rows_change, _statistics(f)) for f in files]


def data_file(action: Mapping[str, Any]) -> DataFile:
    """From a row of deltalake's `get_add_actions`."""
    return DataFile(
        unquote(action["path"]),
        tuple((action.get("partition") or {}).items()),
        action["size_bytes"],
        action["num_records"],
        action["modification_time"] / 1000,
        _known(action.get("min")),
        _known(action.get("max")),
        _known(action.get("null_count")),
    )


class TableFiles:
    """A handle of its own on the table at `path`. Raises BadInput where there is no table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = DeltaTable(path)
        except TableNotFoundError:
            raise BadInput(f"no table at {path}") from None
        except (DeltaError, OSError) as error:
            if unfinished(path) is not None:
                raise BadInput(f"no table at {path}: the machine stopped while it was being made") from None
            raise unopened(path, error) from error
        self._look()

    def _look(self) -> None:
        self.files = [data_file(action) for action in pa.table(self._handle.get_add_actions()).to_pylist()]

    def refresh(self) -> None:
        version = self._handle.version()
        self._handle.update_incremental()
        if self._handle.version() != version:
            self._look()

    @property
    def version(self) -> int:
        return int(self._handle.version())

    def identifier(self, name: str) -> int | None:
        number: int | None = self._handle.transaction_version(name)
        return number

    @property
    def statistics(self) -> list[str]:
        """The columns that files have statistics of."""
        return statistics_of(self._handle)

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(self._handle.metadata().partition_columns)

    def place(self, file: DataFile) -> Path:
        """Where a file lies on the disk."""
        return self.path / file.path

    def new_place(self, neighbour: DataFile) -> str:
        """A new name below the table, in the folder of another file of the same partition, or of one around it."""
        folders = neighbour.path.split("/")[:-1][: len(neighbour.partition)]
        return new_name(folders)

    def replace(
        self,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        identifiers: Mapping[str, int],
        *,
        rows_change: bool,
    ) -> bool:
        """Replace `removed` by `added`, which lie on the disk already. False where another replacing came first: look
        again and start over; what was written is left to vacuum.

        Call it inside `in_flight_lock`, taken before the first of `added` was written.
        """
        retire(self.place(file) for file in removed)
        now_ms = time.time_ns() // 1_000_000
        actions = add_actions(added, rows_change=rows_change)
        actions += [RemoveAction(f.path, rows_change, now_ms, f.bytes, dict(f.partition)) for f in removed]
        numbers = {HOUSEKEEPING: (self.identifier(HOUSEKEEPING) or 0) + 1, **identifiers}
        try:
            self._handle.create_write_transaction(
                actions,
                mode="append",
                schema=self._handle.schema(),
                partition_by=self._handle.metadata().partition_columns or None,
                commit_properties=CommitProperties(app_transactions=[Transaction(*pair) for pair in numbers.items()]),
                post_commithook_properties=_HOOKS,
            )
        except CommitFailedError:
            self._handle = DeltaTable(self.path)
            self._look()
            return False
        before = self.version
        self._handle.update_incremental()
        flush(self.path, range(before + 1, self.version + 1))  # what was replaced may be deleted from now on
        self._look()
        return True

    def repartition(self, partition_by: Sequence[str], added: Sequence[DataFile]) -> bool:
        """Partition the table by fewer columns: `added` hold the rows of all files there are, and take their place. The
        other columns get statistics instead. False where another commit came first: look at what it brought.

        deltalake has no call for it, so the entry of the log is written here: whole and flushed, under a name that no
        reader looks at, then linked to the name of the next version, which fails where there is one. Writers that are
        overtaken by it are refused by Delta, and go on with the table as it is then.
        """
        now_ms = time.time_ns() // 1_000_000
        actions = [
            {"commitInfo": {"timestamp": now_ms, "operation": "REPARTITION", "operationParameters": {}}},
            {"metaData": self._repartitioned(partition_by)},
            {"txn": {"appId": HOUSEKEEPING, "version": (self.identifier(HOUSEKEEPING) or 0) + 1}},
            *self._replacing_all(added, now_ms),
        ]
        retire(self.place(file) for file in self.files)
        for folder in {self.place(file).parent for file in added}:
            sync(folder)
        stored = self._store_entry(self.version + 1, actions)
        self._handle = DeltaTable(self.path)
        self._look()
        return stored

    def _repartitioned(self, partition_by: Sequence[str]) -> dict[str, Any]:
        """The table's metadata, partitioned by these columns alone; the other ones have statistics from now on."""
        metadata = self._handle.metadata()
        others = [name for name in metadata.partition_columns if name not in partition_by]
        with_statistics = filter(None, [metadata.configuration.get(_STATISTICS), *others])
        return {
            "id": metadata.id,
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self._handle.schema().to_json(),
            "partitionColumns": list(partition_by),
            "createdTime": metadata.created_time,
            "configuration": metadata.configuration | {_STATISTICS: ",".join(with_statistics)},
        }

    def _replacing_all(self, added: Sequence[DataFile], now_ms: int) -> Iterator[dict[str, Any]]:
        """Actions that remove every file of the table and add these."""
        paths = pa.table(self._handle.get_add_actions())["path"].to_pylist()
        spelled = {unquote(part): part for path in paths for part in path.split("/")}  # as the log has them
        for path in paths:
            yield {"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": False}}
        for file in added:
            yield {
                "add": {
                    "path": "/".join(spelled.get(part, part) for part in file.path.split("/")),
                    "partitionValues": dict(file.partition),
                    "size": file.bytes,
                    "modificationTime": now_ms,
                    "dataChange": False,
                    "stats": _statistics(file),
                }
            }

    def _store_entry(self, version: int, actions: Sequence[Mapping[str, Any]]) -> bool:
        entry = self.path / LOG / f"{version:020d}.json"
        staged = entry.with_name(f"{entry.name}#{os.getpid()}")
        try:
            staged.write_text("".join(json.dumps(action) + "\n" for action in actions))
            sync(staged)
            stored = move_to_new_name(staged, entry)
        finally:
            staged.unlink(missing_ok=True)
        if stored:
            sync(entry.parent)
        return stored


def _known(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if isinstance(value, int | float | str)}


def _statistics(file: DataFile) -> str:
    return json.dumps({"numRecords": file.rows, "minValues": file.low, "maxValues": file.high, "nullCount": file.nulls})
