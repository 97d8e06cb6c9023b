"""Old rows go from the front of the lake, and none that a reader still needs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from streaming.errors import StreamingError
from streaming.lake import retention
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.vacuum import vacuum_table
from streaming.lake.housekeeping import (
    STARTING_S,
    Housework,
    compact_table,
    expire_rows,
    retention_floor,
    too_far_behind,
)
from streaming.lake.readers import Readers
from streaming.lake.writer import LakeTable
from tests.support.places import ROOT
from tests.support.streams.housework import NOW_S, compacted, data_files, fill, rows, settings, whole
from tests.support.streams.lake_rows import SCHEMA


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake" / "augmented_examples", SCHEMA)


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    return Readers(tmp_path / "lake" / "readers")


def kept(lake: LakeTable, readers: Readers, age: int, *, now_s: float = NOW_S, **given: object) -> Housework:
    """Delete rows more than `age` ms behind the newest."""
    done = Housework()
    asked = settings(retention_days=age / 86_400_000, reader_expiry_s=100.0)
    held = retention_floor(readers, asked, now_s=now_s, **given)  # type: ignore[arg-type]
    expire_rows(TableFiles(lake.path), asked, done, held, now_s=now_s)
    return done


def test_old_rows_go_from_the_front_and_the_lake_says_where_it_begins(lake: LakeTable, readers: Readers) -> None:
    writer = lake.open_writer()
    fill(writer, *[100] * 10)
    done = kept(lake, readers, 449)  # the newest is 999: rows from 550 on are young, their block begins at 500
    assert (done.deleted_rows, done.first_seq) == (500, 500)
    reader = lake.open_reader()
    assert (reader.first_lake_seq, reader.last_lake_seq, reader.rows) == (500, 999, 500)
    assert whole(lake, 500).num_rows == 500
    fill(writer, 100)
    assert lake.open_writer().last_lake_seq == 1099
    assert kept(lake, readers, 599).deleted_rows == 0


def test_retention_cuts_through_compacted_files(lake: LakeTable, readers: Readers) -> None:
    fill(lake.open_writer(), *[100] * 10)
    compacted(lake)
    assert kept(lake, readers, 449).first_seq == 500
    vacuum_table(lake.path, 0.0)
    whole(lake, 500)
    table = pa.table(DeltaTable(lake.path).to_pyarrow_table())  # what other programs see
    assert sorted(table["lake_seq"].to_pylist()) == list(range(500, 1000))


FUTURE_MS = 221_845_392_000_000  # the year 9000


def filled_with(lake: LakeTable, times: Mapping[int, int]) -> None:
    writer = lake.open_writer()
    for first in range(0, 1000, 100):
        writer.commit(rows(first, 100, times), state=first + 1, metadata={})


@pytest.mark.parametrize("at", [999, 650, 505, 120])
@pytest.mark.parametrize("merged", [False, True])
def test_a_row_from_the_future_neither_deletes_what_is_young_nor_keeps_what_is_old(
    lake: LakeTable, readers: Readers, at: int, merged: bool
) -> None:
    filled_with(lake, {at: FUTURE_MS})
    if merged:
        compacted(lake)
    newest = 998 if at == 999 else 999
    assert retention.newest_event_ms(TableFiles(lake.path), now_ms=round(1000 * NOW_S)) == newest
    assert kept(lake, readers, 449).first_seq == 500
    assert lake.open_reader().rows == 500


def test_rows_from_the_future_go_with_the_old_rows_that_follow_them(lake: LakeTable, readers: Readers) -> None:
    filled_with(lake, dict.fromkeys(range(300), FUTURE_MS))  # the clock of a producer was wrong at first
    assert kept(lake, readers, 699).deleted_rows == 0  # row 300 is young, and nothing says that those before are not
    assert kept(lake, readers, 649).first_seq == 300  # row 349 is old


def test_a_row_that_went_says_nothing_of_time_though_the_clock_has_come_to_its_time(
    lake: LakeTable, readers: Readers
) -> None:
    filled_with(lake, {120: FUTURE_MS})
    compacted(lake)
    assert kept(lake, readers, 449).first_seq == 500  # the file that row 120 lay in is cut
    now_s = FUTURE_MS / 1000
    assert retention.newest_event_ms(TableFiles(lake.path), now_ms=FUTURE_MS) == 999
    assert kept(lake, readers, 349, now_s=now_s).first_seq == 600


def test_a_stream_with_a_time_of_its_own_keeps_its_newest_rows_though_the_clock_is_behind(
    lake: LakeTable, readers: Readers
) -> None:
    fill(lake.open_writer(), *[100] * 10)
    assert kept(lake, readers, 449, now_s=-1e6).first_seq == 500  # all of it lies in the future
    assert lake.open_reader().rows == 500


def test_no_row_goes_that_a_registered_reader_still_needs(lake: LakeTable, readers: Readers) -> None:
    fill(lake.open_writer(), *[100] * 10)
    readers.register("teacher", 899, now_s=NOW_S)
    readers.register("student-news", 349, now_s=NOW_S - 50)
    done = kept(lake, readers, 449)
    assert (done.first_seq, done.held_by) == (300, "`student-news` (at lake_seq 349)")
    reader = lake.open_reader()
    assert reader.read(349, limit_rows=1).table["lake_seq"].to_pylist() == [350]
    assert kept(lake, readers, 449, without={"student-news"}).first_seq == 500  # forced by name


def test_rows_of_runs_that_follow_the_lake_are_kept_until_they_expire(lake: LakeTable, readers: Readers) -> None:
    fill(lake.open_writer(), *[100] * 10)
    theirs = Readers(readers.folder / "team-1f")
    theirs.register("student-news", 349, now_s=NOW_S - 50)
    assert [(reader.name, reader.position) for reader in theirs.all()] == [("student-news", 349)]
    assert [(reader.name, reader.follows) for reader in readers.all()] == [("team-1f/student-news", True)]
    readers.register("student-news", 899, now_s=NOW_S)  # of the same name in the lake's own run
    done = kept(lake, readers, 449)
    assert (done.first_seq, done.held_by) == (300, "`team-1f/student-news` (at lake_seq 349)")
    assert kept(lake, readers, 449, now_s=NOW_S + 51).first_seq == 500
    assert readers.retire("team-1f/student-news")
    assert theirs.all() == []


def test_a_run_that_follows_too_far_behind_keeps_no_row(lake: LakeTable, readers: Readers) -> None:
    readers.register("examples topic", 999, now_s=NOW_S, lasting=True)
    readers.register("student-feed", 10, now_s=NOW_S)  # of the lake's own run: it is waited for
    Readers(readers.folder / "near").register("student-news", 400, now_s=NOW_S)
    Readers(readers.folder / "far").register("student-news", 398, now_s=NOW_S)

    def held_by(**given: object) -> str | None:
        held = retention_floor(readers, settings(follower_rows=600), now_s=NOW_S, **given)  # type: ignore[arg-type]
        return None if held is None else held.name

    assert held_by() == "student-feed"
    assert held_by(without={"student-feed"}) == "near/student-news"
    assert too_far_behind(readers.all(), settings(follower_rows=600)) == {"far/student-news"}
    assert too_far_behind(readers.all(), settings()) == set()


def test_a_paused_reader_is_waited_for_until_it_expires(lake: LakeTable, readers: Readers) -> None:
    fill(lake.open_writer(), *[100] * 10)
    readers.register("paused", -1, now_s=NOW_S)
    assert kept(lake, readers, 449, now_s=NOW_S + 100).deleted_rows == 0
    assert kept(lake, readers, 449, now_s=NOW_S + 101).first_seq == 500


def test_a_pinned_range_keeps_its_rows_and_files(lake: LakeTable, readers: Readers) -> None:
    fill(lake.open_writer(), *[100] * 10)
    readers.pin("audit", 200, 299, now_s=NOW_S)
    assert kept(lake, readers, 449).first_seq == 200
    table, done = TableFiles(lake.path), Housework()
    pinned = {file.path for file in table.files if file.first <= 299 and file.last >= 200}
    compact_table(table, settings(), done, now_s=NOW_S, pinned=[(200, 299)])
    assert done.made_files == 4
    assert pinned <= {file.path for file in table.files}


def test_every_row_is_kept_for_a_reader_that_has_not_come_yet(lake: LakeTable, readers: Readers) -> None:
    fill(lake.open_writer(), *[100] * 10)
    assert kept(lake, readers, 449, awaited=["teacher"]).deleted_rows == 0
    readers.register("teacher", 999, now_s=NOW_S)
    assert kept(lake, readers, 449, awaited=["teacher"]).deleted_rows == 500


def test_a_run_that_was_down_for_long_keeps_every_row_until_its_readers_had_time_to_come_back(
    readers: Readers,
) -> None:
    for name, position in (("teacher", 7), ("student-gone", 3)):
        readers.register(name, position, now_s=NOW_S)
    started_s = NOW_S + 1000 * settings().reader_expiry_s

    def held(now_s: float) -> str | None:
        found = retention_floor(readers, settings(), now_s=now_s, awaited=["teacher"], since_s=started_s)
        return None if found is None else found.name

    assert held(started_s + 1) == "teacher"
    assert held(started_s + STARTING_S + 1) is None


def test_a_reader_before_the_first_row_is_told_of_the_gap(lake: LakeTable, readers: Readers) -> None:
    fill(lake.open_writer(), *[100] * 10)
    reader = lake.open_reader()
    kept(lake, readers, 449)
    assert reader.read(99, limit_rows=1).table["lake_seq"].to_pylist() == [100]  # as of its last look
    vacuum_table(lake.path, 0.0)
    said = r"rows lake_seq 100 to 499 of the lake .* are deleted .* begins at 500, and this reader stands at 99"
    with pytest.raises(StreamingError, match=said):
        reader.read(99, columns=["block"])
    with pytest.raises(StreamingError, match="rows lake_seq 0 to 499"):
        next(lake.open_reader().blocks(-1))
    assert reader.read(499).table.num_rows == 500
    assert next(iter(reader.blocks()))["lake_seq"].to_pylist() == list(range(500, 600))


def test_a_kill_inside_a_deletion_leaves_all_or_nothing(lake: LakeTable, readers: Readers) -> None:
    fill(lake.open_writer(), *[100] * 10)
    compacted(lake)
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from streaming.lake import retention\n"
        "from streaming.lake.delta.files import TableFiles\n"
        "TableFiles.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "retention.delete_before(TableFiles(Path(sys.argv[1])), 500)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(lake.path)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    whole(lake)
    assert kept(lake, readers, 449).first_seq == 500
    whole(lake, 500)
    vacuum_table(lake.path, 0.0)
    assert len(data_files(lake)) == lake.open_reader().files


def test_a_cut_of_an_empty_lake_is_nowhere(lake: LakeTable) -> None:
    lake.open_writer()
    assert retention.cut(TableFiles(lake.path), 1000, None, now_ms=0).rows == 0
