"""Compaction, retention and vacuum in the background, while writers write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.lake import compaction
from streaming.lake.housekeeping import Housekeeper
from streaming.lake.readers import Readers
from streaming.lake.writer import LakeTable
from tests.support.streams.housework import NOW_S, data_files, fill, settings, whole
from tests.support.streams.lake_rows import SCHEMA


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake" / "augmented_examples", SCHEMA)


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    return Readers(tmp_path / "lake" / "readers")


@pytest.fixture
def keeper(lake: LakeTable, readers: Readers) -> Iterator[Housekeeper]:
    lake.open_writer()
    asked = settings(compact_files=4, retention_days=1000 / 86_400_000)
    side = [lake.path.parent / "dead_letters"]  # not there
    found = Housekeeper(lake.path, side, readers, asked, awaited=["teacher"], clock=lambda: NOW_S)
    yield found
    found.close()


@pytest.mark.slow
def test_hundreds_of_commits_leave_few_files_and_few_log_entries(
    lake: LakeTable, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.lake.delta.table.LOG_RETENTION", "interval 0 seconds")
    writer = lake.open_writer()
    asked = settings(compact_files=8)
    keeper = Housekeeper(lake.path, [], readers, asked)
    most_files = most_log = 0
    for _ in range(15):
        for _ in range(20):
            fill(writer, 8)
            keeper.maybe()
        assert keeper.wait(30)
        most_files = max(most_files, len(data_files(lake)))
        most_log = max(most_log, len(list((lake.path / "_delta_log").iterdir())))
    keeper.close()
    assert keeper.trouble is None
    whole(lake)
    assert most_files <= 4 * (8 + 4 + 4)  # per vertical: not yet merged, since the last look, doublings
    assert most_log <= 60


def test_the_keeper_deletes_old_rows_once_all_readers_are_known(
    lake: LakeTable, readers: Readers, keeper: Housekeeper
) -> None:
    writer = lake.open_writer()

    def busy(commits: int) -> None:
        for _ in range(commits):
            fill(writer, 100)
            keeper.maybe()
        assert keeper.wait(30)

    busy(40)
    assert lake.open_reader().first_lake_seq == 0
    readers.register("teacher", writer.last_lake_seq, now_s=NOW_S)
    busy(20)
    assert keeper.trouble is None
    assert lake.open_reader().first_lake_seq >= 2900
    whole(lake, lake.open_reader().first_lake_seq)


def test_a_reader_that_was_known_and_is_retired_is_awaited_no_more(
    lake: LakeTable, readers: Readers, keeper: Housekeeper
) -> None:
    writer = lake.open_writer()
    readers.register("teacher", -1, now_s=NOW_S)
    readers.register("student-feed", 10_000, now_s=NOW_S)
    for commits, retired in ((20, False), (40, True)):
        for _ in range(commits):
            fill(writer, 100)
            keeper.maybe()
        assert keeper.wait(30)
        assert (lake.open_reader().first_lake_seq > 0) is retired
        readers.retire("teacher")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("No space left in a dict")])
def test_trouble_is_told_and_the_next_try_succeeds(
    lake: LakeTable, keeper: Housekeeper, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    writer = lake.open_writer()

    def no_room(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(compaction, "rewrite", no_room)
    for _ in range(8):
        fill(writer, 10)
        keeper.maybe()
    assert keeper.wait(30)
    assert keeper.trouble is not None
    assert "No space left" in keeper.trouble
    monkeypatch.undo()
    for _ in range(8):
        fill(writer, 10)
        keeper.maybe()
    assert keeper.wait(30)
    assert keeper.trouble is None
    assert lake.open_reader().files <= 16
    whole(lake)


def test_closing_waits_for_the_work_in_hand(lake: LakeTable, keeper: Housekeeper) -> None:
    before = set(threading.enumerate())
    writer = lake.open_writer()
    for _ in range(8):
        fill(writer, 10)
        keeper.maybe()
    keeper.close()
    keeper.close()
    keeper.maybe()  # after the end: nothing
    assert len(set(threading.enumerate()) - before) < 50
    assert not [thread for thread in threading.enumerate() if thread.name == "housekeeping"]
    whole(lake)
