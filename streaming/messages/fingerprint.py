"""Fingerprints of messages: by them the last ones read of a partition are found again in another topic.

An offset names a message in one topic of one cluster. A mirror gives its copy another offset, and keeps key, value and
mostly the timestamp.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from streaming.messages.message import RawMessage

TRAIL = 32
"""Fingerprints that are kept of a partition, of the last messages read."""


class Fingerprint(NamedTuple):
    """Place, record timestamp and digest of a message."""

    offset: int
    timestamp_ms: int
    digest: int


def digest_of(message: RawMessage) -> int:
    """Digest of key and value: the CRC-32C of both, below the length of the value.

    >>> digest_of(RawMessage("ads", 0, 7, 10, b"k", b"row")) == digest_of(RawMessage("ads", 3, 1, 99, b"k", b"row"))
    True
    """
    return len(message.value) << 32 | crc32c(message.value, crc32c(message.key or b""))
