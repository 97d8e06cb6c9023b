"""Rows and bytes that an Arrow IPC stream declares, read from its metadata before Arrow allocates anything.

Arrow allocates what a message declares: a few bytes may declare 2^40 rows of nulls, or a buffer that grows a
thousandfold when it is decompressed. So the declarations are added up first and compared with what a message of the
allowed size can hold.

The metadata are flatbuffers in the layout of Arrow's Message.fbs, parsed here by hand because pyarrow does not expose
them: a table begins with the (negated) offset of its vtable, which holds a 16-bit offset for each field, 0 where the
field is absent.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

EXPANSION = 8
"""Decompressed, or with its dictionaries expanded, a message may be this many times the largest one allowed."""

ROW_BYTES = 16
"""A row has at least an id and a time, which bounds the rows of the largest message."""

LEAST_ROWS = 65_536
"""This many rows are always allowed in a message, however small the largest one is."""


KNOWN_BYTES = 1 << 14
"""Metadata of at most so many bytes are parsed once: a caller's messages have the same ones again and again."""


class Declared(NamedTuple):
    """Declared sizes of a batch: its rows, the longest array, the bytes of all buffers, and the least size of all
    that."""

    rows: int
    longest: int
    bytes: int
    least: int


def messages_of(value: bytes) -> list[pa.ipc.Message]:
    """Messages of a stream, the schema's first, without their bodies. Raises pa.ArrowException for one that is
    corrupt, ValueError where there is none."""
    reader, messages = pa.ipc.MessageReader.open_stream(value), list[pa.ipc.Message]()
    try:
        while True:
            messages.append(reader.read_next_message())
    except StopIteration:
        pass
    if not messages or messages[0].type != "schema":
        raise ValueError("it is empty, or does not begin with a schema")
    return messages


def little_endian(schema: pa.ipc.Message) -> bool:
    """True if a stream with this schema message has this machine's byte order."""
    data = memoryview(schema.metadata)
    place = _field(data, _table(data, _field(data, _at(data, "I", 0), 2)), 0)
    return not place or _at(data, "h", place) == 0


def check_declared(messages: list[pa.ipc.Message], max_bytes: int) -> None:
    """Raise ValueError for a stream that declares more than a message of at most `max_bytes` can hold, or a negative
    size; struct.error for a corrupt one."""
    most_rows = max(max_bytes // ROW_BYTES, LEAST_ROWS)
    rows = total = 0
    for message in messages:
        if message.type not in ("record batch", "dictionary"):
            continue
        length, longest, size, least = _declared(message)
        if least < 0:
            raise ValueError("declares less than nothing")
        rows, total = rows + length, total + size
        if rows > most_rows:
            raise ValueError(f"declares {rows:,} rows; a message may hold {most_rows:,}")
        if longest > 8 * total + LEAST_ROWS:  # eight flags to a byte; a column of nulls has none
            raise ValueError(f"declares {longest:,} values in {total:,} bytes")
        if total > EXPANSION * max_bytes:
            raise ValueError(f"declares {total:,} bytes; {EXPANSION * max_bytes:,} are allowed")


def _declared(message: pa.ipc.Message) -> Declared:
    """Bytes that a record batch declares, or the batch inside a dictionary, once decompressed."""
    metadata, dictionary = message.metadata.to_pybytes(), message.type == "dictionary"
    layout = (_known if len(metadata) <= KNOWN_BYTES else _layout)(metadata, dictionary)
    if not layout.compressed:
        return layout.declared
    # A compressed buffer begins with its size when decompressed, -1 where it is stored as it is.
    body, sizes = memoryview(message.body), []
    for offset, size in layout.buffers:
        declared = _at(body, "q", offset) if size else 0
        sizes.append(size - 8 if declared == -1 else declared)
    return _together(layout.declared.rows, layout.nodes, sizes)


class _Layout(NamedTuple):
    """`nodes`: the length of every array. `buffers`: where each begins and its size, as it is stored."""

    declared: Declared
    nodes: list[int]
    buffers: list[tuple[int, int]]
    compressed: bool


def _layout(metadata: bytes, dictionary: bool) -> _Layout:
    data = memoryview(metadata)
    batch = _table(data, _field(data, _at(data, "I", 0), 2))
    if dictionary:
        batch = _table(data, _field(data, batch, 1))
    length_at = _field(data, batch, 0)
    length = _at(data, "q", length_at) if length_at else 0
    nodes = [node for node, _ in _pairs(data, _field(data, batch, 1))]
    buffers = _pairs(data, _field(data, batch, 2))
    declared = _together(length, nodes, [size for _, size in buffers])
    return _Layout(declared, nodes, buffers, compressed=bool(_field(data, batch, 3)))


_known = lru_cache(maxsize=256)(_layout)


def _together(length: int, nodes: list[int], sizes: list[int]) -> Declared:
    return Declared(length, max([length, *nodes]), sum(sizes), min([length, *nodes, *sizes]))


def _at(data: memoryview, kind: str, place: int) -> int:
    number: int = struct.unpack_from(f"<{kind}", data, place)[0]
    return number


def _field(data: memoryview, table: int, number: int) -> int:
    """Offset of field `number` of a table, 0 if it is absent."""
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
