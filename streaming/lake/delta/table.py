"""A Delta table whose commits carry transaction identifiers that are checked.

Delta stores, with a commit, a map {identifier: int} (*application transactions*), atomically with the rows. It does not
compare the numbers: an append with an old number, through a fresh handle, is accepted. What it does refuse is a commit
through a handle older than another writer's commit of the same identifier. So a commit here is

    1  `prepare` looks at the identifiers in the handle and decides what to write
    2  it is written through that same handle
    3  if that is refused, a new handle is loaded and 1 is done again

The files of a commit are written here and not by deltalake, which has one codec for all columns of a file
(`encodings`): one for each partition, then one entry in the log that names them all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from streaming.errors import BadInput, DataLost, DiskFull, StreamingError
from streaming.lake.delta.encodings import Form
from streaming.lake.delta.files import (
    DataFile,
    add_actions,
    flush_files,
    flush_newest_files,
    new_name,
    statistics_of,
    write_file,
)
from streaming.lake.delta.handle import METADATA_KEY, last_metadata, open_table
from streaming.lake.delta.lock import in_flight_lock
from streaming.lake.delta.log import damage, flush, unfinished
from streaming.lake.delta.remote import address, committing, follow, is_remote, options, patiently
from streaming.lake.delta.vacuum import vacuum_table
from streaming.store.files import is_disk_full, make_folder, sync

COMMIT_ATTEMPTS = 20
STORE_ATTEMPTS = 6
"""A store that did not answer may have the commit: `prepare` looks."""
CHECKPOINT_EVERY_COMMITS = 20
LOG_RETENTION = "interval 10 minutes"
"""How long log entries are kept, and at least until a checkpoint covers them. Their number is bounded by the commits in
this time plus those between two checkpoints."""
TOMBSTONE_RETENTION = "interval 1 hour"
"""How long checkpoints list replaced files; only other programs that vacuum need it."""

# Old log files are removed by our commits only: the table says no to everybody else, so that the newest commit of ours,
# which holds the metadata, stays in the log however long no commit follows.
# Looking for them costs a walk through the log, so it is done at the first commit and then
# as often as a checkpoint is made.
_NO_CLEANING = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
_CLEANING = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=True)


log = logging.getLogger(__name__)


class RowsElsewhere(Protocol):
    """Rows that other processes hold, each of which writes files of its own. `facts`: some columns of all of them."""

    facts: pa.Table

    def files(self, by: Sequence[str], statistics: Sequence[str]) -> Sequence[DataFile]:
        """Flushed files of all these rows (`write_rows`), for a table that is partitioned so. Asked again with each try
        to commit."""


class TableCommit(NamedTuple):
    """Content of one commit: rows (possibly none), transaction identifiers, and a small JSON object; `elsewhere`, rows
    that others have written."""

    rows: pa.Table
    identifiers: Mapping[str, int]
    metadata: Mapping[str, Any] | None
    elsewhere: RowsElsewhere | None = None

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows + (0 if self.elsewhere is None else self.elsewhere.facts.num_rows)


class CheckedTable:
    """One appender's view of a Delta table; created, with initial `identifiers`, if absent.

    Raises BadInput where the folder cannot be written or holds a table with other columns, DataLost where its log is
    damaged.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        statistics: Sequence[str] = (),
        identifiers: Mapping[str, int] | None = None,
    ) -> None:
        self.path = path
        self._schema = schema
        self._commits = 0
        self._handle = open_table(path, schema, to_commit=True) or patiently(
            path, lambda: self._create(list(partition_by), statistics, identifiers or {})
        )
        follow(path)
        if (torn := damage(path)) is not None:  # one that deltalake reads over: an entry without a line
            raise DataLost(f"the table at {path} cannot be written to: {torn}")
        if not is_remote(path):  # at a store they were put before they were committed
            flush_newest_files(path, self._handle)
        self._flushed = self._handle.version() - 1
        self._flush()  # the first entry too: others rely on a table that is there
        with suppress(PermissionError):  # a folder that others made for us may lie in one that is not ours to open
            for folder in (path, path.parent):  # the names of the log and of the table
                sync(folder)

    def _create(self, partition_by: list[str], statistics: Sequence[str], identifiers: Mapping[str, int]) -> DeltaTable:
        configuration = {
            "delta.checkpointInterval": str(CHECKPOINT_EVERY_COMMITS),
            "delta.logRetentionDuration": LOG_RETENTION,
            "delta.deletedFileRetentionDuration": TOMBSTONE_RETENTION,
            "delta.enableExpiredLogCleanup": "false",
            "delta.dataSkippingStatsColumns": ",".join(statistics),
        }
        try:
            make_folder(self.path)
            if (torn := unfinished(self.path)) is not None:
                log.warning("%s was cut short while its table was being made, which held nothing: made again", torn)
                torn.unlink()
            return DeltaTable.create(
                address(self.path),
                self._schema,
                partition_by=partition_by,
                configuration=configuration,
                commit_properties=_properties(identifiers, {}),
                storage_options=options(self.path),
            )
        except (OSError, DiskFull) as error:
            if is_remote(self.path):  # it may be there, or can be made again
                if (handle := open_table(self.path, self._schema, to_commit=True)) is not None:
                    return handle
                raise
            if isinstance(error, DiskFull) or is_disk_full(error):
                raise DiskFull(f"the disk is full: no table can be made at {self.path}; free some space") from error
            raise BadInput(f"no table can be made at {self.path}: {error}. Choose a folder you can write") from error
        except DeltaError as error:
            handle = open_table(self.path, self._schema, to_commit=True)  # another process made it meanwhile
            if handle is None:
                raise StreamingError(f"no table can be made at {self.path}: {error}") from error
            return handle

    def _hooks(self) -> PostCommitHookProperties:
        self._commits += 1
        return _CLEANING if self._commits % CHECKPOINT_EVERY_COMMITS == 1 else _NO_CLEANING

    @property
    def id(self) -> str:
        """The table's unique id."""
        return str(self._handle.metadata().id)

    def refresh(self) -> None:
        """Pick up commits of other processes."""
        patiently(self.path, self._handle.update_incremental)

    def identifier(self, name: str) -> int | None:
        """The identifier's number as of the handle's version; None if it was never committed."""
        version: int | None = self._handle.transaction_version(name)
        return version

    def last_metadata(self) -> dict[str, Any] | None:
        return last_metadata(self._handle)

    def commit(self, prepare: Callable[[], TableCommit | None]) -> None:
        """Commit the result of `prepare` atomically with its identifiers; `prepare` may run more than once.

        The commit is on the disk when this returns. `prepare` returning None ends without one; what it raises is
        passed on. Raises DiskFull when there is no room (the same call may be made again), StreamingError when the
        disk refuses otherwise, or when others commit the same identifiers faster than we do.
        """
        for attempt in range(COMMIT_ATTEMPTS):
            commit = prepare()
            if commit is None:
                self._flush()
                return
            try:
                with in_flight_lock(self.path):
                    append_rows(
                        self._handle,
                        commit.rows,
                        elsewhere=commit.elsewhere,
                        path=self.path,
                        commit_properties=_properties(commit.identifiers, commit.metadata),
                        post_commithook_properties=self._hooks(),
                    )
                self._flush()
                return
            except (DeltaError, OSError, pa.ArrowException, DiskFull) as error:
                if isinstance(error, DiskFull) or is_disk_full(error):
                    raise self._disk_full(commit) from error
                if isinstance(error, CommitFailedError) or (is_remote(self.path) and attempt < STORE_ATTEMPTS):
                    self._handle = committing(self.path)
                    continue
                raise StreamingError(
                    f"{commit.num_rows} rows could not be committed to {self.path}: {error}. "
                    "Nothing of them is in the table; check the disk, then start again"
                ) from error
        raise StreamingError(
            f"{COMMIT_ATTEMPTS} tries to commit to {self.path} were each overtaken by another writer; "
            "stop the other one (a table has one writer)"
        )

    def _flush(self) -> None:
        """Flush a commit: a later state or message must not outlive it, not even when the power fails."""
        newest = self._handle.version()
        flush(self.path, range(self._flushed + 1, newest + 1))
        self._flushed = newest

    def _disk_full(self, commit: TableCommit) -> DiskFull:
        """Clean up after a full disk: delete what the try left behind, and whatever else the table does not need. The
        disk may have filled up after the rows were in, while what follows a commit was written."""
        if not is_remote(self.path):  # there it is not the disk that is full
            with suppress(DeltaError, OSError):
                vacuum_table(self.path, 0.0)
        rows = commit.num_rows
        if self._holds(commit):
            return DiskFull(
                f"the disk is full: {rows} rows are in {self.path}, and what follows their commit could not be "
                "written; free some space, and it goes on after them: they are not written twice"
            )
        return DiskFull(
            f"the disk is full: {rows} rows could not be committed to {self.path}. Nothing of them is in the table; "
            "free some space, and the same commit goes through"
        )

    def _holds(self, commit: TableCommit) -> bool:
        """True if the table on the disk has a commit's identifiers."""
        try:
            now = committing(self.path)
        except (DeltaError, OSError):
            return False
        there = [now.transaction_version(name) == number for name, number in commit.identifiers.items()]
        return bool(there) and all(there)


def _properties(identifiers: Mapping[str, int], metadata: Mapping[str, Any] | None) -> CommitProperties:
    return CommitProperties(
        app_transactions=[Transaction(name, number) for name, number in identifiers.items()],
        custom_metadata={METADATA_KEY: json.dumps(metadata, separators=(",", ":"))},
    )


ROW_GROUP_ROWS = 65_536


def append_rows(
    handle: DeltaTable,
    rows: pa.Table,
    *,
    path: Path,
    commit_properties: CommitProperties,
    post_commithook_properties: PostCommitHookProperties,
    elsewhere: RowsElsewhere | None = None,
) -> None:
    """Append `rows`, and those that others hold, to the table at `path`, which `handle` is of. Columns of `rows` that
    it lacks are added to it, and those that may be null may be so from now on; columns of it that `rows` lack are null
    in them.

    Raises CommitFailedError where others have committed identifiers of the same names since the handle was loaded."""
    if not _covers(pa.schema(handle.schema().to_arrow()), rows.schema):
        _add_columns(handle, rows.schema, commit_properties)
    by, statistics = handle.metadata().partition_columns, statistics_of(handle)
    added = write_rows(path, rows, by, statistics)
    if elsewhere is not None:
        added += elsewhere.files(by, statistics)
    handle.create_write_transaction(
        add_actions(added, rows_change=True),
        mode="append",
        schema=handle.schema(),
        partition_by=by or None,
        commit_properties=commit_properties,
        post_commithook_properties=post_commithook_properties,
    )
    handle.update_incremental()


def write_rows(path: Path, rows: pa.Table, by: Sequence[str], statistics: Sequence[str]) -> list[DataFile]:
    """Write `rows` to files of the table at `path`, one for each partition by the columns `by`, and flush them. They
    are in no commit yet: until then `in_flight_lock` must be held by whoever commits them."""
    form, files = Form.of(rows), []
    for values, part in _partitions(rows, by):
        place = new_name([f"{name}={quote(value, safe='')}" for name, value in values.items()])  # as deltalake names it
        file = write_file(path, place, [*values.items()], [part], statistics, group_rows=ROW_GROUP_ROWS, form=form)
        files += [] if file is None else [file]
    flush_files(path / file.path for file in files)
    return files


def _covers(table: pa.Schema, rows: pa.Schema) -> bool:
    """True if `rows` can be appended to a table of these columns as it is."""
    names = set(table.names)
    return all(field.name in names and (table.field(field.name).nullable or not field.nullable) for field in rows)


def _add_columns(handle: DeltaTable, schema: pa.Schema, commit_properties: CommitProperties) -> None:
    """A commit of its own, under the identifiers as they are: Delta refuses it where they were raised meanwhile."""
    names = [transaction.app_id for transaction in commit_properties.app_transactions or ()]
    numbers = [(name, number) for name in names if (number := handle.transaction_version(name)) is not None]
    write_deltalake(
        handle,
        schema.empty_table(),
        mode="append",
        schema_mode="merge",
        commit_properties=CommitProperties(app_transactions=[Transaction(*pair) for pair in numbers]),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
    )


def _partitions(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[Mapping[str, str], pa.Table]]:
    """The rows of every partition, in their order, without the columns that all of them have in common.

    >>> ads = pa.table({"vertical": ["news", "shop", "news"], "ad": [1, 2, 3]})
    >>> [(values, part["ad"].to_pylist()) for values, part in _partitions(ads, ["vertical"])]
    [({'vertical': 'news'}, [1, 3]), ({'vertical': 'shop'}, [2])]
    """
    others = rows.drop_columns(list(by))
    if not by or not rows.num_rows:
        yield {}, others
        return
    codes = np.zeros(rows.num_rows, np.int64)  # a number for each combination of the columns' values
    for name in by:
        encoded = rows[name].combine_chunks().dictionary_encode()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    distinct, firsts = np.unique(codes, return_index=True)
    for code, first in zip(distinct, firsts, strict=True):
        values = {name: rows[name][first.item()].as_py() for name in by}
        yield values, others if len(distinct) == 1 else others.filter(pa.array(codes == code))
