"""Compaction, retention and vacuum while writers write and readers read: every row stays where it is, in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from streaming.delta import DataFile, TableFiles, housekeeping_lock, in_flight_lock, vacuum_table
from streaming.errors import StreamingError
from streaming.lake import (
    DEAD_LETTERS,
    Housekeeper,
    Housework,
    LakeReader,
    LakeSettings,
    LakeTable,
    Readers,
    SideTable,
    compact_table,
    compaction,
    expire_rows,
    retention,
    retention_floor,
)
from streaming.lake.housekeeping import STARTING_S
from streaming.lake.writer import LakeWriter
from streaming.messages import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from tests.support.places import ROOT
from tests.support.streams import lake_rows
from tests.support.streams.lake_rows import SCHEMA

NOW_S = 1_000_000.0


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake" / "augmented_examples", SCHEMA)


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    return Readers(tmp_path / "lake" / "readers")


def rows(first: int, count: int, times: Mapping[int, int] | None = None) -> pa.RecordBatch:
    """As everywhere, but the event time of a row, in ms, is its `lake_seq`, and all are of one date. `times`: event
    times of single rows, by `lake_seq`."""
    batch = lake_rows.rows(first, count)
    seq = batch["lake_seq"].to_pylist()
    event_ms = pa.array([(times or {}).get(at, at) for at in seq])
    own = {"event_time_ms": event_ms, "event_date": pa.array(["2026-01-01"] * count)}
    columns = [own.get(name, batch[name]) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def fill(writer: LakeWriter, *counts: int) -> None:
    for count in counts:
        first = writer.last_lake_seq + 1
        writer.commit(rows(first, count), state=first + count, metadata={})


def data_files(lake: LakeTable) -> set[Path]:
    return set(lake.path.rglob("*.parquet")) - set((lake.path / "_delta_log").iterdir())


def whole(lake: LakeTable, first: int = 0) -> pa.Table:
    """The lake's rows; checked to be those written, from `first` on, each once and in order."""
    reader = lake.open_reader()
    found = reader.read().table
    expected = pa.table(rows(first, reader.last_lake_seq + 1 - first)).drop(["block"])
    assert found.drop(["block"]).equals(expected)
    return found


def settings(**given: float) -> LakeSettings:
    return LakeSettings(**({"compact_files": 4, "vacuum_after_s": 0.0} | given))


def compacted(lake: LakeTable, **given: float) -> Housework:
    done = Housework()
    compact_table(TableFiles(lake.path), settings(**given), done, now_s=NOW_S)
    return done


# --- which files are merged


def files(*sizes: int, date: str = "2026-01-01", changed_s: float = NOW_S) -> list[DataFile]:
    return [
        DataFile(f"{date}/{at}", (("event_date", date),), size, 10, changed_s, {"lake_seq": 10 * at},
                 {"lake_seq": 10 * at + 9}, {})
        for at, size in enumerate(sizes)
    ]  # fmt: skip


def planned(found: list[DataFile], **given: object) -> list[list[int]]:
    asked = {"compact_files": 4, "target_bytes": 1000, "now_s": NOW_S} | given
    return [[file.first // 10 for file in merge.files] for merge in compaction.plan(found, **asked)]  # type: ignore[arg-type]


def test_few_small_files_are_left_alone_until_the_partition_has_grown_cold() -> None:
    assert planned(files(10, 10, 10)) == []
    assert planned(files(10, 10, 10, 10)) == [[0, 1, 2, 3]]
    assert planned(files(10, 10, 10), now_s=NOW_S + 3601) == [[0, 1, 2]]
    assert planned(files(10), now_s=NOW_S + 3601) == []


def test_partitions_are_never_mixed() -> None:
    assert planned(files(10, 10, date="a") + files(10, 10, date="b")) == []


def test_a_merge_at_least_doubles_every_file_in_it_or_reaches_half_the_target() -> None:
    assert planned(files(400, 10, 10, 10, 10)) == [[1, 2, 3, 4]]
    assert planned(files(400, 10, 10, 10, 70)) == [[0, 1, 2, 3, 4]]
    assert planned(files(10, 10, 400, 10, 10)) == [[0, 1], [3, 4]]
    assert planned(files(499, 2, 499, 2)) == [[0, 1], [2, 3]]


def test_large_files_and_pinned_ranges_are_passed_over() -> None:
    assert planned(files(10, 10, 500, 10, 10)) == [[0, 1], [3, 4]]
    assert planned(files(*[10] * 8), pinned=[(25, 31)]) == [[0, 1], [4, 5, 6, 7]]


def test_a_byte_is_written_again_at_most_so_often_as_its_file_can_double() -> None:
    sizes: list[tuple[int, int]] = []  # (bytes, bytes ever written)
    target, each = 64_000, 100
    for _ in range(20_000):
        sizes.append((each, each))
        found = files(*[size for size, _ in sizes])
        for merge in reversed(planned(found, target_bytes=target, compact_files=8)):
            size = sum(sizes[at][0] for at in merge)
            written = sum(sizes[at][1] for at in merge) + size
            sizes[merge[0] : merge[-1] + 1] = [(size, written)]
    total = sum(size for size, _ in sizes)
    assert total == 20_000 * each
    assert sum(written for _, written in sizes) / total - 1 <= 1 + np.log2(target / each)
    assert len(sizes) <= total / (target / 2) + 8 + np.log2(target / each)
    assert max(size for size, _ in sizes) <= target


# --- compaction


def test_compacted_rows_are_the_same_in_order_with_statistics_and_row_groups(lake: LakeTable) -> None:
    writer = lake.open_writer()
    fill(writer, *[9_000] * 9)
    before = whole(lake)
    done = compacted(lake, compact_files=8)
    assert (done.merged_files, done.made_files) == (36, 4)
    reader = lake.open_reader()
    assert reader.files == 4
    assert reader.read().table.equals(before)
    for file in TableFiles(lake.path).files:
        seq = pq.read_table(TableFiles(lake.path).place(file), partitioning=None)["lake_seq"].to_numpy()
        assert (np.diff(seq) > 0).all()
        assert (file.first, file.last, file.rows) == (seq[0], seq[-1], len(seq))
        assert set(file.low) == set(file.high) == set(file.nulls) == {"lake_seq", "impression_id", "event_time_ms"}


def test_row_groups_are_cut_where_a_window_is_cheap_to_read(lake: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "ROW_GROUP_ROWS", 100)
    fill(lake.open_writer(), *[330] * 4)  # of four verticals
    compacted(lake)
    (one, *_) = TableFiles(lake.path).files
    with pq.ParquetFile(TableFiles(lake.path).place(one)) as parquet:
        groups = [parquet.metadata.row_group(at) for at in range(parquet.num_row_groups)]
        lowest = [group.column(0).statistics.min for group in groups]
        assert [group.num_rows for group in groups] == [100, 100, 100, one.rows - 300]
        assert parquet.schema_arrow.names[0] == "lake_seq"
        assert lowest == sorted(lowest)


def test_files_that_others_left_in_disorder_are_put_in_order(lake: LakeTable) -> None:
    writer = lake.open_writer()
    fill(writer, *[50] * 6)
    table = TableFiles(lake.path)
    news = sorted((f for f in table.files if ("vertical", "news") in f.partition), key=lambda f: f.first)
    assert compaction.merge(table, news[::2])  # ranges overlap now
    compacted(lake)
    whole(lake)


def test_a_writer_commits_while_files_are_merged(lake: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = lake.open_writer()
    fill(writer, *[100] * 4)
    replace = TableFiles.replace

    def slow(self: TableFiles, *given: object, **named: object) -> bool:
        fill(writer, 100)  # between the merge and its commit
        return replace(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(TableFiles, "replace", slow)
    assert compacted(lake).made_files
    fill(writer, 100)
    whole(lake)


def test_a_fenced_writer_stays_fenced_after_a_compaction(lake: LakeTable) -> None:
    older = lake.open_writer()
    fill(older, *[100] * 4)
    newer = lake.open_writer()
    compacted(lake)
    with pytest.raises(StreamingError, match=r"fenced: .* epoch 1, the lake has 2"):
        fill(older, 100)
    fill(newer, 100)
    whole(lake)


def test_two_who_merge_the_same_files_double_nothing(lake: LakeTable) -> None:
    fill(lake.open_writer(), *[100] * 4)
    one, other = TableFiles(lake.path), TableFiles(lake.path)
    news = [file for file in one.files if ("vertical", "news") in file.partition]
    assert compaction.merge(one, news)
    assert not compaction.merge(other, news)
    assert other.files == one.files  # it looked again
    whole(lake)


def test_a_merge_that_does_not_find_every_row_replaces_nothing(lake: LakeTable) -> None:
    fill(lake.open_writer(), *[100] * 4)
    table = TableFiles(lake.path)
    news = [file for file in table.files if ("vertical", "news") in file.partition]
    wrong = [news[0]._replace(rows=news[0].rows + 1), *news[1:]]
    with pytest.raises(StreamingError, match=r"4 files of .* should hold \d+ rows and hold \d+"):
        compaction.merge(table, wrong)
    whole(lake)


def test_dead_letters_are_compacted_and_remember_what_they_hold(tmp_path: Path) -> None:
    table = SideTable(tmp_path, DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    for number in range(6):
        letters = letters_to_batch([DeadLetter("impression", "null:age", "ads", 0, number, 0, "", b"?")])
        table.append(letters, number=number)
    done = Housework()
    compact_table(TableFiles(table.path), settings(), done, now_s=NOW_S)
    assert (done.merged_files, done.made_files) == (6, 1)
    assert table.append(letters, number=5) == 0
    assert SideTable(tmp_path, DEAD_LETTERS, DEAD_LETTER_SCHEMA).append(letters, number=6) == 1
    found = pa.table(DeltaTable(table.path).to_pyarrow_table())
    assert found.schema.equals(DEAD_LETTER_SCHEMA)
    assert sorted(found["source_offset"].to_pylist()) == [0, 1, 2, 3, 4, 5, 5]


# --- vacuum


def test_replaced_files_go_when_they_have_been_so_for_long_enough(lake: LakeTable) -> None:
    fill(lake.open_writer(), *[100] * 4)
    written = data_files(lake)
    for path in written:
        os.utime(path, (1, 1))  # written long ago, replaced now
    compacted(lake)
    assert vacuum_table(lake.path, 60.0) == (0, 0, len(written), False)
    assert written <= data_files(lake)
    for path in written:
        os.utime(path, (time.time() - 61, time.time() - 61))
    swept = vacuum_table(lake.path, 60.0)
    assert (swept.files, swept.waiting) == (16, 0)
    assert not written & data_files(lake)
    whole(lake)


def test_what_a_killed_commit_left_behind_goes_and_nothing_else(lake: LakeTable) -> None:
    fill(lake.open_writer(), 100)
    good = data_files(lake)
    script = (
        "import os, signal, sys, streaming.delta.table as d\n"
        "from pathlib import Path\n"
        "from streaming.lake import LakeTable\n"
        "from tests.support.streams.lake_rows import SCHEMA, rows\n"
        "writer = LakeTable(sys.argv[1], SCHEMA).open_writer()\n"
        "path = Path(sys.argv[1]) / 'vertical=news/event_date=2026-01-01'\n"
        "def killed(*_, **__):\n"
        "    (path / 'part-00000-dead-c000.zstd.parquet').write_bytes(b'x')\n"
        "    (path / 'part-00000-dead-c000.zstd.parquet#1').write_bytes(b'x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "d.write_deltalake = killed\n"
        "writer.commit(rows(100, 10), state=1, metadata={})\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(lake.path)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert vacuum_table(lake.path, 60.0) == (0, 0, 2, False)
    assert vacuum_table(lake.path, 0.0).files == 2
    assert data_files(lake) == good
    whole(lake)


def test_nothing_is_deleted_while_a_commit_is_in_flight(lake: LakeTable) -> None:
    fill(lake.open_writer(), 100)
    left = lake.path / "part-00000-x-c000.zstd.parquet"
    left.write_bytes(b"x")
    with in_flight_lock(lake.path):
        assert vacuum_table(lake.path, 0.0, wait_s=0.02).busy
        assert left.exists()
    assert vacuum_table(lake.path, 0.0).files == 1


def test_one_keeps_house_at_a_time(lake: LakeTable) -> None:
    lake.open_writer()
    with housekeeping_lock(lake.path, 0.0) as first, housekeeping_lock(lake.path, 0.02) as second:
        assert (first, second) == (True, False)


def test_readers_go_on_while_everything_is_merged_and_deleted_under_them(lake: LakeTable) -> None:
    """Whole reads, limited reads and blocks, each from an old look, with files gone from one moment to the next."""
    writer = lake.open_writer()
    fill(writer, *[40] * 30)
    stop = threading.Event()
    faults: list[BaseException] = []
    reads = [0, 0, 0]

    def watch(kind: int) -> None:
        try:
            reader = LakeReader(lake.path, SCHEMA, window_rows=256)
            while not stop.is_set() or not reads[kind]:
                reader.refresh()
                end = reader.last_lake_seq
                if kind == 0:
                    seq = reader.read(-1, columns=["lake_seq"]).table["lake_seq"].to_numpy()
                elif kind == 1:
                    parts, place = [], -1
                    while place < end:
                        read = reader.read(place, upto=end, limit_rows=97, columns=["lake_seq"])
                        parts.append(read.table["lake_seq"].to_numpy())
                        place = read.complete_upto
                    seq = np.concatenate(parts)
                else:
                    blocks = list(reader.blocks())
                    assert all(len(block["block"].unique()) == 1 for block in blocks)
                    seq = np.concatenate([block["lake_seq"].to_numpy() for block in blocks])[: end + 1]
                assert np.array_equal(seq, np.arange(end + 1))
                reads[kind] += 1
        except BaseException as error:  # told to the test below
            faults.append(error)

    threads = [threading.Thread(target=watch, args=(kind,)) for kind in range(3)]
    for thread in threads:
        thread.start()
    merged = 0
    for _ in range(10):
        fill(writer, *[40] * 3)
        merged += compacted(lake, compact_files=2).merged_files
        vacuum_table(lake.path, 0.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert merged > 60
    assert len(data_files(lake)) == lake.open_reader().files
    whole(lake)


# --- retention


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
        "from streaming.delta.files import TableFiles\n"
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


# --- in the background


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
    monkeypatch.setattr("streaming.delta.table.LOG_RETENTION", "interval 0 seconds")
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


def test_trouble_is_told_and_the_next_try_succeeds(
    lake: LakeTable, keeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = lake.open_writer()

    def no_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

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
    writer = lake.open_writer()
    for _ in range(8):
        fill(writer, 10)
        keeper.maybe()
    keeper.close()
    keeper.close()
    keeper.maybe()  # after the end: nothing
    assert threading.active_count() < 50
    assert not [thread for thread in threading.enumerate() if thread.name == "housekeeping"]
    whole(lake)


def test_a_cut_of_an_empty_lake_is_nowhere(lake: LakeTable) -> None:
    lake.open_writer()
    assert retention.cut(TableFiles(lake.path), 1000, None, now_ms=0).rows == 0
