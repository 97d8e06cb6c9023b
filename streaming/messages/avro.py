"""Avro in Confluent's wire format: a byte 0, the number of the writer's schema in four bytes, and one record.

Schemas are given by number, as a schema registry has them; none is asked. A message of a number that is not given is a
dead letter, and can be put back once the schema is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from streaming.errors import BadInput, StreamingError
from streaming.messages.codecs import JsonCodec, ReadRows
from streaming.messages.ipc import MAX_MESSAGE_BYTES
from streaming.messages.message import RawMessage
from streaming.messages.undeclared import Undeclared
from streaming.messages.validation import Refusal, RowRules

MAGIC, HEADER_BYTES = 0, 5

Schemas = Mapping[int, Mapping[str, Any]]


def parsed_avro(schemas: Schemas) -> dict[int, Any]:
    """The schemas as fastavro reads with them. Raises BadInput for one that is none, or is none of a record.

    >>> fields = [{"name": "impression_id", "type": "long"}]
    >>> list(parsed_avro({7: {"type": "record", "name": "Shown", "fields": fields}}))
    [7]
    """
    found = {}
    for number, schema in schemas.items():
        try:
            found[number] = fastavro.parse_schema(dict(schema))
        except (fastavro.schema.SchemaParseException, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"schema {number} is no Avro schema: {error!r}") from None
        if schema.get("type") != "record":
            raise BadInput(f"schema {number} is of a {schema.get('type')}; a message is a record")
    return found


class AvroCodec(JsonCodec):
    """Reads such messages; they are not written. Values are taken as those of JSON are: times of logical types as
    ISO 8601, decimals as numbers."""

    def __init__(
        self,
        rules: RowRules,
        schemas: Schemas,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        undeclared: Undeclared | None = None,
    ) -> None:
        super().__init__(rules, max_message_bytes, undeclared)
        self._schemas = parsed_avro(schemas)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        raise StreamingError("messages in Avro are read, not written; send JSON or Arrow")

    def _read(self, messages: Sequence[RawMessage]) -> ReadRows:
        good, texts, refused = [], [], []
        for index, message in enumerate(messages):
            try:
                texts.append(message._replace(value=self._text(message.value)))
                good.append(index)
            except ValueError as error:
                refused.append((index, 0, Refusal("undecodable", str(error))))
        read = super()._read(texts)
        refused += [(good[index], row, refusal) for index, row, refusal in read.refused]
        return read._replace(message=np.asarray(good, np.int64)[read.message], refused=refused)

    def _text(self, value: bytes) -> bytes:
        """The record of a message as JSON. Raises ValueError, in words."""
        if len(value) < HEADER_BYTES or value[0] != MAGIC:
            raise ValueError("not Confluent's wire format: it begins with a byte 0 and a schema's number")
        number = int.from_bytes(value[1:HEADER_BYTES], "big")
        if number not in self._schemas:
            known = ", ".join(map(str, sorted(self._schemas)))
            raise ValueError(f"it is of schema {number}; avro_schemas has {known}. Add it, then put the message back")
        stream = io.BytesIO(value[HEADER_BYTES:])
        try:
            record = fastavro.schemaless_reader(stream, self._schemas[number], None)
            text = json.dumps(record, default=_plain).encode()
        except Exception as error:  # whatever fastavro meets in bytes of no such record, or JSON in a deep one
            raise ValueError(f"not a record of schema {number}: {error!r}") from None
        if stream.read(1):
            raise ValueError(f"not a record of schema {number}: bytes are left over")
        return text

    def _keys(self, value: bytes) -> Collection[str]:
        return super()._keys(self._text(value))

    def _look_at(self, messages: Sequence[RawMessage], undeclared: Undeclared) -> None:
        super()._look_at([message._replace(value=self._text(message.value)) for message in messages], undeclared)


def _plain(value: Any) -> Any:
    """
    >>> _plain(Decimal("1.50")), _plain(b"ab"), _plain(date(2026, 1, 2))
    (1.5, 'ab', '2026-01-02')
    """
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
