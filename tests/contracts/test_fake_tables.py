"""The tables of the simulation answer as deltalake does: one suite, asked of both."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

import streaming.lake.delta.handle as handle_module
import streaming.lake.delta.remote as remote_module
import streaming.lake.delta.table as table_module
from streaming.errors import BadInput
from streaming.lake.delta.handle import METADATA_KEY
from streaming.lake.delta.table import CheckedTable, TableCommit, append_rows
from streaming.lake.side_tables import SideTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA
from tests.simulation.scheduler import Scheduler
from tests.simulation.tables import Tables

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class Delta(NamedTuple):
    """What `streaming/lake/delta/table.py` uses of deltalake, and what appends rows."""

    load: Callable[[Path], Any]
    create: Callable[..., Any]
    write: Callable[..., None]


@pytest.fixture(params=["deltalake", "simulated"])
def delta(request, monkeypatch) -> Delta:
    if request.param == "deltalake":
        return Delta(DeltaTable, DeltaTable.create, append_rows)
    tables = Tables(Scheduler(0))
    made = Delta(tables.handle, tables.create, tables.write)
    handles = type(
        "Handles", (), {"__new__": lambda cls, p, **_: tables.handle(p), "create": staticmethod(tables.create)}
    )
    for module in (handle_module, remote_module, table_module):
        monkeypatch.setattr(module, "DeltaTable", handles)
    monkeypatch.setattr(table_module, "append_rows", tables.write)
    monkeypatch.setattr(table_module, "flush", tables.flush)
    monkeypatch.setattr(table_module, "in_flight_lock", tables.no_lock)
    return made


def properties(metadata: str | None = None, **identifiers: int) -> CommitProperties:
    custom = {} if metadata is None else {METADATA_KEY: metadata}
    transactions = [Transaction(name, number) for name, number in identifiers.items()]
    return CommitProperties(app_transactions=transactions, custom_metadata=custom)


@pytest.fixture
def path(delta, tmp_path) -> Path:
    there = tmp_path / "table"
    there.mkdir()
    delta.create(there, SCHEMA, partition_by=[], configuration={}, commit_properties=properties(lake=-1))
    return there


def append(delta: Delta, handle: Any, numbers: list[int], metadata: str | None = None, **identifiers: int) -> None:
    delta.write(
        handle,
        pa.table({"n": numbers}, schema=SCHEMA),
        path=Path(handle.table_uri.removeprefix("file://")),
        commit_properties=properties(metadata, **identifiers),
        post_commithook_properties=HOOKS,
    )


def test_there_is_no_table_before_it_was_made_and_it_is_made_once(delta, tmp_path, path):
    with pytest.raises(TableNotFoundError):
        delta.load(tmp_path / "another")
    with pytest.raises(DeltaError):
        delta.create(path, SCHEMA, partition_by=[], configuration={}, commit_properties=properties())
    assert pa.schema(delta.load(path).schema().to_arrow()).names == ["n"]
    assert delta.load(path).metadata().id == delta.load(path).metadata().id


def test_a_handle_knows_what_it_was_loaded_with_and_what_it_committed(delta, path):
    old, handle = delta.load(path), delta.load(path)
    append(delta, handle, [1], lake=7)
    assert (handle.version(), handle.transaction_version("lake")) == (1, 7)
    assert (old.version(), old.transaction_version("lake"), old.transaction_version("other")) == (0, -1, None)
    old.update_incremental()
    assert (old.version(), old.transaction_version("lake")) == (1, 7)


def test_a_commit_through_a_handle_older_than_another_of_its_identifiers_is_refused(delta, path):
    old, handle = delta.load(path), delta.load(path)
    append(delta, handle, [1], lake=7)
    with pytest.raises(CommitFailedError):
        append(delta, old, [2], lake=8)
    again = delta.load(path)
    append(delta, again, [2], lake=3)  # a lower number is not compared
    assert again.transaction_version("lake") == 3


def test_a_commit_of_other_identifiers_goes_through_an_old_handle(delta, path):
    old, handle = delta.load(path), delta.load(path)
    append(delta, handle, [1], other=1)
    append(delta, old, [2], lake=8)
    newest = delta.load(path)
    assert (newest.version(), newest.transaction_version("lake"), newest.transaction_version("other")) == (2, 8, 1)


def test_the_newest_commit_comes_first_in_the_history_with_its_metadata(delta, path):
    handle = delta.load(path)
    append(delta, handle, [1], metadata='{"n": 1}', lake=0)
    append(delta, handle, [2], lake=1)
    append(delta, handle, [3], metadata='{"n": 3}', lake=2)
    found = [commit.get(METADATA_KEY) for commit in handle.history(None)]
    assert found == ['{"n": 3}', None, '{"n": 1}', None]
    assert len(handle.history(2)) == 2


def test_a_checked_table_commits_again_where_another_writer_was_first(delta, tmp_path):
    path, seen = tmp_path / "checked", []
    table, other = (CheckedTable(path, SCHEMA, identifiers={"lake": -1}) for _ in range(2))

    def prepare() -> TableCommit:
        if not seen:
            other.commit(lambda: TableCommit(pa.table({"n": [1]}, schema=SCHEMA), {"lake": 5}, {"of": "other"}))
        seen.append(table.identifier("lake"))
        return TableCommit(pa.table({"n": [2]}, schema=SCHEMA), {"lake": 6}, {"of": "mine"})

    table.commit(prepare)
    assert seen == [-1, 5]
    other.refresh()
    assert (other.identifier("lake"), other.last_metadata()) == (6, {"of": "mine"})
    assert table.id == other.id


def test_the_folder_of_a_table_is_flushed_before_anything_is_committed_to_it(delta, tmp_path, monkeypatch):
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    CheckedTable(tmp_path / "checked", SCHEMA)
    assert {(tmp_path / "checked").stat().st_ino, tmp_path.stat().st_ino} <= set(flushed)


def test_a_table_of_other_columns_is_refused(delta, path):
    with pytest.raises(BadInput, match="does not hold the columns"):
        CheckedTable(path, pa.schema([("m", pa.int64())]))


def test_a_side_table_stores_a_number_once_also_for_another_writer(delta, tmp_path):
    rows = pa.Table.from_pylist(
        [dict.fromkeys(DEAD_LETTER_SCHEMA.names, 0) | {"kind": "feedback", "reason": "null:task"}
         | {"source_topic": "ads", "detail": "", "payload": b""}],
        schema=DEAD_LETTER_SCHEMA,
    )  # fmt: skip
    first, second = (SideTable(tmp_path, "dead", DEAD_LETTER_SCHEMA) for _ in range(2))
    assert [first.append(rows, number=4), second.append(rows, number=4), second.append(rows, number=5)] == [1, 0, 1]
    assert SideTable(tmp_path, "dead", DEAD_LETTER_SCHEMA).position == 5
