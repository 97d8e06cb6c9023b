"""Data files of a Delta table's newest version, and the replacement of some of them in one commit.

Replacing carries a transaction identifier of its own, `exfm/housekeeping`, raised by one each time: Delta accepts two
commits that remove the same file (and would double its rows), but not two that raise the same identifier through
handles of the same age. Appending is unaffected: the writer's commits and these do not block each other.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from streaming.errors import BadInput
from streaming.lake.delta.encodings import Form
from streaming.lake.delta.handle import METADATA_KEY, last_metadata, open_table
from streaming.lake.delta.identifiers import HOUSEKEEPING
from streaming.lake.delta.log import LOG, flush, goes_beyond, unfinished
from streaming.lake.delta.remote import committing, follow, is_remote, put_entry
from streaming.lake.delta.vacuum import retire
from streaming.store.files import make_folder, move_to_new_name, sync, sync_all
from streaming.store.working_copy import fetched

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


class ColumnStatistics:
    """Column statistics over all added rows: the lowest value, the highest, and the number of nulls; a column of nulls
    only has no lowest.

    >>> bounds = ColumnStatistics(["at", "absent"])
    >>> bounds.add(pa.table({"at": [3, None]}))
    >>> bounds.add(pa.table({"at": [5]}))
    >>> bounds.low, bounds.high, bounds.nulls
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


def write_file(
    table: Path,
    name: str,
    partition: Sequence[tuple[str, str | None]],
    groups: Iterable[pa.Table],
    statistics: Sequence[str],
    *,
    group_rows: int,
    form: Form | None = None,
) -> DataFile | None:
    """Write tables of one schema as the data file `name` below `table`; None if they have no rows. It is not flushed
    yet, and in no commit.

    statistics  columns with bounds in the log
    group_rows  rows of a row group
    form        default: the best for the first table
    """
    place, bounds, rows = table / name, ColumnStatistics(statistics), 0
    with ExitStack() as closing:
        for group in groups:
            if not group.num_rows:
                continue
            if not rows:
                make_folder(place.parent)
                chosen = form or Form.of(group)
                writer = closing.enter_context(chosen.writer(place, group.schema, statistics))
            writer.write_table(group, row_group_size=group_rows)
            rows += group.num_rows
            bounds.add(group)
    if not rows:
        return None
    size = place.stat().st_size
    return DataFile(name, tuple(partition), size, rows, 0.0, bounds.low, bounds.high, bounds.nulls)


def new_name(folders: Sequence[str]) -> str:
    """A new unique file name in such folders below the table."""
    return "/".join([*folders, f"part-00000-{uuid.uuid4()}-c000.parquet"])


def statistics_of(handle: DeltaTable) -> list[str]:
    """Columns with statistics in the table's files."""
    return [name for name in handle.metadata().configuration.get(_STATISTICS, "").split(",") if name]


def add_actions(files: Sequence[DataFile], *, rows_change: bool) -> list[AddAction | RemoveAction]:
    """Delta actions of a commit that adds files."""
    now_ms = time.time_ns() // 1_000_000
    return [AddAction(f.path, f.bytes, dict(f.partition), now_ms, rows_change, _statistics(f)) for f in files]


def flush_files(files: Iterable[Path]) -> None:
    """Flush data files and their names, which a commit is about to name."""
    files = list(files)
    sync_all([*files, *dict.fromkeys(file.parent for file in files)])


def flush_newest_files(path: Path, handle: DeltaTable) -> None:
    """Flush the files that were added last: their writer may have been killed before it had flushed."""
    actions = pa.table(handle.get_add_actions())
    newest = actions.filter(pc.equal(actions["modification_time"], pc.max(actions["modification_time"])))
    flush_files(path / unquote(each) for each in newest["path"].to_pylist())


def _data_files(actions: pa.Table) -> Iterator[DataFile]:
    """From the rows of deltalake's `get_add_actions(flatten=True)`."""
    groups: list[dict[str, list[Any]]] = [
        {n.removeprefix(prefix): actions[n].to_pylist() for n in actions.column_names if n.startswith(prefix)}
        for prefix in ("partition.", "min.", "max.", "null_count.")
    ]
    whole = zip(
        *(actions[name].to_pylist() for name in ("path", "size_bytes", "num_records", "modification_time")), strict=True
    )
    for row, (path, size, rows, changed_ms) in enumerate(whole):
        partition, low, high, nulls = ({name: values[row] for name, values in group.items()} for group in groups)
        yield DataFile(
            unquote(path), tuple(partition.items()), size, rows, changed_ms / 1000, *map(_known, (low, high, nulls))
        )


class NoTable(BadInput):
    """No table lies at a path, or none yet."""


class TableFiles:
    """A handle of its own on the table at `path`: its newest version as of the last `refresh`.

    Raises NoTable where there is none, BadInput where it lacks columns of `schema`, StreamingError where its log cannot
    be read (DataLost: it is damaged).
    """

    def __init__(self, path: Path, schema: pa.Schema | None = None) -> None:
        self.path, self._schema = path, schema
        self.reload()

    def reload(self) -> None:
        """Load the newest version from scratch. Raises as the constructor does."""
        handle = open_table(self.path, self._schema)
        if handle is None:
            begun = ": the machine stopped while it was being made" if unfinished(self.path) is not None else ""
            raise NoTable(f"no table at {self.path}{begun}")
        self._handle = handle
        self._look()

    def _look(self) -> None:
        self.actions = pa.table(self._handle.get_add_actions(flatten=True))
        self._files: list[DataFile] | None = None
        self._looked_at = self.version

    def refresh(self) -> bool:
        """Read new commits; True if there were any since the last successful refresh.

        Readers look many times a second, and deltalake takes a millisecond to find nothing: it is asked only where the
        log goes on (docs/decisions/0011-the-log-through-deltalake.md). Raises StreamingError where it cannot be read.
        """
        if goes_beyond(self.path, self.version):
            try:
                self._handle.update_incremental()
            except DeltaError:  # entries were deleted meanwhile, or the log is damaged, which this raises
                self.reload()
                return True
        if self.version == self._looked_at:
            return False
        self._look()
        return True

    @property
    def files(self) -> list[DataFile]:
        """The data files of this version."""
        if self._files is None:
            self._files = list(_data_files(self.actions))
        return self._files

    @property
    def id(self) -> str:
        """The table's unique id."""
        return str(self._handle.metadata().id)

    @property
    def version(self) -> int:
        return int(self._handle.version())

    def identifier(self, name: str) -> int | None:
        """The number of a transaction identifier; None where it was never committed."""
        number: int | None = self._handle.transaction_version(name)
        return number

    def metadata(self) -> dict[str, Any] | None:
        """The metadata of the newest commit that carries some; None where the log no longer has it."""
        return last_metadata(self._handle)

    @property
    def statistics(self) -> list[str]:
        """Columns with statistics in the files."""
        return statistics_of(self._handle)

    @property
    def names(self) -> list[str]:
        """Names of the table's columns."""
        return [field.name for field in self._handle.schema().fields]

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(self._handle.metadata().partition_columns)

    def place(self, file: DataFile) -> Path:
        """Path of a file on the disk, where it is fetched to from a store."""
        return fetched(self.path / file.path)

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
        metadata: Mapping[str, Any] | None = None,
    ) -> bool:
        """Replace `removed` by `added`, which lie on the disk already. False where another replacing came first: look
        again and start over; what was written is left to vacuum. `metadata`: of the commit, as `metadata` gives it.

        Call it inside `in_flight_lock`, taken before the first of `added` was written.
        """
        retire(self.path / file.path for file in removed)
        flush_files(self.place(file) for file in added)
        now_ms = time.time_ns() // 1_000_000
        actions = add_actions(added, rows_change=rows_change)
        actions += [RemoveAction(f.path, rows_change, now_ms, f.bytes, dict(f.partition)) for f in removed]
        numbers = {HOUSEKEEPING: (self.identifier(HOUSEKEEPING) or 0) + 1, **identifiers}
        handle = committing(self.path, self.version) if is_remote(self.path) else self._handle
        try:
            handle.create_write_transaction(
                actions,
                mode="append",
                schema=self._handle.schema(),
                partition_by=self._handle.metadata().partition_columns or None,
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(*pair) for pair in numbers.items()],
                    custom_metadata=None if metadata is None else {METADATA_KEY: json.dumps(metadata)},
                ),
                post_commithook_properties=_HOOKS,
            )
        except (DeltaError, OSError) as error:
            if not isinstance(error, CommitFailedError) and not is_remote(self.path):
                raise
            follow(self.path)
            self._handle = DeltaTable(self.path)
            self._look()
            there = {file.path for file in self.files}  # a store may have the commit, and its answer was lost
            return (
                is_remote(self.path)
                and there.issuperset(f.path for f in added)
                and there.isdisjoint(f.path for f in removed)
            )
        before = self.version
        follow(self.path)
        self._handle.update_incremental()
        flush(self.path, range(before + 1, self.version + 1))  # what was replaced may be deleted from now on
        self._look()
        return True

    def repartition(self, partition_by: Sequence[str], added: Sequence[DataFile]) -> bool:
        """Partition the table by fewer columns: `added` hold the rows of all existing files, and replace them. The
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
        retire(self.path / file.path for file in self.files)
        flush_files(self.place(file) for file in added)
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
        paths = self.actions["path"].to_pylist()
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
        content = "".join(json.dumps(action) + "\n" for action in actions)
        if (made := put_entry(self.path, version, content.encode())) is not None:
            return made
        entry = self.path / LOG / f"{version:020d}.json"
        staged = entry.with_name(f"{entry.name}#{os.getpid()}")
        try:
            staged.write_text(content)
            sync(staged)
            stored = move_to_new_name(staged, entry)
        finally:
            staged.unlink(missing_ok=True)
        if stored:
            sync(entry.parent)
        return stored


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, int | float | str)}


def _statistics(file: DataFile) -> str:
    return json.dumps({"numRecords": file.rows, "minValues": file.low, "maxValues": file.high, "nullCount": file.nulls})
