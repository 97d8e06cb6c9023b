"""Avro in Confluent's wire format: a byte 0, the number of the writer's schema in four bytes, and one record.

Schemas are given by number, as a schema registry has them; none is asked. A message of a number that is not given is a
dead letter, and can be put back once the schema is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from fastavro._read_py import schemaless_reader as in_python

from streaming.errors import BadInput, StreamingError
from streaming.messages.codecs import JsonCodec
from streaming.messages.ipc import MAX_MESSAGE_BYTES
from streaming.messages.message import RawMessage
from streaming.messages.undeclared import Undeclared
from streaming.messages.validation import RowRules

MAGIC, HEADER_BYTES = 0, 5
MOST_NESTED = 200
"""Types inside types of a schema: fastavro and JSON follow them by recursion."""

Schemas = Mapping[int, Mapping[str, Any]]


def parsed_avro(schemas: Schemas) -> dict[int, Any]:
    """The schemas, parsed for fastavro. Raises BadInput for one that is none, or is none of a record.

    >>> fields = [{"name": "impression_id", "type": "long"}]
    >>> list(parsed_avro({7: {"type": "record", "name": "Shown", "fields": fields}}))
    [7]
    """
    parsed = {}
    for number, schema in schemas.items():
        _is_recursive(number, schema)
        try:
            parsed[number] = fastavro.parse_schema(dict(schema))
        except (fastavro.schema.SchemaParseException, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"schema {number} is no Avro schema: {error!r}") from None
        if schema.get("type") != "record":
            raise BadInput(f"schema {number} is of a {schema.get('type')}; a message is a record")
    return parsed


def _is_recursive(number: int, schema: Any) -> bool:
    """True if a type holds itself, so that a message may be nested without end. Raises BadInput for a schema that is
    nested deeper than fastavro can follow.

    >>> node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    >>> _is_recursive(7, node), _is_recursive(7, {"type": "array", "items": "long"})
    (True, False)
    """
    left: list[tuple[Any, int, tuple[str, ...]]] = [(schema, 0, ())]
    recursive = False
    while left:
        part, depth, inside = left.pop()
        if depth > MOST_NESTED:
            raise BadInput(f"schema {number} is nested more than {MOST_NESTED} deep; a row is flat: give a flatter one")
        if isinstance(part, str):
            recursive |= part.rsplit(".", 1)[-1] in inside
        elif isinstance(part, list | tuple):
            left += [(each, depth + 1, inside) for each in part]
        elif isinstance(part, Mapping):
            if part.get("type") in ("record", "error"):
                inside = (*inside, str(part.get("name")).rsplit(".", 1)[-1])
            fields = part.get("fields") if isinstance(part.get("fields"), list | tuple) else ()
            held = [field.get("type") for field in fields or () if isinstance(field, Mapping)]
            held += [part.get(name) for name in ("type", "items", "values")]
            left += [(each, depth + 1, inside) for each in held]
    return recursive


class AvroCodec(JsonCodec):
    """Decodes Avro messages; there is no encoder. Values are taken as those of JSON are: times of logical types as
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
        # In C a record that holds itself 20,000 times ends the process; in Python it is an exception.
        self._readers = {
            number: in_python if _is_recursive(number, schema) else fastavro.schemaless_reader
            for number, schema in schemas.items()
        }

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        raise StreamingError("messages in Avro are read, not written; send JSON or Arrow")

    def _text(self, message: RawMessage) -> bytes:
        return super()._text(message._replace(value=self._json(message.value)))

    def _json(self, value: bytes) -> bytes:
        """The record of a message as JSON. Raises ValueError, in words."""
        if len(value) < HEADER_BYTES or value[0] != MAGIC:
            raise ValueError("not Confluent's wire format: it begins with a byte 0 and a schema's number")
        number = int.from_bytes(value[1:HEADER_BYTES], "big")
        if number not in self._schemas:
            numbers = ", ".join(map(str, sorted(self._schemas)))
            raise ValueError(f"it is of schema {number}; avro_schemas has {numbers}. Add it, then put the message back")
        stream = io.BytesIO(value[HEADER_BYTES:])
        try:
            record = self._readers[number](stream, self._schemas[number], None)
            text = json.dumps(record, default=_plain).encode()
        except Exception as error:  # whatever fastavro meets in bytes of no such record, or JSON in a deep one
            raise ValueError(f"not a record of schema {number}: {error!r}") from None
        if stream.read(1):
            raise ValueError(f"not a record of schema {number}: bytes are left over")
        return text


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
