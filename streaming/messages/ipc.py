"""Arrow IPC streams, written plainly and read defensively, since a topic may hold anything.

Arrow allocates what a message declares: a few bytes may declare 2^40 rows of nulls, or a buffer that grows a
thousandfold when it is decompressed. So the declared sizes are read from the stream's metadata first and compared with
what a message of the allowed size can hold. The metadata are flatbuffers in the layout of Arrow's Message.fbs, parsed
here by hand because pyarrow does not expose them: a table begins with the (negated) offset of its vtable, which holds a
16-bit offset for each field, 0 where the field is absent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.schema import is_text

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

END_BYTES = 8
"""Of the mark that ends a stream."""


def write_ipc(batch: pa.RecordBatch) -> bytes:
    """One Arrow IPC stream holding one record batch, uncompressed: topics are compressed by Kafka."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def ipc_bytes(batch: pa.RecordBatch) -> int:
    """Length of `write_ipc`'s output, without writing it.

    >>> batch = pa.record_batch({"age": [30, 31], "name": ["a", "bc"]}).slice(1)
    >>> ipc_bytes(batch) == len(write_ipc(batch))
    True
    """
    return batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + END_BYTES


def read_ipc(
    value: bytes, max_bytes: int = MAX_MESSAGE_BYTES, look: Callable[[pa.Schema], None] = lambda schema: None
) -> pa.Table:
    """Read the table in an Arrow IPC stream, checking every offset, index and string.

    `max_bytes` is what a message may have; nothing is taken that grows far beyond it. `look` is shown the schema before
    any row is read, and may raise. Raises ValueError if the stream is corrupt or declares too much.

    >>> read_ipc(write_ipc(pa.RecordBatch.from_pydict({"age": [30, 31]})))["age"].to_pylist()
    [30, 31]
    """
    try:
        messages = messages_of(value)
        metadata = messages[0].metadata.to_pybytes()
        parsed = (_known if len(metadata) <= KNOWN_BYTES else _Schema)(metadata)
        look(parsed.schema)
        check_declared(messages, max_bytes)
        table = parsed.table(messages[1:]) if parsed.plain else pa.ipc.open_stream(value).read_all()
        table.validate(full=True)
        expanded = 0 if parsed.plain else sum(_expanded_bytes(column) for column in table.columns)
    except (pa.ArrowException, OSError, MemoryError, struct.error) as error:
        raise ValueError(str(error)) from error
    if expanded > EXPANSION * max_bytes:
        raise ValueError(f"expanded, its dictionaries have {expanded:,} bytes; {EXPANSION * max_bytes:,} are allowed")
    return table


class _Schema:
    """Schema of a stream, from its first message. `plain`: each batch is read from its message alone."""

    def __init__(self, metadata: bytes) -> None:
        message = pa.ipc.read_message(struct.pack("<iI", -1, len(metadata)) + metadata)  # as a stream begins
        self.schema = pa.ipc.read_schema(message)
        self.plain = little_endian(message) and all(_is_plain(kind) for kind in self.schema.types)

    def table(self, messages: Sequence[pa.ipc.Message]) -> pa.Table:
        return pa.Table.from_batches([pa.ipc.read_record_batch(each, self.schema) for each in messages], self.schema)


_known = lru_cache(maxsize=64)(_Schema)


def plain_records(table: pa.Table, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of a table as plain values for people; a cell that has no plain value shows its type.

    >>> plain_records(pa.table({"age": [30, 31], "at": pa.array([1, 2], pa.duration("s"))}), [1])
    [{'age': 31, 'at': '<duration[s]>'}]
    """
    names, chosen = table.schema.names, pa.array(rows, pa.int64())
    columns = [_plain(column, chosen) for column in table.columns]
    return [dict(zip(names, (column[i] for column in columns), strict=True)) for i in range(len(rows))]


def short_type(kind: pa.DataType) -> str:
    """A type's name, truncated for a deeply nested one."""
    text = str(kind)
    return text if len(text) <= 80 else text[:77] + "..."


def _plain(column: pa.ChunkedArray, rows: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
    value = kind.value_type if pa.types.is_list(kind) or pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_null(kind) or _is_number(value) or is_text(value)):
        return [f"<{short_type(kind)}>"] * len(rows)
    return column.take(rows).to_pylist()


def _is_plain(kind: pa.DataType) -> bool:
    """Numbers, texts and bytes, and lists of them."""
    one = kind.value_type if pa.types.is_list(kind) else kind
    return _is_number(one) or pa.types.is_binary(one) or pa.types.is_string(one) or pa.types.is_large_string(one)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _expanded_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of the values of a column that stand in it once and are referred to often."""
    if pa.types.is_dictionary(column.type):
        return sum(_dictionary_bytes(chunk) for chunk in column.chunks)
    if pa.types.is_string_view(column.type):
        return sum(int(_lengths(chunk).sum()) for chunk in column.chunks)
    return 0


def _dictionary_bytes(chunk: pa.DictionaryArray) -> int:
    kind = chunk.dictionary.type
    if is_text(kind):
        lengths = _lengths(chunk.dictionary)
    elif pa.types.is_list(kind):
        lengths = 8 * pc.list_value_length(chunk.dictionary).fill_null(0).to_numpy().astype(np.int64)
        if is_text(kind.value_type):
            owner = pc.list_parent_indices(chunk.dictionary).to_numpy()
            inside = _lengths(chunk.dictionary.flatten())
            lengths = lengths + np.bincount(owner, inside, len(lengths)).astype(np.int64)
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
    layout = (_known_layout if len(metadata) <= KNOWN_BYTES else _layout)(metadata, dictionary)
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


_known_layout = lru_cache(maxsize=256)(_layout)


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
