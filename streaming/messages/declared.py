"""The rows and bytes that an Arrow IPC stream declares, read from its metadata before Arrow allocates anything.

Arrow allocates what a message declares: a few bytes may declare 2^40 rows of nulls, or a buffer that grows a
thousandfold when it is decompressed. So the declarations are added up first and compared with what a message of the
allowed size can hold.

The metadata are flatbuffers in the layout of Arrow's Message.fbs, parsed here by hand because pyarrow does not expose
them: a table begins with the (negated) offset of its vtable, which holds a 16-bit offset for each field, 0 where the
field is absent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

EXPANSION = 8
"""Decompressed, or with its dictionaries expanded, a message may be this many times the largest one allowed."""

ROW_BYTES = 16
"""A row has at least an id and a time, which bounds the rows of the largest message."""

LEAST_ROWS = 65_536
"""This many rows are always allowed in a message, however small the largest one is."""


def check_declared(value: bytes, max_bytes: int) -> None:
    """Raises ValueError for a stream that declares more than a message of at most `max_bytes` can hold, or less than
    nothing; pa.ArrowException, struct.error for one that is corrupt."""
    most_rows = max(max_bytes // ROW_BYTES, LEAST_ROWS)
    rows = total = 0
    for message in _messages(value):
        length, nodes, sizes = _declared(message)
        longest = max([length, *nodes])
        if min([length, *nodes, *sizes]) < 0:
            raise ValueError("declares less than nothing")
        rows, total = rows + length, total + sum(sizes)
        if rows > most_rows:
            raise ValueError(f"declares {rows:,} rows; a message may hold {most_rows:,}")
        if longest > 8 * total + LEAST_ROWS:  # eight flags to a byte; a column of nulls has none
            raise ValueError(f"declares {longest:,} values in {total:,} bytes")
        if total > EXPANSION * max_bytes:
            raise ValueError(f"declares {total:,} bytes; {EXPANSION * max_bytes:,} are allowed")


def _messages(value: bytes) -> Iterator[pa.ipc.Message]:
    """Record batches, and the batches inside dictionaries."""
    reader = pa.ipc.MessageReader.open_stream(value)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type in ("record batch", "dictionary"):
            yield message


def _declared(message: pa.ipc.Message) -> tuple[int, list[int], list[int]]:
    """Rows, the length of every array, and the size of every buffer once decompressed."""
    data, body = memoryview(message.metadata), memoryview(message.body)
    batch = _table(data, _field(data, _at(data, "I", 0), 2))
    if message.type == "dictionary":
        batch = _table(data, _field(data, batch, 1))
    length_at = _field(data, batch, 0)
    length = _at(data, "q", length_at) if length_at else 0
    nodes = [node for node, _ in _pairs(data, _field(data, batch, 1))]
    buffers = _pairs(data, _field(data, batch, 2))
    if not _field(data, batch, 3):
        return length, nodes, [size for _, size in buffers]
    # A compressed buffer begins with its size when decompressed, -1 where it is stored as it is.
    sizes = []
    for offset, size in buffers:
        declared = _at(body, "q", offset) if size else 0
        sizes.append(size - 8 if declared == -1 else declared)
    return length, nodes, sizes


def _at(data: memoryview, kind: str, place: int) -> int:
    number: int = struct.unpack_from(f"<{kind}", data, place)[0]
    return number


def _field(data: memoryview, table: int, number: int) -> int:
    """Where field `number` of a table stands, 0 if it is absent."""
    vtable = table - _at(data, "i", table)
    if 4 + 2 * number >= _at(data, "H", vtable):
        return 0
    offset = _at(data, "H", vtable + 4 + 2 * number)
    return table + offset if offset else 0


def _table(data: memoryview, place: int) -> int:
    return place + _at(data, "I", place)


def _pairs(data: memoryview, place: int) -> list[tuple[int, int]]:
    """A vector of structs of two 64-bit numbers."""
    if not place:
        return []
    start = _table(data, place)
    return list(struct.iter_unpack("<qq", data[start + 4 : start + 4 + 16 * _at(data, "I", start)]))
