"""A lake whose rows grow old one by one, and housework that a test does in it by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from streaming.lake.delta.files import TableFiles
from streaming.lake.housekeeping import Housework, compact_table
from streaming.lake.settings import LakeSettings
from streaming.lake.writer import LakeTable, LakeWriter
from tests.support.streams import lake_rows

NOW_S = 1_000_000.0


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
