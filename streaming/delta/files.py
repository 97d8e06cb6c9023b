"""The data files of a Delta table as its newest version names them, and replacing some of them in one commit.

Replacing carries a transaction identifier of its own, `exfm/housekeeping`, raised by one each time: Delta accepts two
commits that remove the same file (and would double its rows), but not two that raise the same identifier through
handles of the same age. Appending is unaffected: the writer's commits and these do not block each other.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streaming.delta.log import damage
from streaming.delta.vacuum import retire
from streaming.errors import BadInput, StreamingError

HOUSEKEEPING = "exfm/housekeeping"

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


class TableFiles:
    """A handle of its own on the table at `path`. Raises BadInput where there is no table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = DeltaTable(path)
        except TableNotFoundError:
            raise BadInput(f"no table at {path}") from None
        except (DeltaError, OSError) as error:
            reason = damage(path) or str(error).partition("\n")[0]
            raise StreamingError(f"the table at {path} cannot be opened: {reason}") from error
        self._look()

    def _look(self) -> None:
        actions = pa.table(self._handle.get_add_actions()).to_pylist()
        self.files = [
            DataFile(
                unquote(action["path"]),
                tuple((action.get("partition") or {}).items()),
                action["size_bytes"],
                action["num_records"],
                action["modification_time"] / 1000,
                _known(action.get("min")),
                _known(action.get("max")),
                _known(action.get("null_count")),
            )
            for action in actions
        ]

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

    def place(self, file: DataFile) -> Path:
        """Where a file lies on the disk."""
        return self.path / file.path

    def new_place(self, neighbour: DataFile) -> str:
        """A new name below the table, in the folder of another file of the same partition."""
        folder, slash, _ = neighbour.path.rpartition("/")
        return f"{folder}{slash}part-00000-{uuid.uuid4()}-c000.zstd.parquet"

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
        actions: list[AddAction | RemoveAction] = [
            AddAction(f.path, f.bytes, dict(f.partition), now_ms, rows_change, _statistics(f)) for f in added
        ]
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
        self.refresh()
        self._look()
        return True


def _known(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if isinstance(value, int | float | str)}


def _statistics(file: DataFile) -> str:
    return json.dumps({"numRecords": file.rows, "minValues": file.low, "maxValues": file.high, "nullCount": file.nulls})
