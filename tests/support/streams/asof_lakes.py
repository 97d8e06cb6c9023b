"""Random streams settled with as-of features from their start, and lakes of the same rows without them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming.intake.merge import Merge
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
from streaming.position import Partition
from streaming.schema import POSITION_FIELDS, AsOf, RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.settlement.settlement import Settlement

TASKS = [
    [{"name": "ctr", "window_s": 0.030}],
    [{"name": "ctr", "window_s": 0.030}, {"name": "cvr", "window_s": 0.090, "given": "ctr"}],
    [
        {"name": "ctr", "window_s": 0.030},
        {"name": "like", "window_s": 0.060},
        {"name": "cvr", "window_s": 0.090, "given": "ctr"},
    ],
]

FEATURES = [
    {"name": "user_rate", "by": "user", "rate": "ctr", "prior": 2},
    {"name": "site_rate", "by": ["user", "site"], "rate": "ctr", "half_life_s": 0.01},
    {"name": "seen", "by": "site", "count": "shown"},
    {"name": "clicks", "by": "site", "count": "ctr", "half_life_s": 0.02},
    {"name": "ago", "by": ["vertical", "user"], "since": "shown"},
    {"name": "click_ago", "by": ["site", "user"], "since": "ctr"},
    {"name": "above", "by": "site", "residual": "ctr", "against": "user_rate", "half_life_s": 0.05},
    {"name": "recent", "by": "user", "last": 3, "of": ["user", "ctr", "gap_s"]},
]

PARTITIONS = [Partition("ads", 0), Partition("ads", 1), Partition("events", 0)]


class Event(NamedTuple):
    """A row of a topic: an impression, or feedback of a task."""

    id: int
    time_ms: int
    task: str | None
    user: int | None
    site: str | None


class RandomStream(NamedTuple):
    """Rows of each partition, in order."""

    schema: RowSchema
    rows: dict[Partition, list[Event]]


def random_asof(random: Random, tasks: list[dict]) -> AsOf:
    further = [{"name": f"{task['name']}_site_rate", "by": "site", "rate": task["name"]} for task in tasks]
    return AsOf(
        tick_s=random.choice([0.001, 0.007, 0.05]),
        max_keys=random.choice([4, 1000]),
        expire_s=random.choice([0.03, 1000]),
        features=[*FEATURES, *further],
    )


def random_stream(random: Random, impressions: int) -> RandomStream:
    """Duplicates, ties, skewed clocks, and feedback that is late, early, repeated, or says that a label is unknown for
    the longer windows: every impression has a known label of the shortest."""
    tasks = random.choice(TASKS)
    columns = [{"name": "user", "nullable": True}, {"name": "site", "type": "string", "nullable": True}]
    schema = RowSchema(columns=columns, tasks=tasks, asof=random_asof(random, tasks))
    rows: dict[Partition, list[Event]] = {partition: [] for partition in PARTITIONS}
    clock, events = 1000, []
    for number in range(impressions):
        clock += random.choice([0, 0, 1, 1, 2, 3, 9])
        identity = number if random.random() < 0.9 else random.randrange(number + 1)
        user, site = random.choice([None, *range(6)]), random.choice([None, "", "a", "b"])
        rows[PARTITIONS[random.randrange(2)]].append(
            Event(identity, clock + random.choice([0, 0, 0, -3, 2]), None, user, site)
        )
        for name in schema.feedback_tasks:
            if random.random() < 0.4 and name not in ("unknown:ctr", "unknown:like"):
                events.append(
                    Event(identity, max(0, clock + random.choice([-5, 0, 1, 5, 20, 50, 100])), name, None, None)
                )
    rows[PARTITIONS[2]] = sorted(events, key=lambda event: event.time_ms + random.choice([0, 0, 0, 10]))
    return RandomStream(schema, rows)


def settled(stream: RandomStream, random: Random, *, ends: bool = True) -> tuple[pa.Table, dict]:
    """Rows in the order in which they settle, cut anywhere, and the counters. Unless it `ends`, of a part of it,
    with windows that are open."""
    kinds = {partition: "impression" if partition.topic == "ads" else "feedback" for partition in stream.rows}
    merge, settlement = Merge(stream.schema, kinds), Settlement(stream.schema, SettlementConfig())
    at, batches = dict.fromkeys(stream.rows, 0), [stream.schema.settled.empty_table().combine_chunks()]
    while not merge.finished:
        shares = {each: at[each] / max(1, len(rows)) for each, rows in stream.rows.items()}
        partition = random.choice(list(shares)) if ends else min(shares, key=lambda each: shares[each])
        part = stream.rows[partition][at[partition] : at[partition] + random.randint(1, 40)]
        if part:
            merge.push(partition, _batch(stream.schema, kinds[partition], partition, part, at[partition]))
        at[partition] += len(part)
        if at[partition] == len(stream.rows[partition]):
            merge.mark_ended(partition)
        if (chunk := merge.pop()) is not None:
            batches.append(pa.table(settlement.step(chunk).batch))
        if not ends and at[PARTITIONS[0]] > 0.8 * len(stream.rows[PARTITIONS[0]]):
            break
    if ends:
        batches.append(pa.table(settlement.finish().batch))
    return pa.concat_tables(batches), settlement.counters()


def _batch(schema: RowSchema, kind: str, partition: Partition, rows: list[Event], offset: int) -> pa.RecordBatch:
    received = schema.impression if kind == "impression" else schema.feedback
    arrow = pa.schema([*received, *POSITION_FIELDS, pa.field("record_time_ms", pa.int64())])
    plain = [
        {
            **{"impression_id": row.id, "event_time_ms": row.time_ms, "vertical": "v", "task": row.task},
            **{"user": row.user, "site": row.site, "record_time_ms": row.time_ms},
            **dict(zip([f.name for f in POSITION_FIELDS], (*partition, offset + n, 0), strict=True)),
        }
        for n, row in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist([{name: row[name] for name in arrow.names} for row in plain], schema=arrow)


def without_asof(schema: RowSchema) -> RowSchema:
    return RowSchema.model_validate(schema.model_dump(exclude={"asof"}))


def write_lake(path: Path, schema: RowSchema, rows: pa.Table, counts: dict, random: Random) -> None:
    """The rows, without the values of as-of features, in commits of any size."""
    schema = without_asof(schema)
    writer, first = LakeTable(path, schema).open_writer(), 0
    while first < rows.num_rows:
        block = rows.slice(first, random.randint(1, 60))
        seq = np.arange(first, first + block.num_rows)
        made = {"lake_seq": seq, "block": np.full(len(seq), first), "scored_at_ms": seq, "event_date": "2026-01-01"}
        columns = {name: block[name] for name in schema.settled.names}
        for field in schema.augmented:
            if field.name not in columns:
                value = made.get(field.name)
                filled = [value] * len(seq) if value is None or isinstance(value, str) else value
                columns[field.name] = pa.array(filled, field.type)
        table = pa.table({name: columns[name] for name in schema.augmented.names}).cast(schema.augmented)
        first += block.num_rows
        writer.commit(table, state=first, metadata={"counts": counts})


def asof_lake(path: Path, stream: RandomStream, random: Random, *, ends: bool = True) -> tuple[LakeReader, pa.Table]:
    """A lake of the stream without as-of features, read in chunks of any size; and the rows with their values."""
    rows, counts = settled(stream, random, ends=ends)
    write_lake(path, stream.schema, rows, counts, random)
    return LakeReader(path, without_asof(stream.schema), chunk_rows=random.choice([7, 50, 1000])), rows
