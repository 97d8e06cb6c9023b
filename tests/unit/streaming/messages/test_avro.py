"""Avro in Confluent's wire format becomes the same rows as JSON, and what is wrong with it a dead letter in words."""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pytest

from streaming.errors import BadInput, StreamingError
from streaming.messages.avro import parsed_avro
from streaming.messages.codecs import make_codec
from streaming.messages.message import RawMessage
from streaming.messages.undeclared import NewColumns
from streaming.schema import RowSchema

FIELDS = [
    {"name": "impression_id", "type": "long"},
    {"name": "event_time_ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "vertical", "type": "string"},
    {"name": "user", "type": "int"},
    {"name": "bid", "type": ["null", "double"], "default": None},
    {"name": "seen", "type": {"type": "array", "items": "long"}},
]
SHOWN = {"type": "record", "name": "Shown", "fields": FIELDS}
WIDER = {"type": "record", "name": "Shown", "fields": [*FIELDS, {"name": "coupon", "type": "string"}]}
SCHEMA = RowSchema(
    columns=[
        {"name": "user", "minimum": 0},
        {"name": "bid", "type": "float32", "nullable": True},
        {"name": "seen", "type": "list<int64>"},
    ],
    tasks=[{"name": "ctr", "window_s": 60}],
)
ROW = {
    "impression_id": 5,
    "event_time_ms": 1_790_000_000_123,
    "vertical": "feed",
    "user": 7,
    "bid": 0.5,
    "seen": [1, 2],
}


def wire(number: int, schema: dict, **row) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(schema)), row)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def messages(*values: bytes) -> list[RawMessage]:
    return [RawMessage("ads", 0, 100 + n, 1_790_000_000_500, None, value) for n, value in enumerate(values)]


def test_rows_are_those_of_the_same_messages_in_json():
    rows = [ROW, ROW | {"impression_id": 2**40, "bid": None, "seen": []}]
    avro = make_codec("avro", "impression", SCHEMA, avro_schemas={7: SHOWN})
    found, dead = avro.decode(messages(*(wire(7, SHOWN, **row) for row in rows)))
    assert dead == []
    as_json = make_codec("json", "impression", SCHEMA).decode(messages(*(json.dumps(row).encode() for row in rows)))
    assert found.equals(as_json.batch)


def test_what_cannot_be_read_is_a_dead_letter_with_its_bytes_and_its_neighbours_survive():
    values = [
        wire(7, SHOWN, **ROW),
        wire(9, SHOWN, **ROW),
        b"{}",
        wire(7, SHOWN, **ROW)[:-3],
        wire(7, SHOWN, **ROW) + b"x",
        wire(7, SHOWN, **ROW | {"user": -1}),
        wire(7, SHOWN, **ROW | {"impression_id": 6}),
    ]
    codec = make_codec("avro", "impression", SCHEMA, avro_schemas={7: SHOWN})
    found, dead = codec.decode(messages(*values))
    assert found["source_offset"].to_pylist() == [100, 106]
    assert [(letter.offset, letter.reason) for letter in dead] == [
        (101, "undecodable"), (102, "undecodable"), (103, "undecodable"), (104, "undecodable"),
        (105, "out_of_range:user"),
    ]  # fmt: skip
    assert [letter.payload for letter in dead] == values[1:6]
    assert "it is of schema 9; avro_schemas has 7" in dead[0].detail
    assert "a byte 0 and a schema's number" in dead[1].detail
    assert "not a record of schema 7" in dead[2].detail
    assert "bytes are left over" in dead[3].detail


def test_a_schema_that_is_nested_too_deep_is_refused_before_it_is_followed():
    deep: object = "long"
    for _ in range(20_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(BadInput, match="schema 7 is nested more than 200 deep; a row is flat"):
        parsed_avro({7: {"type": "record", "name": "Shown", "fields": [{"name": "deep", "type": deep}]}})


@pytest.mark.parametrize("levels", [2000, 20_000, 200_000])
def test_a_record_that_is_too_deep_is_a_dead_letter(levels):
    chain = {"type": "record", "name": "Chain", "fields": [{"name": "next", "type": ["null", "Chain"]}]}
    deep = {"type": "record", "name": "Shown", "fields": [*FIELDS, {"name": "chain", "type": chain}]}
    codec = make_codec("avro", "impression", SCHEMA, avro_schemas={7: SHOWN, 8: deep})
    value = wire(8, deep, **ROW, chain={"next": None})
    value = value[:-1] + b"\x02" * levels + value[-1:]  # each byte one record within another
    found, (letter,) = codec.decode(messages(value, wire(7, SHOWN, **ROW)))
    assert found.num_rows == 1
    assert letter.reason == "undecodable"
    assert "not a record of schema 8" in letter.detail


def test_a_field_that_the_schema_of_rows_needs_is_named_where_it_is_absent():
    fields = [field for field in FIELDS if field["name"] != "user"]
    less = {"type": "record", "name": "Shown", "fields": fields}
    codec = make_codec("avro", "impression", SCHEMA, avro_schemas={8: less})
    _, (letter,) = codec.decode(messages(wire(8, less, **ROW)))
    assert (letter.reason, letter.detail) == ("missing_column:user", "`user` is absent")


def test_a_producer_s_next_schema_may_bring_a_column():
    keeps = SCHEMA.model_validate(SCHEMA.model_dump() | {"undeclared": "keep"})
    codec = make_codec("avro", "impression", keeps, grows=True, avro_schemas={7: SHOWN, 8: WIDER})
    with pytest.raises(NewColumns, match=r"`coupon` \(string\)"):
        codec.decode(messages(wire(7, SHOWN, **ROW), wire(8, WIDER, **ROW, coupon="a")))


def test_it_is_not_written():
    codec = make_codec("avro", "impression", SCHEMA, avro_schemas={7: SHOWN})
    with pytest.raises(StreamingError, match="read, not written"):
        codec.encode(pa.RecordBatch.from_pylist([], SCHEMA.impression))
