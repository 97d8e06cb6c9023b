"""A small mirror between two brokers, with what real ones do: it lags, gives other offsets, repeats, cuts anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka import KafkaProducer

from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics
from tests.support.pipelines.topics import messages_of
from tests.support.places import NUMBERS


class Mirror:
    """Copies topics of one broker to another, message by message: key, value, headers, timestamp. Each call goes on
    where the last one ended.

    skip           so many first messages of a partition are not copied: they were gone when the mirror began
    repeat_every   after so many messages of a partition the last `repeats` are copied once more
    prefix         of the topics' names at the target
    markers        copies in transactions of so many messages, whose markers take offsets
    partition_of   where a message goes, all in order of time; default: where it was
    """

    def __init__(
        self,
        source: str,
        target: str,
        topics: Mapping[str, int],
        *,
        prefix: str = "",
        skip: int = 0,
        repeat_every: int | None = None,
        repeats: int = 0,
        markers: int | None = None,
        partition_of: Callable[[Any], int] | None = None,
    ) -> None:
        self._source, self._target, self._topics = source, target, topics
        self._prefix = prefix
        self._skip, self._repeat_every, self._repeats = skip, repeat_every, repeats
        self._markers, self._partition_of = markers, partition_of
        self._copied: dict[tuple[str, int], int] = defaultdict(int)
        ensure_topics(KafkaSettings(bootstrap_servers=target), {prefix + name: n for name, n in topics.items()})

    def copy(self, topic: str, upto: int | None = None) -> int:
        """Copy a topic up to the `upto`th message of each partition, or all of it; returns the number of messages
        sent."""
        sent = 0
        transactional = {} if self._markers is None else {"transactional_id": f"mirror-{next(NUMBERS)}"}
        producer = KafkaProducer(bootstrap_servers=self._target, acks="all", linger_ms=20, **transactional)
        if transactional:
            producer.init_transactions()
        messages = list(self._due(topic, upto))
        if self._partition_of is not None:
            messages.sort(key=lambda message: message.timestamp)
        for at in range(0, len(messages), self._markers or len(messages) or 1):
            batch = messages[at : at + (self._markers or len(messages))]
            if transactional:
                producer.begin_transaction()
            for message in batch:
                producer.send(
                    self._prefix + topic,
                    message.value,
                    message.key,
                    headers=list(message.headers),
                    partition=self._partition_of(message) if self._partition_of else message.partition,
                    timestamp_ms=message.timestamp,
                )
                sent += 1
            producer.flush(30)
            if transactional:
                producer.commit_transaction()
        producer.close()
        return sent

    def _due(self, topic: str, upto: int | None) -> Iterable[Any]:
        by_partition: dict[int, list[Any]] = defaultdict(list)
        for message in messages_of(self._source, topic):
            by_partition[message.partition].append(message)
        for partition, messages in by_partition.items():
            first = max(self._skip, self._copied[topic, partition])
            stop = len(messages) if upto is None else min(upto, len(messages))
            for number in range(first, stop):
                yield messages[number]
                if self._repeat_every and number % self._repeat_every == self._repeat_every - 1:
                    yield from messages[max(self._skip, number + 1 - self._repeats) : number + 1]
            self._copied[topic, partition] = max(stop, first)
