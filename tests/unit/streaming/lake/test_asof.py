"""As-of features computed from a lake: what a run that had them from its start would have written, to the bit."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from streaming.errors import BadInput
from streaming.lake.asof import write_asof
from streaming.lake.asof_table import AsOfTable
from streaming.lake.reader import LakeReader
from streaming.schema import MERGE_TIME, AsOf
from tests.support.streams.asof_lakes import (
    PARTITIONS,
    RandomStream,
    asof_lake,
    random_stream,
    settled,
    without_asof,
    write_lake,
)


@pytest.fixture(autouse=True)
def keeps_its_power(monkeypatch):
    monkeypatch.setattr("streaming.store.files.os.fsync", lambda _: None)


def values(rows: pa.Table, asof: AsOf) -> list[dict]:
    return rows.select([column.name for column in asof.columns]).to_pylist()


@pytest.mark.parametrize("seed", range(25))
def test_a_table_computed_later_is_equal_to_the_bit_to_what_the_run_would_have_logged(seed: int, tmp_path: Path):
    random = Random(seed)
    stream = random_stream(random, random.choice([30, 400]))
    asof = stream.schema.asof
    lake, rows = asof_lake(tmp_path / "lake", stream, random)
    described = write_asof(lake, asof)
    computed = AsOfTable(tmp_path).rows(np.arange(rows.num_rows), [column.name for column in asof.columns])
    assert values(computed, asof) == values(rows, asof)
    assert described.settled_ms is None
    assert described.unknown == 0

    reader = LakeReader(lake.path, stream.schema, chunk_rows=random.choice([7, 100]))
    names = [MERGE_TIME, *reversed([column.name for column in asof.columns])]
    after, parts = -1, []
    while after < reader.last_lake_seq:
        read = reader.read(after, limit_rows=random.randint(1, 90), columns=names)
        after = read.complete_upto
        parts.append(read.table)
    assert pa.concat_tables(parts).to_pylist() == rows.select(names).to_pylist()


@pytest.mark.parametrize("seed", range(12))
def test_of_a_stream_that_goes_on_rows_have_values_once_every_group_has_settled(seed: int, tmp_path: Path):
    random = Random(seed)
    stream = random_stream(random, 300)
    lake, rows = asof_lake(tmp_path / "lake", stream, random, ends=False)
    described = write_asof(lake, stream.schema.asof)
    settled_ms = described.settled_ms
    assert settled_ms is not None
    complete = np.flatnonzero(rows[MERGE_TIME].to_numpy() < settled_ms)
    assert len(complete) > 50
    names = [column.name for column in stream.schema.asof.columns]
    computed = AsOfTable(tmp_path).rows(complete, names)
    assert computed.select(names).to_pylist() == rows.take(pa.array(complete)).select(names).to_pylist()
    with pytest.raises(BadInput, match=f"{rows.num_rows - 1} has no values"):
        AsOfTable(tmp_path).rows(np.array([rows.num_rows - 1]), names)


def flipped(stream: RandomStream, after_ms: int, random: Random) -> RandomStream:
    """The stream with other feedback after a time: what came did not, what did not came."""
    ids = sorted({event.id for partition in PARTITIONS[:2] for event in stream.rows[partition]})
    before = [event for event in stream.rows[PARTITIONS[2]] if event.time_ms <= after_ms]
    came = {(event.id, event.task) for event in stream.rows[PARTITIONS[2]]}
    shown = {event.id: event.time_ms for partition in PARTITIONS[:2] for event in stream.rows[partition]}
    like = before[0]
    new = [
        like._replace(id=each, task=task.name, time_ms=max(after_ms + 1, shown[each] + random.randint(0, 30)))
        for each in ids
        for task in stream.schema.tasks
        if (each, task.name) not in came
    ]
    rows = dict(stream.rows)
    rows[PARTITIONS[2]] = [*before, *sorted(new, key=lambda event: event.time_ms)]
    return stream._replace(rows=rows)


@pytest.mark.parametrize("seed", range(8))
def test_labels_flipped_after_a_time_change_nothing_of_rows_shown_before_the_next_tick(seed: int, tmp_path: Path):
    random = Random(seed)
    stream = random_stream(random, 400)
    asof = stream.schema.asof
    times = sorted(event.time_ms for event in stream.rows[PARTITIONS[0]])
    after_ms = times[len(times) // 2]
    streams = [stream, flipped(stream, after_ms, random)]

    def by_row(rows: pa.Table) -> dict[tuple, tuple]:
        place = rows.select(["settlement", "source_partition", "source_offset", MERGE_TIME]).to_pylist()
        pairs = zip(place, values(rows, asof), strict=True)
        return {tuple(at.values()): tuple(map(str, row.values())) for at, row in pairs}

    live = [settled(each, random) for each in streams]
    later = []
    for number, (each, (rows, counts)) in enumerate(zip(streams, live, strict=True)):
        path = tmp_path / str(number) / "lake"
        write_lake(path, each.schema, rows, counts, random)
        lake = LakeReader(path, without_asof(each.schema))
        write_asof(lake, asof)
        later.append(LakeReader(path, each.schema).read(columns=rows.schema.names).table)
    for first, second in ([by_row(rows) for rows, _ in live], [by_row(rows) for rows in later]):
        before = [row for row in first if row[-1] // asof.tick_ms * asof.tick_ms <= after_ms]
        assert len(before) > 50
        assert all(first[row] == second.get(row, first[row]) for row in before)
        assert any(first[row] != second.get(row) for row in first)
