"""Changes inside kafka-python, and uses of what it keeps to itself: the only file that does either.

`FITS` is the version for which each was written and is tested; who raises it reads this file first. The log messages of
the client in which `client` finds lost connections and unresolved names are of that version, too.

| what                   | why                                                                                      |
|------------------------|------------------------------------------------------------------------------------------|
| snappy                 | the client wants a package of its own for it; pyarrow has the codec                      |
| unpacking of batches   | the client takes all the memory that a batch asks for                                    |
| `watch_transactions`   | the client passes over transaction markers and aborted records without a word            |
| `FetchBound`           | the client bounds a fetch by its compressed size only                                    |
| `seek`                 | a public `seek` forgets the leader epoch, by which replaced messages are noticed         |
| `offset_of`            | a public `position` looks at the leaders of all partitions, whichever it is asked for    |
| `continue_as`          | a public producer cannot go on under the id of the one before                            |
| `stop_sending`         | a public producer sends what follows a message that failed                               |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

from kafka import TopicPartition
from kafka import codec as codecs
from kafka.errors import CorruptRecordError, KafkaError
from kafka.record.default_records import DefaultRecordBatch
from kafka.structs import OffsetAndMetadata

from streaming.kafka import unpacking
from streaming.position import Partition

FITS = "3.0.12"


Skipped: TypeAlias = Callable[[Partition, int, int], None]
"""Called with a partition and the offsets [first, stop) that bring no message."""


class Unpacking:
    """Limit on the size of an unpacked batch, for every client of this process."""

    most_bytes = unpacking.LEAST_BYTES


def _unpack(batch: Any, plainly: Callable[[Any], None] = DefaultRecordBatch._maybe_uncompress) -> None:
    """Unpack a batch within the bound; in place of the client's own."""
    codec, most = batch.compression_type, Unpacking.most_bytes
    if batch._decompressed or codec not in (unpacking.GZIP, unpacking.SNAPPY, unpacking.LZ4, unpacking.ZSTD):
        plainly(batch)
        return
    batch._assert_has_codec(codec)
    try:
        plain = unpacking.unpacked(codec, memoryview(batch._buffer)[batch._pos :], most)
    except Exception as error:  # each codec has its own
        raise CorruptRecordError(f"a batch of records cannot be unpacked: {error!r}") from error
    if plain is None:
        words = f"its batch of {batch.size_in_bytes:,} bytes unpacks to more than {most:,}"
        batch._num_records = batch.last_offset_delta + 1
        plain = unpacking.stand_ins(batch._num_records, words)
    batch._buffer, batch._pos, batch._decompressed = bytearray(plain), 0, True


def install() -> None:
    """Change the client for this process: snappy, and the unpacking of batches."""
    if codecs.snappy is None:
        codecs.snappy = SimpleNamespace(compress=unpacking.snappy_compress, decompress=unpacking.snappy_decompress)
    DefaultRecordBatch._maybe_uncompress = _unpack


def watch_transactions(consumer: Any, skipped: Skipped) -> None:
    """Make `consumer` (a `KafkaConsumer`) call `skipped` for all offsets that it skips while unpacking."""
    fetcher = consumer._fetcher

    class WatchedRecords(type(fetcher).PartitionRecords):  # type: ignore[misc]
        def _unpack_records(self, partition: Any, records: Any, *deserializers: Any) -> Any:
            return super()._unpack_records(partition, _Watched(records, Partition(*partition), skipped), *deserializers)

        def _is_batch_aborted(self, batch: Any) -> bool:
            aborted: bool = super()._is_batch_aborted(batch)
            if aborted:
                skipped(Partition(*self.topic_partition), batch.base_offset, batch.next_offset)
            return aborted

    fetcher.PartitionRecords = WatchedRecords


class _Watched:
    """Record batches of one answer, handed on as they are."""

    def __init__(self, records: Any, partition: Partition, skipped: Skipped) -> None:
        self._records, self._partition, self._skipped = records, partition, skipped

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if batch is not None and batch.magic >= 2 and batch.is_control_batch:
            self._skipped(self._partition, batch.base_offset, batch.next_offset)
        return batch


class FetchBound:
    """Bounds the bytes that one `poll` of `consumer` (a `KafkaConsumer`) returns: it ends with the message that passes
    `most_bytes`.

    The client unpacks batch by batch, as messages are taken. What is left of a fetch is let go of, and read again from
    the broker: kept, it would have to be waited with (see `TopicReader`).
    """

    def __init__(self, consumer: Any, most_bytes: int) -> None:
        self._left = self._most_bytes = most_bytes
        fetcher, bound = consumer._fetcher, self

        class BoundRecords(fetcher.PartitionRecords):  # type: ignore[name-defined]
            record_iterator: Any

            def take(self, n: int | None = None) -> Any:
                whole = self.record_iterator
                if whole is not None:
                    self.record_iterator = bound._within(whole)
                taken = super().take(n)
                if self.record_iterator is not None:  # by its end it is drained
                    self.record_iterator = whole
                    if bound._left <= 0:
                        self.drain()
                return taken

        fetcher.PartitionRecords = BoundRecords

    def begin(self) -> None:
        """Reset the bound; call before each `poll`."""
        self._left = self._most_bytes

    def _within(self, records: Iterator[Any]) -> Iterator[Any]:
        while self._left > 0 and (record := next(records, None)) is not None:
            self._left -= max(0, record.serialized_key_size) + max(0, record.serialized_value_size)
            yield record


def seek(consumer: Any, partition: TopicPartition, offset: int, epoch: int) -> None:
    """Read on from `offset`, whose message before was read under the leader `epoch`."""
    consumer._subscription.seek(partition, OffsetAndMetadata(offset, "", epoch))


def offset_of(consumer: Any, partition: TopicPartition) -> int | None:
    """Offset of the next message of a partition, as far as the client knows; None while it asks whether messages
    before it were replaced. That they were, only its own call and the next poll say."""
    state = consumer._subscription.assignment[partition]
    return None if state.awaiting_validation or state.position is None else state.position.offset


def continue_as(producer: Any, topic: str, identity: int, numbers: Sequence[int], wait_s: float) -> Exception | None:
    """Give an idempotent producer that has sent nothing the id `identity`, and the number of the next message in each
    partition. Returns what kept it from getting an id of its own within `wait_s`, which it asks for first; else None.
    """
    manager, deadline = producer._transaction_manager, time.monotonic() + wait_s
    while not manager.has_producer_id():
        if manager.has_error() or time.monotonic() > deadline:
            failure: Exception = manager.last_error or KafkaError("no producer id came")
            return failure
        time.sleep(0.002)
    manager.set_producer_id_and_epoch(type(manager.producer_id_and_epoch)(identity, 0))
    for partition, number in enumerate(numbers):
        manager.set_sequence_number(TopicPartition(topic, partition), number % (1 << 31))
    return None


def stop_sending(producer: Any, wait_s: float = 0.0) -> None:
    """Stop a producer at once, without sending what waits; wait so long for its thread to end."""
    producer._sender.force_close()
    if wait_s:
        producer._sender.join(wait_s)
