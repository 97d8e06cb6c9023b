"""The lake is read in order, through any compaction, as far as one likes, by other engines too."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from streaming.errors import BadInput, StreamingError
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
from tests.support.streams.lake_rows import SCHEMA, VERTICALS, fill, filled, rows


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake" / "augmented_examples", SCHEMA)


def everything(first: int, last: int) -> pa.Table:
    return pa.table(rows(first, last - first + 1)).drop(["block"])


ODD_NAMES = [
    "..",
    ".",
    "a/b",
    "a\\b",
    "\x00",
    "a\x00",
    "%2F",
    "__HIVE_DEFAULT_PARTITION__",
    " ",
    "a=b",
    "\n",
    '"',
    "é" * 32,
    "'",
]


def test_a_vertical_of_any_name_is_read_back_as_it_is(lake: LakeTable) -> None:
    table = pa.table(rows(0, len(ODD_NAMES)))
    place = table.schema.get_field_index("vertical")
    table = table.set_column(place, table.schema.field(place), pa.array(ODD_NAMES))
    lake.open_writer().commit(table, state=1, metadata={})
    reader = lake.open_reader()
    assert reader.read(columns=["vertical"]).table["vertical"].to_pylist() == ODD_NAMES
    for name in ODD_NAMES:
        assert reader.read(columns=["vertical"], verticals={name}).table["vertical"].to_pylist() == [name]


def test_an_absent_lake_is_told_with_what_starts_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no lake at .*a run makes one"):
        LakeReader(tmp_path / "lake", SCHEMA)


def test_an_empty_lake_reads_as_no_rows_and_nowhere(lake: LakeTable) -> None:
    reader = filled(lake)
    for found in (reader.read(), reader.read(limit_rows=5)):
        assert found.table.schema.equals(SCHEMA.augmented)
        assert (found.table.num_rows, found.complete_upto) == (0, -1)


def test_a_reader_sees_new_rows_when_it_looks(lake: LakeTable) -> None:
    writer = lake.open_writer()
    fill(writer, 100)
    reader = lake.open_reader()
    assert not reader.refresh()
    fill(writer, 60)
    assert reader.last_lake_seq == 99
    assert reader.refresh()
    found = reader.read(after=99)
    assert (found.table["lake_seq"].to_pylist(), found.complete_upto) == (list(range(100, 160)), 159)
    assert reader.read(after=159).complete_upto == 159


def test_columns_come_in_the_order_asked_with_partition_columns_typed(lake: LakeTable) -> None:
    table = filled(lake, 50).read(columns=["event_date", "user_id", "vertical"]).table
    assert table.schema.names == ["event_date", "user_id", "vertical"]
    assert table.schema.types == [pa.string(), pa.int64(), pa.string()]
    assert table["user_id"].to_pylist() == list(range(50))
    with pytest.raises(BadInput, match=r"no column \['nope'\]"):
        lake.open_reader().read(columns=["nope"])


def test_a_vertical_is_read_without_opening_files_of_others(lake: LakeTable) -> None:
    reader = filled(lake, 400)
    for path in lake.path.glob("vertical=news/**/*.parquet"):
        path.unlink()
    odd = VERTICALS[1]
    table = reader.read(verticals={odd, "unheard of"}, columns=["lake_seq", "vertical"]).table
    whole = pa.table(rows(0, 400)).select(["lake_seq", "vertical"])
    assert table.equals(whole.filter(pc.field("vertical") == odd))
    with pytest.raises(StreamingError, match=r"a file of the lake is gone.*vacuum"):
        reader.read(verticals={"news"})


def test_a_filter_may_name_columns_that_are_not_asked_for(lake: LakeTable) -> None:
    reader = filled(lake, 300, 300)
    high = pc.field("score") > 500
    table = reader.read(filter=high & (pc.field("vertical") != "news"), columns=["impression_id"]).table
    whole = pa.table(rows(0, 600)).filter(high & (pc.field("vertical") != "news"))
    assert 0 < table.num_rows < 600
    assert table["impression_id"].to_pylist() == whole["impression_id"].to_pylist()


def test_a_filter_that_matches_nothing_still_advances(lake: LakeTable) -> None:
    reader = filled(lake, 300)
    for found in (
        reader.read(verticals={"x"}, limit_rows=9),
        reader.read(filter=pc.field("user_id") < 0, limit_rows=9),
    ):
        assert (found.table.num_rows, found.complete_upto) == (0, 299)


def test_reads_are_ordered_and_whole_after_compaction_by_others(lake: LakeTable) -> None:
    writer = lake.open_writer()
    fill(writer, *[40] * 12)
    reader = lake.open_reader()
    DeltaTable(lake.path).optimize.compact()
    fill(writer, *[40] * 3)
    before = reader.read().table  # the old files are still there
    assert before["lake_seq"].to_pylist() == list(range(480))
    table = DeltaTable(lake.path)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    renewed = reader.read(upto=479, columns=before.schema.names[::-1]).table  # the reader looks again by itself
    assert renewed.select(before.schema.names).equals(before)
    assert reader.read().table.drop(["block"]).equals(everything(0, 599))


@pytest.mark.parametrize("compacted", [False, True])
def test_limited_reads_are_exact_prefixes(lake: LakeTable, compacted: bool) -> None:
    writer, chance = lake.open_writer(), random.Random(11)
    fill(writer, *[chance.randint(1, 150) for _ in range(20)])
    if compacted:
        DeltaTable(lake.path).optimize.compact()
    reader = LakeReader(lake.path, SCHEMA, chunk_rows=100)
    whole = pa.table(rows(0, reader.last_lake_seq + 1)).drop(["block"])
    names = whole.schema.names
    for _ in range(60):
        after, limit = chance.randint(-1, reader.last_lake_seq), chance.randint(1, 400)
        upto = chance.choice([None, chance.randint(after, reader.last_lake_seq)])
        verticals = set(chance.sample(VERTICALS.tolist(), chance.randint(1, 4)))
        chosen = chance.choice([None, pc.field("score") > chance.randint(0, 999)])
        end = reader.last_lake_seq if upto is None else upto

        keep = (pc.field("lake_seq") > after) & (pc.field("lake_seq") <= end)
        keep &= pc.field("vertical").isin(sorted(verticals))
        expected = whole.filter(keep if chosen is None else keep & chosen)

        found = reader.read(after, upto=upto, limit_rows=limit, columns=names, verticals=verticals, filter=chosen)
        assert found.table.equals(expected.slice(0, limit))
        if expected.num_rows > limit:
            assert found.complete_upto == expected["lake_seq"][limit - 1].as_py()
        else:
            assert found.complete_upto in {end, expected["lake_seq"][-1].as_py() if expected.num_rows else end}


def test_a_reader_far_behind_walks_the_lake_in_limited_reads(lake: LakeTable) -> None:
    filled(lake, *[70] * 10)
    reader = LakeReader(lake.path, SCHEMA, chunk_rows=64)
    place, parts = -1, []
    while place < reader.last_lake_seq:
        found = reader.read(place, limit_rows=23, verticals={"travel"}, columns=["lake_seq"])
        assert found.complete_upto > place
        parts += found.table["lake_seq"].to_pylist()
        place = found.complete_upto
    assert parts == reader.read(verticals={"travel"}, columns=["lake_seq"]).table["lake_seq"].to_pylist()


ONE_LINE = {
    "duckdb": """
import duckdb, sys
from deltalake import DeltaTable
lake = DeltaTable(sys.argv[1]).to_pyarrow_dataset()
print(duckdb.sql("select count(*), count(distinct lake_seq), sum(user_id) from lake").fetchall()[0])
""",
    "polars": """
import polars as pl, sys
lake = pl.scan_delta(sys.argv[1])
print(lake.select(pl.len(), pl.col("lake_seq").n_unique(), pl.col("user_id").sum()).collect().row(0))
""",
}


@pytest.mark.parametrize("engine", sorted(ONE_LINE))
def test_other_engines_read_the_lake_and_end_cleanly(lake: LakeTable, engine: str) -> None:
    filled(lake, 300, 200)
    script = [sys.executable, "-c", ONE_LINE[engine], str(lake.path)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout.strip()) == (0, str((500, 500, 99 * 50 * 5))), ended.stderr


def test_blocks_come_whole_and_in_order_however_the_reading_is_cut(tmp_path: Path) -> None:
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    writer = lake.open_writer()
    sizes = [5, 1, 12, 3]
    for block, size in enumerate(sizes):
        writer.commit(rows(writer.last_lake_seq + 1, size, block=block), state=block, metadata={})
    reader = LakeReader(tmp_path / "lake", SCHEMA, chunk_rows=7)
    assert [block.num_rows for block in reader.blocks()] == sizes
    assert [block["lake_seq"][0].as_py() for block in reader.blocks(5)] == [6, 18]
    assert [block["lake_seq"][-1].as_py() for block in reader.blocks(4, 17)] == [5, 17]
