"""Partition of a topic that an id belongs to, as its producers decide it."""

from __future__ import annotations

from typing import Literal

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.hashing import hash64

PartitionerName = Literal["exfm", "kafka"]


class Partitioner:
    """Partition of ids among `partitions`.

    exfm   `hash64` of the id, as `exfm ingest` and a run's own source write
    kafka  murmur2 of the record's key, the id as text, as Kafka's Java client and kafka-python write

    >>> Partitioner("exfm", 4)(pa.array([7, 8, 9])).tolist()
    [0, 0, 3]
    >>> Partitioner("kafka", 4)(pa.array(["7", "8", "impression-9"])).tolist()
    [3, 3, 0]
    """

    def __init__(self, name: PartitionerName, partitions: int) -> None:
        self.name, self.partitions = name, partitions

    def __call__(self, ids: pa.Array) -> np.ndarray:
        """Partition of each id, (N,) int64. Raises ValueError for nulls."""
        if self.name == "exfm":
            return partition_of(ids, self.partitions)
        text = pc.cast(ids, pa.large_binary()) if not pa.types.is_integer(ids.type) else pc.cast(ids, pa.large_string())
        offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]
        data = np.frombuffer(text.buffers()[2] or b"", np.uint8)
        return _murmur2(data, offsets).astype(np.int64) % self.partitions

    @property
    def words(self) -> str:
        return "by `hash64` of its id" if self.name == "exfm" else "by Kafka's default partitioner"


def partition_of(ids: pa.Array, partitions: int) -> np.ndarray:
    """The partition of each id, by `hash64`, (N,) int64.

    >>> partition_of(pa.array([7, 8, 9]), 1).tolist()
    [0, 0, 0]
    """
    return (hash64(ids) % np.uint64(partitions)).astype(np.int64)


@numba.njit(nogil=True)
def _murmur2(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Kafka's murmur2 of each text, its sign bit cleared, (N,) uint32 (org.apache.kafka.common.utils.Utils)."""
    seed, m = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)
    out = np.empty(len(offsets) - 1, np.uint32)
    for i in range(len(out)):
        begin, length = offsets[i], offsets[i + 1] - offsets[i]
        h = np.uint32(seed ^ np.uint32(length))
        words = length // 4
        for w in range(words):
            at = begin + 4 * w
            k = np.uint32(
                np.uint32(data[at])
                | np.uint32(np.uint32(data[at + 1]) << np.uint32(8))
                | np.uint32(np.uint32(data[at + 2]) << np.uint32(16))
                | np.uint32(np.uint32(data[at + 3]) << np.uint32(24))
            )
            k = np.uint32(k * m)
            k = np.uint32(k ^ (k >> np.uint32(24)))
            k = np.uint32(k * m)
            h = np.uint32(np.uint32(h * m) ^ k)
        rest, at = length - 4 * words, begin + 4 * words
        if rest >= 3:
            h = np.uint32(h ^ np.uint32(np.uint32(data[at + 2]) << np.uint32(16)))
        if rest >= 2:
            h = np.uint32(h ^ np.uint32(np.uint32(data[at + 1]) << np.uint32(8)))
        if rest >= 1:
            h = np.uint32(np.uint32(h ^ np.uint32(data[at])) * m)
        h = np.uint32(h ^ (h >> np.uint32(13)))
        h = np.uint32(h * m)
        h = np.uint32(h ^ (h >> np.uint32(15)))
        out[i] = h & np.uint32(0x7FFFFFFF)
    return out
