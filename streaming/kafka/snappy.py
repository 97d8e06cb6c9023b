"""Snappy by pyarrow, for the Kafka client: it asks for a package of its own, and pyarrow has the codec already."""

from __future__ import annotations

import pyarrow as pa

MOST_TIMES = 32
"""Raw snappy makes of 3 bytes at most 64: a larger claimed size is corrupt; do not allocate it."""


def compress(payload: bytes) -> bytes:
    """Raw snappy, without a frame."""
    packed: bytes = pa.compress(payload, codec="snappy", asbytes=True)
    return packed


def decompress(payload: bytes) -> bytes:
    """Inverse of `compress`. Raises ValueError for bytes that are not snappy.

    >>> decompress(compress(b"clicks" * 100)) == b"clicks" * 100
    True
    """
    size = announced(payload)
    if size > MOST_TIMES * len(payload):
        raise ValueError(f"{len(payload)} bytes of snappy cannot hold the {size} that they announce")
    plain: bytes = pa.decompress(payload, decompressed_size=size, codec="snappy", asbytes=True)
    return plain


def announced(payload: bytes) -> int:
    """Uncompressed size announced by raw snappy.

    >>> announced(compress(bytes(1000)))
    1000
    """
    size = shift = 0
    for byte in payload[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return size
