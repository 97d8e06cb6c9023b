"""Arrow IPC streams, written plainly and read defensively, since a topic may hold anything."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.messages.declared import EXPANSION, KNOWN_BYTES, check_declared, little_endian, messages_of

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
    if not (pa.types.is_null(kind) or _is_number(value) or _is_text(value)):
        return [f"<{short_type(kind)}>"] * len(rows)
    return column.take(rows).to_pylist()


def _is_plain(kind: pa.DataType) -> bool:
    """Numbers and texts, and lists of them."""
    one = kind.value_type if pa.types.is_list(kind) else kind
    return _is_number(one) or pa.types.is_string(one) or pa.types.is_large_string(one)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _expanded_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of the values of a column that stand in it once and are referred to often."""
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
        if _is_text(kind.value_type):
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
