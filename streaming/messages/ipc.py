"""Arrow IPC streams: written plainly, read with care.

Arrow takes memory for what a message says it holds, and a few bytes may say 2^40 rows of nulls, or a buffer that grows
a thousandfold when it is decompressed. So a stream's declarations (rows, and bytes after decompression) are added up
first, from its metadata, and held against what a message of its size can honestly hold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

EXPANSION = 8
"""Decompressed, or with its dictionaries written out, a message may be this many times the largest one allowed."""

ROW_BYTES = 16
"""A row has an id and a time: what is as large as the largest message holds at most so many rows."""

LEAST_ROWS = 65_536
"""However small messages are to be, so many rows are always allowed in one."""


def write_ipc(batch: pa.RecordBatch) -> bytes:
    """One Arrow IPC stream holding one record batch, uncompressed: topics are compressed by Kafka."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def read_ipc(value: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> pa.Table:
    """The table in an Arrow IPC stream, with every offset, index and string checked.

    `max_bytes` is what a message may have; nothing is taken that grows far beyond it. Raises ValueError if the stream
    is corrupt or declares too much.

    >>> read_ipc(write_ipc(pa.RecordBatch.from_pydict({"age": [30, 31]})))["age"].to_pylist()
    [30, 31]
    """
    try:
        _check_declared(value, max_bytes)
        with pa.ipc.open_stream(value) as reader:
            table = reader.read_all()
        table.validate(full=True)
        expanded = sum(_expanded_bytes(column) for column in table.columns)
    except (pa.ArrowException, OSError, MemoryError, struct.error) as error:
        raise ValueError(str(error)) from error
    if expanded > EXPANSION * max_bytes:
        raise ValueError(
            f"written out, its dictionaries have {expanded:,} bytes; {EXPANSION * max_bytes:,} are allowed"
        )
    return table


def plain_records(table: pa.Table, rows: Sequence[int]) -> list[dict[str, Any]]:
    """The `rows` of a table as plain values, for a person to read; of a cell that has none, its type.

    >>> plain_records(pa.table({"age": [30, 31], "at": pa.array([1, 2], pa.duration("s"))}), [1])
    [{'age': 31, 'at': '<duration[s]>'}]
    """
    names, chosen = table.schema.names, pa.array(rows, pa.int64())
    columns = [_plain(column, chosen) for column in table.columns]
    return [dict(zip(names, (column[i] for column in columns), strict=True)) for i in range(len(rows))]


def short_type(kind: pa.DataType) -> str:
    """A type's name, cut where it is that of a deep one."""
    text = str(kind)
    return text if len(text) <= 80 else text[:77] + "..."


def _plain(column: pa.ChunkedArray, rows: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
    value = kind.value_type if pa.types.is_list(kind) or pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_null(kind) or _is_number(value) or _is_text(value)):
        return [f"<{short_type(kind)}>"] * len(rows)
    return column.take(rows).to_pylist()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _expanded_bytes(column: pa.ChunkedArray) -> int:
    """What the values of a column take that stand in it once and are referred to often."""
    if pa.types.is_dictionary(column.type):
        return sum(_dictionary_bytes(chunk) for chunk in column.chunks)
    if pa.types.is_string_view(column.type):
        return sum(int(_lengths(chunk).sum()) for chunk in column.chunks)
    return 0


def _dictionary_bytes(chunk: pa.DictionaryArray) -> int:
    kind = chunk.dictionary.type
    if _is_text(kind):
        lengths = _lengths(chunk.dictionary)
    elif pa.types.is_list(kind):
        lengths = 8 * pc.list_value_length(chunk.dictionary).fill_null(0).to_numpy().astype(np.int64)
    else:
        return 8 * len(chunk)
    return int(lengths[chunk.indices.drop_null().to_numpy()].sum())


def _lengths(texts: pa.Array) -> np.ndarray:
    """Bytes of each text, (N,) int64; a null has none."""
    if pa.types.is_string_view(texts.type):  # a view is 16 bytes, the first four its length
        views = np.frombuffer(texts.buffers()[1] or b"", np.int32)[::4]
        lengths = views[texts.offset : texts.offset + len(texts)].astype(np.int64)
        return np.where(texts.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


# What a stream declares. Its metadata are flatbuffers, read here by the layout of Arrow's Message.fbs: a table begins
# with the (negated) offset of its vtable, which holds a 16-bit offset for every field, 0 for one that is absent.


def _check_declared(value: bytes, max_bytes: int) -> None:
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
