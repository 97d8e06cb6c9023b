"""Several that read a lake through one reader: what each gets is what it would get alone, and a range is read once."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from streaming.lake.reader import LakeReader
from streaming.lake.source import LakeSource
from streaming.lake.writer import LakeTable
from tests.support.streams.lake_rows import SCHEMA, fill

ASKS = [
    {"columns": ["lake_seq", "user_id"], "verticals": {"news"}},
    {"columns": ["impression_id", "lake_seq"], "verticals": {"news", "shop"}},
    {"columns": ["lake_seq", "user_id", "score"]},
    {"columns": ["lake_seq", "score"], "filter": pc.field("score") > 300},
    {"columns": ["user_id"], "verticals": {"travel"}, "filter": pc.field("score") > 300},
    {"columns": ["lake_seq", "user_id"], "verticals": {"news"}},
    {"columns": ["lake_seq"], "verticals": {"nowhere"}},
]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each look into the files gave."""
    counts: list[int] = []
    load = ds.FileSystemDataset

    class Watched:
        def __init__(self, *given: object) -> None:
            self._data = load(*given)

        def to_table(self, **asked: object) -> pa.Table:
            counts.append(self._data.count_rows())
            return self._data.to_table(**asked)

    monkeypatch.setattr(ds, "FileSystemDataset", Watched)
    return counts


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shared_bytes", [0, 4_000, 1 << 20])
def test_sources_of_one_reader_give_what_each_would_give_alone(tmp_path: Path, seed: int, shared_bytes: int) -> None:
    chance, lake = random.Random(seed), LakeTable(tmp_path / "lake", SCHEMA)
    writer = lake.open_writer()
    fill(writer, *[chance.randint(1, 90) for _ in range(8)])
    shared = LakeReader(lake.path, SCHEMA, chunk_rows=100, shared_bytes=shared_bytes)
    asks = [chance.choice(ASKS) for _ in range(5)]
    places = [chance.randint(-1, writer.last_lake_seq) for _ in asks]
    limits = [chance.randint(1, 60) for _ in asks]
    sources = [LakeSource(shared, batch_rows=limit, **ask) for ask, limit in zip(asks, limits, strict=True)]
    for source, place in zip(sources, places, strict=True):
        source.open(place)
    found = [[] for _ in asks]
    for _ in range(300):
        n = chance.randrange(len(asks))
        if (rows := sources[n].next_batch()) is not None:
            found[n].append(rows)
        if chance.random() < 0.03:
            fill(writer, chance.randint(1, 120))
    for ask, limit, place, source, parts in zip(asks, limits, places, sources, found, strict=True):
        own = LakeReader(lake.path, SCHEMA)
        upto = source.position()
        expected = own.read(place, upto=upto, **ask).table
        given = pa.concat_tables([expected.slice(0, 0), *parts])
        assert given.combine_chunks().equals(expected.combine_chunks())
        assert max((part.num_rows for part in parts), default=0) <= limit


def test_sources_that_go_together_decode_each_range_once(tmp_path: Path, decoded: list[int]) -> None:
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    fill(lake.open_writer(), *[100] * 12)
    shared = LakeReader(lake.path, SCHEMA, chunk_rows=300, shared_bytes=1 << 20)
    sources = [LakeSource(shared, batch_rows=40, **ask) for ask in ASKS]
    for source in sources:
        source.open()
    while any(source.position() < 1199 for source in sources):
        for source in sources:
            source.next_batch()
    assert len(decoded) == 1200 / 300


def test_what_all_have_passed_and_what_there_is_no_room_for_is_let_go(tmp_path: Path) -> None:
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    fill(lake.open_writer(), *[100] * 12)
    for shared_bytes, kept in ((1 << 20, {0, 200, 400, 600, 800}), (1, {0, 800})):
        shared = LakeReader(lake.path, SCHEMA, chunk_rows=200, shared_bytes=shared_bytes)
        slow, quick = (LakeSource(shared, batch_rows=25, **ASKS[2]) for _ in range(2))
        slow.open()
        slow.next_batch()
        quick.open()
        while quick.position() < 999:
            quick.next_batch()
        assert {chunk.low + 1 for chunk in shared.scan.held} == kept


def test_one_far_behind_reads_for_itself_and_disturbs_nobody(tmp_path: Path, decoded: list[int]) -> None:
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    fill(lake.open_writer(), *[100] * 20)
    shared = LakeReader(lake.path, SCHEMA, chunk_rows=200, shared_bytes=1)  # room for nothing but what is in use
    live = [LakeSource(shared, batch_rows=25, **ask) for ask in ASKS[:3]]
    late = LakeSource(shared, batch_rows=25, **ASKS[1])
    for source in live:
        source.open(1399)
    late.open(-1)
    while late.position() < 599:
        for source in (*live, late):
            source.next_batch()
    assert late.position() >= 599
    chunks = {chunk.low: chunk.query.columns for chunk in shared.scan.held}
    assert set(chunks[min(chunks)]) == {"impression_id", "lake_seq"}
    # The live ones: 600 rows in 3 windows, of 200 rows each; the late one: as many of its own.
    assert len(decoded) <= 3 * 3 + 4


def test_for_one_far_behind_no_window_of_the_live_ones_is_kept(tmp_path: Path) -> None:
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    writer = lake.open_writer()
    fill(writer, *[100] * 20)
    shared = LakeReader(lake.path, SCHEMA, chunk_rows=200, shared_bytes=1 << 20)
    late, *live = (LakeSource(shared, batch_rows=25, **ASKS[2]) for _ in range(3))
    late.open(-1)
    late.next_batch()
    for source in live:
        source.open(1999)
    for _ in range(30):  # a commit every few rows: as many windows
        fill(writer, 20)
        for source in live:
            source.next_batch()
    assert {source.position() for source in live} == {2599}
    assert len(shared.scan.held) == 2  # that of the late one, and the newest
