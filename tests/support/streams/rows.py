"""Small streams written by hand: rows as they come from a topic."""

from __future__ import annotations

import pyarrow as pa

from streaming.intake.merge import Merge, MergedChunk
from streaming.messages.dead_letters import letters_from_batch
from streaming.position import Partition
from streaming.schema import POSITION_FIELDS, RowSchema
from streaming.settlement.settlement import Settlement

ADS, CLICKS = Partition("ads", 0), Partition("clicks", 0)


def impressions(
    schema: RowSchema, rows: list[tuple[int, int]], partition=ADS, offset=0, recorded=None
) -> pa.RecordBatch:
    """Rows (id, event time), one message each from `offset` on."""
    return _batch(schema.impression, partition, offset, [(i, t, "") for i, t in rows], recorded)


def feedback(schema: RowSchema, rows: list[tuple[int, int, str]], partition=CLICKS, offset=0, recorded=None):
    """Rows (id, event time, task), one message each from `offset` on."""
    return _batch(schema.feedback, partition, offset, rows, recorded)


def _batch(received: pa.Schema, partition: Partition, offset: int, rows, recorded) -> pa.RecordBatch:
    arrow = pa.schema([*received, *POSITION_FIELDS, pa.field("record_time_ms", pa.int64())])
    plain = [
        {
            **{"impression_id": i, "event_time_ms": time, "task": task, "vertical": "v", "price": i, "said": ""},
            **dict(zip([f.name for f in POSITION_FIELDS], (*partition, offset + n, 0), strict=True)),
            "record_time_ms": time if recorded is None else recorded[n],
        }
        for n, (i, time, task) in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist([{name: row[name] for name in arrow.names} for row in plain], schema=arrow)


def merged(schema: RowSchema, ads: list[tuple[int, int]], clicks: list[tuple[int, int, str]]) -> MergedChunk:
    """Both streams to their end, as one chunk."""
    merge = Merge(schema, {ADS: "impression", CLICKS: "feedback"})
    merge.push(ADS, impressions(schema, ads))
    merge.push(CLICKS, feedback(schema, clicks))
    merge.mark_ended(ADS)
    merge.mark_ended(CLICKS)
    chunk = merge.pop()
    assert chunk is not None
    return chunk


def settle(settlement: Settlement, ads: list[tuple[int, int]], clicks: list[tuple[int, int, str]] = ()):
    """Everything settled by both streams played to their end: (rows, late rows, dead letters)."""
    steps = [settlement.step(merged(settlement.schema, list(ads), list(clicks))), settlement.finish()]
    rows = [row for step in steps for row in step.batch.to_pylist()]
    late = [row for step in steps for row in step.late.to_pylist()]
    return rows, late, [letter for step in steps for letter in letters_from_batch(step.dead)]
