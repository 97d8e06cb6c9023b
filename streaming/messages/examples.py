"""Rows of the lake as messages of the examples topic."""

from __future__ import annotations

import pyarrow as pa

from streaming.errors import StreamingError
from streaming.evolution import filled
from streaming.messages.codecs import concatenated
from streaming.messages.ipc import MAX_MESSAGE_BYTES, ipc_bytes, read_ipc, write_ipc
from streaming.messages.message import RawMessage
from streaming.schema import RowSchema


class ExamplesCodec:
    """Rows of the lake on the examples topic: Arrow micro-batches in `RowSchema.augmented`.

    Our own publisher wrote them from committed rows, so they are not validated again; one that cannot be read is an
    error, never a dead letter.
    """

    def __init__(self, schema: RowSchema) -> None:
        self.schema: pa.Schema = schema.augmented

    def encode(self, batch: pa.RecordBatch, max_bytes: int = MAX_MESSAGE_BYTES // 2) -> list[bytes]:
        """Message values of at most `max_bytes` each, in row order; one (empty) for a batch without rows.

        Raises StreamingError when a single row is larger.
        """
        size = ipc_bytes(batch)  # known before it is written: a block may be many messages
        if size <= max_bytes:
            return [write_ipc(batch)]
        if batch.num_rows <= 1:
            raise StreamingError(
                f"one row of the examples topic has {size:,} bytes, a message may have {max_bytes:,}; raise "
                "max_message_bytes, or drop the column that grew"
            )
        half = batch.num_rows // 2
        return self.encode(batch.slice(0, half), max_bytes) + self.encode(batch.slice(half), max_bytes)

    def decode(self, message: RawMessage) -> pa.RecordBatch:
        """Decode a message; nullable columns added since are null, unknown columns are dropped. Raises
        StreamingError, naming the message, when it is corrupt or has another schema."""
        where = f"message {message.offset} of topic `{message.topic}`, partition {message.partition},"
        try:
            table = read_ipc(message.value)
        except ValueError as error:
            raise StreamingError(f"{where} is not a readable Arrow stream: {error}") from error
        try:
            return concatenated(filled(table, self.schema).to_batches(), self.schema)
        except ValueError as error:
            raise StreamingError(
                f"{where} was written with another schema: {error}; read it with the run's own config"
            ) from error
