"""Rows that several processes hold are one commit of the lake, and they are asked again where its layout changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipelines.live.workers.augmentation.shards import RankAnswer
from pipelines.live.workers.augmentation.shared_block import SharedBlock
from streaming.errors import StreamingError
from streaming.lake.delta.files import DataFile, TableFiles
from streaming.lake.delta.table import write_rows
from streaming.lake.layout import DATES, VERTICALS, by_verticals
from streaming.lake.writer import LakeTable
from tests.support.streams.lake_rows import SCHEMA, rows

ROWS = 500
FACTS = ("lake_seq", "block", "event_time_ms", "vertical")


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake" / "augmented_examples", SCHEMA, "dates")


class TwoProcesses:
    """They hold a block's rows, the first of them `first_rows`. `meanwhile` happens when they have written files."""

    def __init__(self, lake: LakeTable, block: pa.RecordBatch, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.facts, self.asked = pa.table(block).select(FACTS), list[tuple[str, ...]]()
        self._lake, self._rows, self._meanwhile = lake, pa.table(block), meanwhile

    def files(self, by: Sequence[str], statistics: Sequence[str]) -> list[DataFile]:
        self.asked.append(tuple(by))
        halves = self._rows.slice(0, ROWS // 3), self._rows.slice(ROWS // 3)
        written = [file for half in halves for file in write_rows(self._lake.path, half, by, statistics)]
        if len(self.asked) == 1:
            self._meanwhile()
        return written


def committed(lake: LakeTable) -> pa.Table:
    return lake.open_reader().read().table


def test_their_files_are_one_commit(lake: LakeTable) -> None:
    writer, block = lake.open_writer(), rows(0, ROWS)
    version = DeltaTable(lake.path).version()
    held = TwoProcesses(lake, block)
    assert writer.commit(None, state=7, metadata={"rows": ROWS}, elsewhere=held) == ROWS - 1
    assert held.asked == [DATES]
    assert committed(lake).equals(pa.table(block))
    assert DeltaTable(lake.path).version() == version + 1
    writer.commit(rows(ROWS, 10), state=8, metadata={})
    again = lake.open_writer()
    assert (again.last_lake_seq, again.state) == (ROWS + 9, 8)


def test_a_layout_that_changes_while_they_write_has_them_write_again(lake: LakeTable) -> None:
    writer = lake.open_writer()
    writer.commit(rows(0, ROWS), state=1, metadata={})
    held = TwoProcesses(lake, rows(ROWS, ROWS), lambda: by_verticals(TableFiles(lake.path), target_bytes=2**20))
    writer.commit(None, state=2, metadata={}, elsewhere=held)
    assert held.asked == [DATES, VERTICALS]
    assert committed(lake).drop(["block"]).equals(pa.table(rows(0, 2 * ROWS)).drop(["block"]))


def test_rows_that_do_not_go_on_are_refused_before_they_are_written(lake: LakeTable) -> None:
    held = TwoProcesses(lake, rows(1, ROWS))
    with pytest.raises(StreamingError, match="a gap"):
        lake.open_writer().commit(None, state=1, metadata={}, elsewhere=held)
    assert held.asked == []


class Ranks:
    """Two ranks of four partitions; the second wrote `files`."""

    ranks, partitions = 2, 4

    def __init__(self, files: list[DataFile]) -> None:
        self._files = files

    def numbers(self, rank: int) -> range:
        return range(2 * rank, 2 * rank + 2)

    def ask(self, name: str, *values: object) -> list[RankAnswer]:
        first = DataFile("0", (), 1, 3, 0.0, {"lake_seq": 10}, {"lake_seq": 12}, {})
        return [RankAnswer({"files": files, "messages": [1]}) for files in ([first], self._files)]


@pytest.mark.parametrize(
    ("first", "last", "count", "right"), [(13, 14, 2, True), (13, 15, 3, False), (12, 13, 2, False)]
)
def test_files_that_do_not_hold_what_their_rank_was_to_write_are_not_committed(first, last, count, right) -> None:
    taken = pa.record_batch({"settled_by": [0, 0, 1, 3, 3], "event_time_ms": [1, 2, 3, 4, 5], "vertical": ["news"] * 5})
    file = DataFile("1", (("vertical", "news"),), 1, count, 0.0, {"lake_seq": first}, {"lake_seq": last}, {})
    block = SharedBlock(Ranks([file]), taken, {"block": 4, "first_seq": 10})  # type: ignore[arg-type]
    assert block.facts["lake_seq"].to_pylist() == [10, 11, 12, 13, 14]
    if right:
        assert [each.path for each in block.files(VERTICALS, ["lake_seq"])] == ["0", "1"]
        return
    with pytest.raises(StreamingError, match="rank 1 was to write the 2 rows of block 4 from lake_seq 13 on"):
        block.files(VERTICALS, ["lake_seq"])
