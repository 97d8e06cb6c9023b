"""As-of features computed from a lake: what a run that had them from its start would have written, to the bit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streaming.errors import BadInput
from streaming.lake.asof import write_asof
from streaming.lake.asof_table import AsOfTable
from streaming.lake.delta.files import NoTable
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
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


def small_lake(tmp_path: Path, seed: int = 3) -> tuple[LakeReader, RandomStream, pa.Table]:
    random = Random(seed)
    stream = random_stream(random, 400)
    lake, rows = asof_lake(tmp_path / "lake", stream, random)
    return LakeReader(lake.path, lake.schema, chunk_rows=20), stream, rows


KILLED = """
import os, signal, sys
from pathlib import Path
from streaming.lake.asof import write_asof
from streaming.lake.reader import LakeReader
from streaming.schema import AsOf, RowSchema

path, schema, asof, rows = Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])
lake = LakeReader(path, RowSchema.model_validate_json(schema), chunk_rows=20)
write_asof(lake, AsOf.model_validate_json(asof), lambda done: done < rows or os.kill(os.getpid(), signal.SIGKILL))
"""


def test_killed_it_leaves_no_half_of_a_table_and_given_again_makes_the_whole(tmp_path: Path):
    lake, stream, rows = small_lake(tmp_path)
    asof, one = stream.schema.asof, AsOf(features=stream.schema.asof.features[:1])

    def kill(of: AsOf, at_row: int) -> None:
        command = [sys.executable, "-c", KILLED, str(lake.path), lake.schema.model_dump_json(), of.model_dump_json()]
        assert subprocess.run([*command, str(at_row)], check=False).returncode == -signal.SIGKILL

    kill(one, 100)
    with pytest.raises(NoTable):
        AsOfTable(tmp_path)
    write_asof(lake, one)
    kill(asof, rows.num_rows)
    assert AsOfTable(tmp_path).asof == one
    write_asof(lake, asof)
    computed = LakeReader(lake.path, stream.schema).read(columns=rows.schema.names).table
    assert values(computed, asof) == values(rows, asof)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asof_features", "asof_features.lock", "lake"]


def test_given_again_it_leaves_what_is_complete_and_computes_what_has_come(tmp_path: Path):
    lake, stream, _ = small_lake(tmp_path)
    write_asof(lake, stream.schema.asof)
    before, done = AsOfTable(tmp_path).id, list[int]()
    write_asof(lake, stream.schema.asof, done.append)
    assert not done
    assert AsOfTable(tmp_path).id == before
    write_asof(lake, stream.schema.asof.model_copy(update={"tick_s": 77.0}), done.append)
    assert done[-1] == lake.rows
    assert AsOfTable(tmp_path).id != before


def test_impressions_without_a_label_that_became_known_are_counted(tmp_path: Path):
    random = Random(1)
    stream = random_stream(random, 100)
    events = stream.rows[PARTITIONS[2]]
    shown = {event.id: event.time_ms for event in stream.rows[PARTITIONS[0]][:7]}
    first, tasks = events[0], stream.schema.tasks
    unknown = [
        first._replace(id=each, task=f"unknown:{task.name}", time_ms=clock)
        for each, clock in sorted(shown.items(), key=lambda item: item[1])
        for task in tasks
    ]
    known = [event for event in events if event.id not in shown]
    rows, counts = settled(stream._replace(rows=stream.rows | {PARTITIONS[2]: [*unknown, *known]}), random)
    write_lake(tmp_path / "lake", stream.schema, rows, counts, random)
    described = write_asof(LakeReader(tmp_path / "lake", without_asof(stream.schema)), stream.schema.asof)
    left_out = {group.name: counts["not_applicable"][group.name] for group in stream.schema.groups}
    assert 0 < described.unknown <= min(left_out.values())


def test_event_time_that_was_set_back_is_named(tmp_path: Path):
    _, stream, rows = small_lake(tmp_path / "first")
    later = rows.set_column(
        rows.schema.get_field_index(MERGE_TIME), MERGE_TIME, pc.add(rows[MERGE_TIME], 5000).cast(pa.int64())
    )
    both = pa.concat_tables([later.cast(rows.schema), rows])
    write_lake(tmp_path / "second" / "lake", stream.schema, both, {}, Random(1))
    with pytest.raises(BadInput, match=f"set back before row lake_seq {rows.num_rows}"):
        write_asof(LakeReader(tmp_path / "second" / "lake", without_asof(stream.schema)), stream.schema.asof)


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ({"name": "user", "by": "site", "count": "shown"}, "a name that is taken"),
        ({"name": "x", "by": "sight", "count": "shown"}, "which is no column"),
        ({"name": "x", "by": "site", "rate": "sale"}, "it can be of: ctr"),
    ],
)
def test_features_that_do_not_fit_the_rows_are_refused_before_anything_is_written(feature, words, tmp_path: Path):
    lake, _, _ = small_lake(tmp_path)
    with pytest.raises(BadInput, match=words):
        write_asof(lake, AsOf(features=[feature]))
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


def test_a_column_that_neither_lake_nor_table_has_is_named_with_the_remedy(tmp_path: Path):
    lake, stream, _ = small_lake(tmp_path)
    with pytest.raises(BadInput, match="exfm lake asof"):
        LakeReader(lake.path, stream.schema)
    write_asof(lake, AsOf(features=stream.schema.asof.features[:1]))
    with pytest.raises(BadInput, match="neither the lake"):
        LakeReader(lake.path, stream.schema)
    empty = tmp_path / "empty" / "lake"
    LakeTable(empty, lake.schema).open_writer()
    with pytest.raises(BadInput, match="has no rows yet"):
        write_asof(LakeReader(empty, lake.schema), stream.schema.asof)
