"""Tables at an object store: commits that fail half-way, writers on two machines, readers elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming.errors import StreamingError
from streaming.lake.compaction import merge
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.remote import follow
from streaming.lake.delta.table import CheckedTable, TableCommit
from streaming.lake.delta.vacuum import Vacuumed, vacuum_table
from streaming.lake.writer import LakeTable
from streaming.schema import Column, RowSchema, Task
from streaming.store.s3 import client_of
from streaming.store.working_copy import copy_of, open_copy

SCHEMA = pa.schema([("lake_seq", pa.int64())])
ROWS = RowSchema(columns=[Column(name="user_id")], tasks=[Task(name="ctr", window_s=60)])


def machine(tmp_path, name: str) -> Path:
    return open_copy(tmp_path / name, f"s3://bucket/{tmp_path.name}").root


def rows_of(table: Path) -> list[int]:
    files = TableFiles(table)
    return sorted(row for f in files.files for row in pq.read_table(files.place(f))["lake_seq"].to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_a_tenth_of_the_requests_fail_and_every_row_is_there_once(s3_server, tmp_path, seed):
    path = machine(tmp_path, "here") / "lake" / "table"
    with s3_server.failing(0.1, seed=seed):
        table = CheckedTable(path, SCHEMA, identifiers={"n": 0}, statistics=["lake_seq"])
        for number in range(25):

            def prepare(number=number) -> TableCommit | None:
                if table.identifier("n") == number + 1:
                    return None
                assert table.identifier("n") == number
                rows = pa.table({"lake_seq": [2 * number, 2 * number + 1]}, schema=SCHEMA)
                return TableCommit(rows, {"n": number + 1}, {})

            table.commit(prepare)
            if number % 10 == 9:
                assert any(merge(files, files.files) for files in (TableFiles(path) for _ in range(5)))
    assert s3_server.happened.total() > 20
    assert rows_of(path) == list(range(50))
    there = machine(tmp_path, "there") / "lake" / "table"
    follow(there)
    assert rows_of(there) == list(range(50))


def test_a_commit_that_the_store_refuses_is_seen_by_nobody(s3_server, tmp_path, monkeypatch):
    monkeypatch.setattr("streaming.store.s3.ATTEMPTS", 2)
    client_of.cache_clear()
    path = machine(tmp_path, "here") / "lake" / "table"
    table = CheckedTable(path, SCHEMA, identifiers={"n": 0})
    with s3_server.failing(1.0, kinds=["503"]), pytest.raises(StreamingError):
        table.commit(lambda: TableCommit(pa.table({"lake_seq": [1]}, schema=SCHEMA), {"n": 1}, {}))
    client_of.cache_clear()
    assert rows_of(path) == []


@pytest.mark.parametrize("server", ["s3_server", "moto_server"])
def test_of_two_writers_on_two_machines_the_later_one_writes(request, tmp_path, server):
    request.getfixturevalue(server)
    first = LakeTable(machine(tmp_path, "here") / "lake" / "augmented_examples", ROWS).open_writer()
    first.commit(None, state=1, metadata={})
    second = LakeTable(machine(tmp_path, "there") / "lake" / "augmented_examples", ROWS).open_writer()
    assert (second.epoch, second.state) == (first.epoch + 1, 1)
    with pytest.raises(StreamingError, match="fenced"):
        first.commit(None, state=2, metadata={})
    second.commit(None, state=3, metadata={})
    with pytest.raises(StreamingError, match="fenced"):
        first.check()
    follow(tmp_path / "here" / "lake" / "augmented_examples")
    assert TableFiles(tmp_path / "here" / "lake" / "augmented_examples").identifier("exfm/state") == 3


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_writer_of_a_coordinator_that_was_taken_over_reads_no_state(s3_server, tmp_path, monkeypatch, when):
    """The log may name states that are on another machine alone."""
    copy, commit = open_copy(tmp_path / "here", f"s3://bucket/{tmp_path.name}"), CheckedTable.commit
    lake = LakeTable(copy.root / "lake" / "augmented_examples", ROWS)
    copy.take_over()
    lake.open_writer()

    def take_over() -> None:
        copy.store.put("coordinators/00000002.json", json.dumps({"pid": 1, "host": "there"}).encode())

    if when == "before":
        take_over()
    else:
        monkeypatch.setattr(CheckedTable, "commit", lambda *given: (take_over(), commit(*given)))
    with pytest.raises(StreamingError, match=r"fenced: .* was taken over by pid 1 on there"):
        lake.open_writer()
    monkeypatch.undo()
    there = LakeTable(machine(tmp_path, "there") / "lake" / "augmented_examples", ROWS)
    assert there.open_writer().epoch == (2 if when == "before" else 3)


@pytest.mark.parametrize("server", ["s3_server", "moto_server"])
def test_the_log_here_loses_the_entries_that_were_deleted_at_the_store(request, tmp_path, server):
    request.getfixturevalue(server)
    path = machine(tmp_path, "here") / "lake" / "table"
    table = CheckedTable(path, SCHEMA, identifiers={"n": 0})
    for number in range(1, 25):
        table.commit(lambda number=number: TableCommit(SCHEMA.empty_table(), {"n": number}, {}))
    copy = copy_of(path)
    assert copy is not None
    old = [f"lake/table/_delta_log/{version:020d}.json" for version in range(10)]
    copy.store.delete(old)
    follow(path)
    assert min(entry.name for entry in (path / "_delta_log").glob("*.json")) == f"{10:020d}.json"
    assert TableFiles(path).identifier("n") == 24


@pytest.mark.parametrize("server", ["s3_server", "moto_server", "folder"])
def test_a_store_is_vacuumed_by_its_own_log_of_what_is_an_hour_old(request, tmp_path, server):
    store = tmp_path / "store"
    if server != "folder":
        request.getfixturevalue(server)
    copy = open_copy(tmp_path / "here", store.as_uri() if server == "folder" else f"s3://bucket/{tmp_path.name}")
    path = copy.root / "lake" / "table"
    table = CheckedTable(path, SCHEMA, identifiers={"n": 0}, statistics=["lake_seq"])
    rows = pa.table({"lake_seq": [1]}, schema=SCHEMA)
    table.commit(lambda: TableCommit(rows, {"n": 1}, {}))
    (named,) = (found.key for found in copy.store.list("lake/table/part"))
    left = "lake/table/part-left%20over.parquet"
    copy.store.put(left, b"of a commit that was killed")
    shutil.rmtree(path / "_delta_log")  # whatever is known here, as where a full disk keeps the log from following
    (path / "_delta_log").mkdir()
    assert vacuum_table(path, 0.0) == Vacuumed()  # it may be of a commit in flight
    if server == "folder":
        for key in (named, left):
            os.utime(store / key, (time.time() - 7300,) * 2)
        assert vacuum_table(path, 0.0) == Vacuumed(files=1, bytes=27)
    assert [found.key for found in copy.store.list("lake/table/part")] == [named, left][: 1 + (server != "folder")]
