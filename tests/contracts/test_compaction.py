"""Small files are merged while writers write: every row stays where it is, in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from streaming.errors import StreamingError
from streaming.lake import compaction
from streaming.lake.delta.files import DataFile, TableFiles
from streaming.lake.housekeeping import Housework, compact_table
from streaming.lake.side_tables import DEAD_LETTERS, SideTable
from streaming.lake.writer import LakeTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from tests.support.streams.housework import NOW_S, compacted, fill, settings, whole
from tests.support.streams.lake_rows import SCHEMA


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake" / "augmented_examples", SCHEMA)


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
