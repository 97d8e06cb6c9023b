"""A played stream settled in this process: the rows of a pipeline's lake, without broker or lake.

The same merge and settlement as behind the topics; no rows are scored, so teacher logits and what the lake adds are
absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from streaming.intake.merge import Merge
from streaming.messages.dead_letters import Kind
from streaming.messages.limits import Limits
from streaming.messages.validation import RowRules, without_rows
from streaming.partitioner import partition_of
from streaming.position import Partition
from streaming.schema import POSITION_FIELDS, RowSchema
from streaming.settlement.admission import Verticals
from streaming.settlement.config import SettlementConfig
from streaming.settlement.settlement import Settlement
from streaming.sources.chunk import Chunk

_TOPICS: dict[Kind, str] = {"impression": "impressions", "feedback": "feedback"}


def settled_rows(
    chunks: Iterable[Chunk],
    schema: RowSchema,
    settlement: SettlementConfig,
    *,
    partitions: int = 1,
    limits: Limits = Limits(),
    verticals: Verticals | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches in `RowSchema.settled`, in the order in which they settle; rows that break a rule are left out.

    `partitions` of each topic: they decide the order of rows that happened in the same millisecond. `limits`: what rows
    may hold besides; `verticals`: those that are let in.

    >>> from streaming.sources.synthetic.stream import GeneratedStream, GeneratorConfig
    >>> config = GeneratorConfig(impressions=1000, users=500, ads=50, malformed_rate=0.0)
    >>> stream = GeneratedStream(config, {"ctr": 3600.0})
    >>> sum(batch.num_rows for batch in settled_rows(stream.chunks(), stream.schema, SettlementConfig()))
    1000
    """
    feeds = {Partition(topic, p): kind for kind, topic in _TOPICS.items() for p in range(partitions)}
    merge = Merge(schema, feeds)
    rules = {kind: RowRules(kind, schema, limits=limits) for kind in _TOPICS}
    settle = Settlement(schema, settlement, verticals=verticals)
    for number, chunk in enumerate(chunks):
        arrived: dict[Kind, pa.RecordBatch] = {"impression": chunk.impressions, "feedback": chunk.feedback}
        for kind, rows in arrived.items():
            good = without_rows(rows, rules[kind].check(rows))
            # A function of the id, as a producer's partitioner is: an impression and its feedback go the same way.
            owner = partition_of(good["impression_id"], partitions)
            for p in range(partitions):
                mine = good if partitions == 1 else good.filter(pa.array(owner == p))
                merge.push(at := Partition(_TOPICS[kind], p), _placed(mine, at, number))
        if (merged := merge.pop()) is not None:
            yield settle.step(merged).batch
    for partition in feeds:
        merge.mark_ended(partition)
    if (merged := merge.pop()) is not None:
        yield settle.step(merged).batch
    yield settle.finish().batch


def _placed(rows: pa.RecordBatch, partition: Partition, number: int) -> pa.RecordBatch:
    """Place rows as if each chunk had been a message."""
    count = rows.num_rows
    place = [
        pa.array([partition.topic] * count, pa.string()),
        pa.array(np.full(count, partition.partition, np.int32)),
        pa.array(np.full(count, number, np.int64)),
        pa.array(np.arange(count, dtype=np.int32)),
    ]
    schema = pa.schema([*rows.schema, *POSITION_FIELDS, pa.field("record_time_ms", pa.int64())])
    return pa.RecordBatch.from_arrays([*rows.columns, *place, rows["event_time_ms"]], schema=schema)
