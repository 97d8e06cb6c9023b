"""A topic of what was served, as rows. No group is joined and nothing is committed: others do not notice."""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

import pyarrow as pa

from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import beginning_offsets, end_offsets, require_topics
from streaming.messages.ipc import read_ipc
from streaming.messages.source import EndOfStream
from streaming.position import Partition, SourcePosition

PATIENCE_S = 60.0
"""A topic is read for no longer."""
MODEL, VERSION, PREDICTION = "served_model", "served_version", "prediction_"


class Logged(NamedTuple):
    """`by_model`: rows as they were served, oldest message first in each partition. `unreadable`: messages, by why.
    `whole`: whether that is all that the topic holds."""

    by_model: dict[str, pa.Table]
    unreadable: Counter[str]
    whole: bool

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.by_model.values())


def read_log(kafka: KafkaSettings, topic: str, most: int) -> Logged:
    """The newest messages of a topic, about `most` rows. Raises BadInput where the topic does not exist, BrokerAway
    where no broker answers."""
    partitions = [Partition(topic, number) for number in range(require_topics(kafka, [topic])[topic])]
    begins, ends = beginning_offsets(kafka, partitions), end_offsets(kafka, partitions)
    first = {p: max(begins[p], ends[p] - max(1, most // len(partitions))) for p in partitions}
    tables: dict[str, list[pa.Table]] = {}
    unreadable: Counter[str] = Counter()
    deadline, whole = time.monotonic() + PATIENCE_S, first == begins
    with TopicReader(kafka, partitions, ends=ends, markers_end=False) as reader:
        reader.open({p: SourcePosition(at) for p, at in first.items()})
        while time.monotonic() < deadline:
            try:
                messages = reader.next_batch(0.5, max_messages=2000)
            except EndOfStream:
                break
            for message in messages or ():
                try:
                    model, rows = _read(message.value)
                    tables.setdefault(model, []).append(rows)
                except ValueError as error:
                    unreadable[str(error)] += 1
        else:
            whole = False
    found = {model: _together(parts, most) for model, parts in sorted(tables.items())}
    return Logged(found, unreadable, whole)


def _read(value: bytes) -> tuple[str, pa.Table]:
    table = read_ipc(value)
    if missing := [name for name in (MODEL, VERSION, "impression_id") if name not in table.schema.names]:
        raise ValueError(f"it is no batch of `exfm serve --log-topic`: it has no `{missing[0]}`")
    if not table.num_rows:
        raise ValueError("it holds no row")
    return table[MODEL][0].as_py(), table


def _together(parts: list[pa.Table], most: int) -> pa.Table:
    """The newest of them; a column that one request had and another had not is null there."""
    table = pa.concat_tables(parts, promote_options="default")
    return table.slice(max(0, table.num_rows - most))
