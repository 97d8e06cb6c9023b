"""Rows of a topic of served predictions. No group is joined and nothing is committed: others do not notice."""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

import pyarrow as pa

from pipelines.data.profile.messages import messages_at, newest, offsets_of
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import require_topics
from streaming.messages.ipc import read_ipc

PATIENCE_S = 60.0
"""A topic is read for no longer."""
MODEL, VERSION, PREDICTION = "served_model", "served_version", "prediction_"


class ServedLogRows(NamedTuple):
    """Logged rows; `by_model`: served rows, oldest message first in each partition. `unreadable`: messages, by why."""

    by_model: dict[str, pa.Table]
    unreadable: Counter[str]

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.by_model.values())


def read_log(kafka: KafkaSettings, topic: str, most: int) -> ServedLogRows:
    """The newest messages of a topic, about `most` rows. Raises BadInput where the topic does not exist, BrokerAway
    where no broker answers."""
    offsets = offsets_of(kafka, topic, require_topics(kafka, [topic])[topic])
    tables: dict[str, list[pa.Table]] = {}
    unreadable: Counter[str] = Counter()
    recent = newest(offsets, max(1, most // len(offsets)))
    for messages in messages_at(kafka, recent, time.monotonic() + PATIENCE_S):
        for message in messages:
            try:
                rows = _rows(message.value)
                tables.setdefault(rows[MODEL][0].as_py(), []).append(rows)
            except ValueError as error:
                unreadable[str(error)] += 1
    return ServedLogRows({model: _together(parts, most) for model, parts in sorted(tables.items())}, unreadable)


def _rows(value: bytes) -> pa.Table:
    table = read_ipc(value)
    if missing := [name for name in (MODEL, VERSION, "impression_id") if name not in table.schema.names]:
        raise ValueError(f"it is no batch of `exfm serve --log-topic`: it has no {' and no '.join(missing)}")
    if not table.num_rows:
        raise ValueError("it holds no rows")
    return table


def _together(parts: list[pa.Table], most: int) -> pa.Table:
    """The newest of them; a column that one request had and another had not is null there."""
    table = pa.concat_tables(parts, promote_options="default")
    return table.slice(max(0, table.num_rows - most))
