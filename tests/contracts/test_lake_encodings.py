"""Numbers lie in the lake's files in the form that is smaller, in commits and after compaction, for every reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming.lake.delta.encodings import SAMPLE, Form, without_dictionary
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.table import CheckedTable, TableCommit
from streaming.lake.writer import LakeTable
from tests.support.streams.housework import compacted
from tests.support.streams.lake_rows import SCHEMA, rows

ROWS = 8192
IDS = np.random.default_rng(3).integers(-(2**63), 2**63, 4 * ROWS)  # steps of up to 65 bits
SCORES = np.random.default_rng(4).normal(size=4 * ROWS).astype(np.float32)


def odd_rows(first: int) -> pa.RecordBatch:
    """Ids and scores that do not repeat; the other columns do."""
    batch = rows(first, ROWS)
    these = slice(first, first + ROWS)
    own = {"user_id": pa.array(IDS[these]), "score": pa.array(SCORES[these], mask=np.arange(ROWS) % 5 == 0)}
    return pa.RecordBatch.from_arrays([own.get(n, batch[n]) for n in batch.schema.names], schema=batch.schema)


def chunks(lake: LakeTable) -> Iterator[tuple[str, pq.ColumnChunkMetaData]]:
    """The first row group of every file, by column."""
    for file in TableFiles(lake.path).files:
        group = pq.ParquetFile(lake.path / file.path).metadata.row_group(0)
        for n in range(group.num_columns):
            yield group.column(n).path_in_schema.split(".")[0], group.column(n)


def encodings(lake: LakeTable, column: str) -> set[str]:
    found = {encoding for name, chunk in chunks(lake) if name == column for encoding in chunk.encodings}
    return found - {"RLE"}  # of what is null


def codecs(lake: LakeTable, column: str) -> set[str]:
    return {chunk.compression for name, chunk in chunks(lake) if name == column}


@pytest.fixture(params=["as committed", "compacted"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    writer = lake.open_writer()
    for first in range(0, 4 * ROWS, ROWS):
        writer.commit(odd_rows(first), state=first + 1, metadata={})
    if request.param == "compacted":
        before = len(TableFiles(lake.path).files)
        assert compacted(lake).merged_files == before
    return lake


def test_what_hardly_repeats_lies_without_a_dictionary_and_what_repeats_within_one(lake: LakeTable) -> None:
    assert encodings(lake, "user_id") == encodings(lake, "lake_seq") == {"DELTA_BINARY_PACKED"}
    assert encodings(lake, "score") == {"PLAIN"}
    for column in ("tags", "settlement", "label_ctr"):
        assert "RLE_DICTIONARY" in encodings(lake, column)


def test_numbers_are_packed_by_what_makes_them_smaller_and_texts_by_zstd(lake: LakeTable) -> None:
    for column in ("user_id", "score"):
        assert codecs(lake, column) == {"UNCOMPRESSED"}
    assert codecs(lake, "label_ctr") == {"SNAPPY"}
    for column in ("tags", "settlement", "source_topic"):
        assert codecs(lake, column) == {"ZSTD"}
    one_by_one = pa.table({"lake_seq": range(9000)})
    assert Form.of(one_by_one) == ({"lake_seq": "DELTA_BINARY_PACKED"}, {"lake_seq": "SNAPPY"})
    rising = pa.table({"bid": np.linspace(0, 1, 9000, dtype=np.float32)})
    assert Form.of(rising) == ({"bid": "PLAIN"}, {"bid": "ZSTD"})
    for nothing in ([], [None]):
        assert Form.of(pa.table({"bid": pa.array(nothing, pa.float32())})) == ({}, {"bid": "SNAPPY"})


def test_values_after_a_long_stretch_of_nulls_say_how_their_column_is_packed() -> None:
    late = [None] * (SAMPLE + 1) + IDS[:ROWS].tolist()
    assert Form.of(pa.table({"id": pa.array(late, pa.int64())})) == ({"id": "DELTA_BINARY_PACKED"}, {"id": "NONE"})


def test_row_groups_have_bounds_of_the_columns_that_the_table_names(lake: LakeTable) -> None:
    with_bounds = {name for name, chunk in chunks(lake) if chunk.is_stats_set}
    assert with_bounds == {"lake_seq", "impression_id", "event_time_ms"}
    for file in TableFiles(lake.path).files:
        assert file.low.keys() == file.high.keys() == with_bounds
        seq = pq.read_table(lake.path / file.path, columns=["lake_seq"], partitioning=None)["lake_seq"].to_numpy()
        assert (file.low["lake_seq"], file.high["lake_seq"], file.rows) == (seq.min(), seq.max(), len(seq))


def test_every_engine_reads_the_numbers_that_were_written(lake: LakeTable) -> None:
    paths = [str(lake.path / file.path) for file in TableFiles(lake.path).files]
    whole = pa.Table.from_batches([odd_rows(first) for first in range(0, 4 * ROWS, ROWS)])
    written = whole.select(["lake_seq", "user_id", "score", "tags"])
    assert lake.open_reader().read(columns=written.column_names).table.equals(written)
    for_duckdb = duckdb.read_parquet(paths).project("lake_seq, user_id, score, tags").order("lake_seq")
    for_polars = pl.read_parquet(paths, hive_partitioning=False).select(written.column_names).sort("lake_seq")
    for found in (for_duckdb.to_arrow_table(), for_polars.to_arrow()):
        assert found.cast(written.schema).equals(written)


def test_a_lake_with_dictionaries_of_an_earlier_release_is_read_and_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    writer = lake.open_writer()
    with monkeypatch.context() as earlier:
        earlier.setattr("streaming.lake.delta.encodings.without_dictionary", lambda rows: {})
        for first in range(0, 4 * ROWS, ROWS):
            writer.commit(odd_rows(first), state=first + 1, metadata={})
    assert "RLE_DICTIONARY" in encodings(lake, "user_id")
    before, size = lake.open_reader().read().table, lake.open_reader().bytes
    compacted(lake)
    assert lake.open_reader().read().table.equals(before)
    assert encodings(lake, "user_id") == {"DELTA_BINARY_PACKED"}
    assert lake.open_reader().bytes < 0.8 * size


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([], True),
        ([None, None], True),
        ([1, 3, 2, 0] * 1000, True),
        ([-(2**63), 2**63 - 1] * 500, True),  # steps wrap, here and in the file: each is one up or one down
        ([7] * 1000, False),
        (list(range(1000)), False),
    ],
)
def test_a_dictionary_is_kept_where_it_is_no_longer_than_the_steps(values: list[int | None], kept: bool) -> None:
    assert bool(without_dictionary(pa.table({"id": pa.array(values, pa.int64())}))) != kept


@pytest.mark.parametrize("span", [1, 2, 63, 500, 999, 1000, 1001, 2**20, 2**63])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_distinct_numbers_are_counted_alike_whatever_their_span(span: int, kind: type) -> None:
    """A dictionary is taken just where it has fewer bits, with every distinct number counted once."""
    generator, limits = np.random.default_rng(span % 97), np.iinfo(kind)
    for lowest in (limits.min, -5, 0, limits.max - span + 1):
        if not limits.min <= lowest <= limits.max - span + 1:
            continue
        values = (lowest + generator.integers(0, span, 1000, dtype=np.uint64).astype(object)).astype(kind)
        distinct = len(np.unique(values))
        steps = np.diff(values, prepend=values[:1])
        as_steps = 1000 * min(64, (int(steps.max()) - int(steps.min())).bit_length())
        as_places = 8 * values.itemsize * distinct + 1000 * (distinct - 1).bit_length()
        assert ("n" in without_dictionary(pa.table({"n": values}))) == (as_steps < as_places)


def test_a_table_without_rows_is_committed_too(tmp_path: Path) -> None:
    table = CheckedTable(tmp_path / "table", SCHEMA.augmented, identifiers={"exfm/test": 1})
    table.commit(lambda: TableCommit(SCHEMA.augmented.empty_table(), {"exfm/test": 2}, None))
    assert table.identifier("exfm/test") == 2
