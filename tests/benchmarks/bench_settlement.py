"""Merged and settled rows per second of processor time, and bytes held per pending impression. Run by hand:

python -m tests.benchmarks.bench_settlement --rows 2000000 --message-rows 2048
python -m tests.benchmarks.bench_settlement --rows 400000 --sparse

`--sparse` plays history: months of event time in one chunk, settled in blocks as the augmentation does, beside the same
rows in chunks of one deduplication horizon.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from streaming.intake.merge import Merge, MergedChunk
from streaming.position import Partition
from streaming.schema import POSITION_FIELDS, Column, RowSchema, Task
from streaming.settlement.config import SettlementConfig
from streaming.settlement.settlement import Settlement


def batches(schema: RowSchema, topic: str, partition: int, columns: dict, message_rows: int) -> list[pa.RecordBatch]:
    rows = len(columns["event_time_ms"])
    at = np.arange(rows)
    columns = {
        **columns,
        "source_topic": pa.array([topic] * rows),
        "source_partition": pa.array(np.full(rows, partition, np.int32)),
        "source_offset": pa.array(at // message_rows),
        "source_row": pa.array((at % message_rows).astype(np.int32)),
        "record_time_ms": columns["event_time_ms"],
    }
    received = schema.impression if "vertical" in columns else schema.feedback
    arrow = pa.schema([*received, *POSITION_FIELDS, pa.field("record_time_ms", pa.int64())])
    batch = pa.RecordBatch.from_arrays([columns[name] for name in arrow.names], schema=arrow)
    return [batch.slice(start, message_rows) for start in range(0, rows, message_rows)]


def stream(schema: RowSchema, rows: int, partitions: int, rows_per_s: float, message_rows: int) -> dict:
    """Impressions at `rows_per_s` of event time; a tenth is clicked within seconds, a tenth of those converts."""
    random = np.random.default_rng(0)
    event = np.sort(random.integers(0, int(rows * 1000 / rows_per_s), rows))
    ids = random.permutation(rows) * 7919
    clicked = np.flatnonzero(random.random(rows) < 0.1)
    bought = clicked[random.random(len(clicked)) < 0.1]
    feedback_ids = np.concatenate([ids[clicked], ids[bought]])
    feedback_time = np.concatenate(
        [
            event[clicked] + random.integers(0, 20_000, len(clicked)),
            event[bought] + random.integers(0, 3_000_000, len(bought)),
        ]
    )
    tasks = np.repeat(["ctr", "cvr"], [len(clicked), len(bought)])
    in_time = np.argsort(feedback_time, kind="stable")
    feedback_ids, feedback_time, tasks = feedback_ids[in_time], feedback_time[in_time], tasks[in_time]

    def identity(values):
        return pa.array(values) if schema.impression_id == "int64" else pa.array(values.astype(str).tolist())

    feeds = {}
    verticals = np.array(["feed", "reels", "stories"])
    for p in range(partitions):
        at = np.flatnonzero(ids % partitions == p)
        columns = {
            "impression_id": identity(ids[at]),
            "event_time_ms": pa.array(event[at]),
            "vertical": pa.array(verticals[ids[at] % 3].tolist()),
        }
        for column in schema.columns:
            values = random.random(len(at)) * 1e6
            columns[column.name] = pa.array(values.astype(np.float32 if column.type == "float32" else np.int64))
        feeds[Partition("impressions", p)] = batches(schema, "impressions", p, columns, message_rows)
        at = np.flatnonzero(feedback_ids % partitions == p)
        columns = {
            "impression_id": identity(feedback_ids[at]),
            "event_time_ms": pa.array(feedback_time[at]),
            "task": pa.array(tasks[at].tolist()),
        }
        feeds[Partition("feedback", p)] = batches(schema, "feedback", p, columns, message_rows)
    return feeds


def settle_in_blocks(schema: RowSchema, chunks: list[MergedChunk], block_rows: int) -> tuple[float, int]:
    """Seconds of processor time, and rows emitted, when a block's room is all that is asked for at a time."""
    settlement, have, emitted = Settlement(schema), 0, 0
    calls = iter([*chunks, None])
    started, more = time.process_time(), False
    while True:
        room = block_rows - have
        if more:
            settled = settlement.release(room)
        elif (chunk := next(calls, False)) is False:
            return time.process_time() - started, emitted
        else:
            settled = settlement.finish(room) if chunk is None else settlement.step(chunk, room)
        more = settled.more
        emitted += settled.batch.num_rows
        have = (have + settled.batch.num_rows) % block_rows


def horizons(chunk: MergedChunk, horizon_ms: int) -> Iterator[MergedChunk]:
    """The same rows, no chunk of which spans more than the horizon."""
    keys = [part["key_time_ms"].to_numpy() for part in (chunk.impressions, chunk.feedback)]
    at = [0, 0]
    while any(place < len(key) for place, key in zip(at, keys, strict=True)):
        until = min(int(key[place]) for place, key in zip(at, keys, strict=True) if place < len(key)) + horizon_ms
        stops = [int(np.searchsorted(key, until, side="right")) for key in keys]
        parts = [
            part.slice(place, stop - place)
            for part, place, stop in zip((chunk.impressions, chunk.feedback), at, stops, strict=True)
        ]
        yield MergedChunk(*parts, watermark_ms=max(int(k[s - 1]) for k, s in zip(keys, stops, strict=True) if s))
        at = stops


def sparse(schema: RowSchema, rows: int, partitions: int, message_rows: int) -> None:
    feeds = stream(schema, rows, partitions, 0.005, message_rows)
    merge = Merge(schema, {p: "feedback" if p.topic == "feedback" else "impression" for p in feeds})
    for partition, messages in feeds.items():
        for message in messages:
            merge.push(partition, message)
        merge.mark_ended(partition)
    whole = merge.pop()
    assert whole is not None
    cut = list(horizons(whole, SettlementConfig().horizon_ms(schema)))
    for name, chunks in (("one chunk", [whole]), ("a chunk per horizon", cut), ("one chunk, again", [whole])):
        seconds, emitted = settle_in_blocks(schema, chunks, block_rows=8192)
        print(f"{name}: {len(chunks)} chunks, {emitted:,} emitted, {len(whole) / seconds:,.0f} rows/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rows-per-s", type=int, default=500, help="rows per second of event time")
    parser.add_argument("--message-rows", type=int, default=2048)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--id", choices=["int64", "string"], default="int64")
    parser.add_argument("--sparse", action="store_true", help="months of event time in one chunk")
    args = parser.parse_args()

    columns = [Column(name=f"c{i}") for i in range(7)] + [Column(name=f"d{i}", type="float32") for i in range(3)]
    tasks = [Task(name="ctr", window_s=60), Task(name="cvr", window_s=3600, given="ctr")]
    schema = RowSchema(impression_id=args.id, columns=columns, tasks=tasks)
    if args.sparse:
        sparse(schema, args.rows, args.partitions, args.message_rows)
        return
    feeds = stream(schema, args.rows, args.partitions, args.rows_per_s, args.message_rows)
    merge = Merge(schema, {p: "feedback" if p.topic == "feedback" else "impression" for p in feeds})
    settlement = Settlement(schema, SettlementConfig(lateness_s=30))

    left = {partition: iter(messages) for partition, messages in feeds.items()}
    merging = settling = 0.0
    largest, chunks, merged, emitted, bytes_each = 0, 0, 0, 0, 0.0
    while left:
        for partition in [p for p in left if merge.wants(p)]:
            message = next(left[partition], None)
            started = time.process_time()
            if message is None:
                merge.mark_ended(partition)
                del left[partition]
            else:
                merge.push(partition, message)
            merging += time.process_time() - started
        started = time.process_time()
        chunk = merge.pop()
        merging += time.process_time() - started
        if chunk is None:
            continue
        started = time.process_time()
        emitted += settlement.step(chunk).batch.num_rows
        settling += time.process_time() - started
        chunks, merged = chunks + 1, merged + len(chunk)
        pending = settlement.pending("cvr")
        if pending > largest:
            largest, bytes_each = pending, settlement.state_bytes / pending
    started = time.process_time()
    emitted += settlement.finish().batch.num_rows
    settling += time.process_time() - started
    row_bytes = feeds[Partition("impressions", 0)][0].nbytes / args.message_rows - 8
    print(f"{merged:,} rows merged in {chunks} chunks, {emitted:,} emitted")
    print(f"merge {merged / merging:,.0f} rows/s, settlement {merged / settling:,.0f} rows/s")
    print(f"both {merged / (merging + settling):,.0f} rows/s")
    print(f"{largest:,} pending, {bytes_each:.0f} bytes each, of which the row itself {row_bytes:.0f}")
    print({k: v for k, v in settlement.counters().items() if v})


if __name__ == "__main__":
    main()
