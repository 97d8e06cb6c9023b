"""Bounded decompression of record batches: a megabyte of gzip may unpack to a gigabyte.

The client unpacks a batch whole, into memory, before it reads the first record of it. So each codec is stopped at the
bound here. A batch beyond it is not unpacked: empty records stand in for its own, one at each of its offsets, and
become dead letters (`oversized`). What many batches of one fetch unpack to together is bounded by `patches.FetchBound`.
"""

from __future__ import annotations

import io
import secrets
import struct
import zlib
from collections.abc import Sequence

import lz4.frame
import pyarrow as pa
import zstandard

EXPANSION, LEAST_BYTES = 8, 128 * 2**20
"""A batch may unpack to so many of the largest messages allowed; never fewer bytes than these are."""

FETCH_BYTES = 256 * 2**20
"""Of keys and values of messages, so much is taken of what was fetched. What is beyond it is fetched again later."""

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
"""The codecs as a batch names them."""

STAND_IN = f"exfm-oversized-{secrets.token_hex(8)}"
"""The header of a record that stands in for one: no producer knows it."""


def most_bytes(max_message_bytes: int) -> int:
    """Largest unpacked size of a batch."""
    return max(LEAST_BYTES, EXPANSION * max_message_bytes)


def unpacked(codec: int, data: bytes | memoryview, most: int) -> bytes | None:
    """Decompress `data`; None if it exceeds `most` bytes, which are never allocated.

    Raises ValueError, RuntimeError, zlib.error or zstandard.ZstdError for bytes of another codec.

    >>> bomb = zlib.compress(bytes(10_000_000), wbits=31)
    >>> len(bomb), unpacked(GZIP, bomb, most=1_000_000), len(unpacked(GZIP, bomb, most=10_000_000))
    (9750, None, 10000000)
    """
    plain = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}[codec](data, most)
    return None if plain is None or len(plain) > most else plain


def stand_ins(offsets: int, words: str) -> bytes:
    """Placeholder records in Kafka's batch format, without key and value, at the offsets 0 to `offsets` − 1; their
    header STAND_IN holds the reason."""
    key, value = STAND_IN.encode(), words.encode()
    header = b"\x02" + _varint(len(key)) + key + _varint(len(value)) + value
    records = bytearray()
    for offset in range(offsets):
        record = b"\x00\x00" + _varint(offset) + b"\x01\x01" + header  # attributes, time; −1: no key, no value
        records += _varint(len(record)) + record
    return bytes(records)


def stands_in(headers: Sequence[tuple[str, bytes]]) -> str | None:
    """Reason why a record is a placeholder; None for a real one."""
    return next((value.decode() for name, value in headers if name == STAND_IN), None)


def _gzip(data: bytes | memoryview, most: int) -> bytes | None:
    plain, rest = bytearray(), bytes(data)
    while rest.strip(b"\0"):  # members, one after the other, and what pads them
        member = zlib.decompressobj(wbits=31)
        plain += member.decompress(rest, most + 1 - len(plain))
        if len(plain) > most:
            return None
        if not member.eof:
            raise ValueError("the gzip stream ends early")
        rest = member.unused_data
    return bytes(plain)


def _zstd(data: bytes | memoryview, most: int) -> bytes | None:
    unpacking = zstandard.ZstdDecompressor()
    with unpacking.stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
        plain: bytes = _read(reader, most)
    return plain


def _lz4(data: bytes | memoryview, most: int) -> bytes | None:
    plain, rest = bytearray(), bytes(data)
    while rest:
        frame = lz4.frame.LZ4FrameDecompressor()
        plain += frame.decompress(rest, max_length=most + 1 - len(plain))
        if len(plain) > most:
            return None
        if not frame.eof:
            raise ValueError("the lz4 frame ends early")
        rest = frame.unused_data or b""
    return bytes(plain)


def _read(reader: zstandard.ZstdDecompressionReader, most: int) -> bytes:
    """At most `most` + 1 bytes."""
    parts, left = [], most + 1
    while left and (part := reader.read(min(left, 2**20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


XERIAL = b"\x82SNAPPY\x00"
"""How a stream of blocks begins, each with its size before it; raw snappy is one block."""


def _snappy(data: bytes | memoryview, most: int) -> bytes | None:
    whole = bytes(data)
    blocks = list(_xerial_blocks(whole)) if whole.startswith(XERIAL) else [whole]
    if sum(map(_announced, blocks)) > most:
        return None
    return b"".join(map(snappy_decompress, blocks))


def _xerial_blocks(data: bytes) -> list[bytes]:
    blocks, at = [], 16
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size < 0:
            raise ValueError("a block of snappy has a size below 0")
        blocks.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return blocks


def _varint(number: int) -> bytes:
    """Zigzag, seven bits to a byte."""
    left, encoded = number << 1, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])


MOST_TIMES = 32
"""Raw snappy makes of 3 bytes at most 64: a larger claimed size is corrupt; do not allocate it."""


def snappy_compress(payload: bytes) -> bytes:
    """Raw snappy, without a frame."""
    packed: bytes = pa.compress(payload, codec="snappy", asbytes=True)
    return packed


def snappy_decompress(payload: bytes) -> bytes:
    """Inverse of `snappy_compress`. Raises ValueError for bytes that are not snappy.

    >>> snappy_decompress(snappy_compress(b"clicks" * 100)) == b"clicks" * 100
    True
    """
    size = _announced(payload)
    if size > MOST_TIMES * len(payload):
        raise ValueError(f"{len(payload)} bytes of snappy cannot hold the {size} that they announce")
    plain: bytes = pa.decompress(payload, decompressed_size=size, codec="snappy", asbytes=True)
    return plain


def _announced(payload: bytes) -> int:
    """Uncompressed size announced by raw snappy.

    >>> _announced(snappy_compress(bytes(1000)))
    1000
    """
    size = shift = 0
    for byte in payload[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return size
