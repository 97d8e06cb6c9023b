"""At the end of a run, what was read of every column is counted from the lake and the dead letters."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipelines.report.results.columns_read import columns_read
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
from streaming.schema import RowSchema, Task
from tests.support.streams.lake_rows import SCHEMA, rows

ROWS, OF_CVR = 5000, 1000


def lake(tmp_path, schema=SCHEMA, chunk_rows=700) -> LakeReader:
    """Blocks of ctr, and one of cvr in between, whose impressions are in the lake already."""
    writer = LakeTable(tmp_path / "lake", schema).open_writer()
    for first, count in ((0, 3000), (3000, OF_CVR), (4000, 2000)):
        batch = rows(first, count, schema=schema)
        if first == 3000:
            place = batch.schema.get_field_index("settlement")
            batch = batch.set_column(place, batch.schema.field(place), pa.array(["cvr"] * count))
        writer.commit(batch, state=first, metadata={})
    return LakeReader(tmp_path / "lake", schema, chunk_rows=chunk_rows)


def test_each_column_of_the_lake_is_counted_over_all_its_windows(tmp_path):
    refused = {"null:user_id": 4, "wrong_type:user_id": 1, "bad_event_time": 2, "undecodable": 7}
    found = {column.name: column for column in columns_read(lake(tmp_path), refused)}
    assert list(found) == SCHEMA.impression.names
    assert {column.rows for column in found.values()} == {ROWS}
    assert {name: column.refused for name, column in found.items() if column.refused} == {
        "user_id": 5, "event_time_ms": 2
    }  # fmt: skip
    seq = np.concatenate([np.arange(3000), np.arange(4000, 6000)])
    user, score, tags = found["user_id"], found["score"], found["tags"]
    assert (user.type, user.nulls, user.low, user.high, user.distinct) == ("int64", 0, 0, 99, 100)
    scattered = ((seq.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)) % 1000
    read = scattered[seq % 10 != 0]
    assert (score.type, score.nulls, score.low, score.high, score.distinct) == (
        "float", len(seq) - len(read), read.min(), read.max(), len(np.unique(read))
    )  # fmt: skip
    inside = {value for s in seq.tolist() if s % 3 for value in (s, s + 1)}
    assert (tags.nulls, tags.low, tags.high, tags.distinct) == (
        int((seq % 3 == 0).sum()), min(inside), max(inside), len(inside)
    )  # fmt: skip
    assert found["vertical"].distinct == 4
    assert found["vertical"].low == "home & garden/α=%"


def test_of_a_long_lake_the_newest_rows_are_counted(tmp_path):
    found = columns_read(lake(tmp_path), {}, most_rows=2500)
    assert {column.rows for column in found} == {2000}


def test_an_empty_lake_has_columns_without_values(tmp_path):
    schema = RowSchema(columns=(), tasks=(Task(name="ctr", window_s=60),))
    LakeTable(tmp_path / "lake", schema).open_writer()
    found = columns_read(LakeReader(tmp_path / "lake", schema), {"missing_column:vertical": 3})
    assert [(column.name, column.rows, column.distinct, column.refused) for column in found] == [
        ("impression_id", 0, 0, 0), ("event_time_ms", 0, 0, 0), ("vertical", 0, 0, 3)
    ]  # fmt: skip
