"""What producers put around a JSON object is named where it is refused, and taken off where the config says so."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.config.hash import hash_of
from pipelines.core.config.topics import Topic
from streaming.messages.codecs import make_codec
from streaming.messages.message import RawMessage
from streaming.schema import RowSchema

SCHEMA = RowSchema(columns=[{"name": "age"}], tasks=[{"name": "ctr", "window_s": 60}])
ROW = {"impression_id": 5, "event_time_ms": 9, "vertical": "feed", "age": 3}
TEXT = json.dumps(ROW).encode()
CHANGE = {"before": None, "after": ROW, "op": "c", "ts_ms": 7}
EVENT = {"specversion": "1.0", "id": "a", "type": "shown"}
WRAPPED: dict[str, Any] = {
    "connect": [{"schema": {"type": "struct"}, "payload": ROW}],
    "debezium": [CHANGE, {"schema": {"type": "struct"}, "payload": CHANGE}],
    "cloudevents": [
        EVENT | {"data": ROW},
        EVENT | {"data": TEXT.decode()},
        EVENT | {"data_base64": base64.b64encode(TEXT).decode()},
    ],
}
CASES = [(name, json.dumps(value).encode()) for name, values in WRAPPED.items() for value in values]


def decoded(*values: bytes, key: bytes | None = None, schema: RowSchema = SCHEMA, **options: Any) -> Any:
    messages = [RawMessage("shown", 0, n, 10, key, value) for n, value in enumerate(values)]
    return make_codec("json", "impression", schema, **options).decode(messages)


@pytest.mark.parametrize(("name", "value"), [*CASES, ("confluent", b"\0\0\0\0\7" + TEXT)])
def test_an_envelope_is_named_and_taken_off_by_the_setting_that_its_name_says(name, value):
    _, (letter,) = decoded(value)
    assert f"codec: {{unwrap: {name}}}" in letter.detail
    batch, dead = decoded(value, b"{", value, unwrap=name)
    assert batch["age"].to_pylist() == [3, 3]
    assert batch["source_offset"].to_pylist() == [0, 2]
    assert [(each.offset, each.payload) for each in dead] == [(1, b"{")]


def test_the_wrong_envelope_and_a_deletion_say_so():
    _, (letter,) = decoded(CASES[0][1], unwrap="debezium")
    assert letter.detail == "not in an envelope of debezium; it is of connect: codec: {unwrap: connect}"
    _, (letter,) = decoded(json.dumps(CHANGE | {"op": "d", "after": None}).encode(), unwrap="debezium")
    assert letter.detail == "it is a deletion (Debezium's op is d), and holds no row"
    _, (letter,) = decoded(json.dumps({"schema": {}, "payload": {"age": 3}}).encode(), unwrap="connect")
    assert letter.reason == "missing_column:impression_id"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"[" + TEXT + b", " + TEXT + b"]", "it is a JSON array, and a message is one object"),
        (TEXT + b"\n" + TEXT, "there are several JSON objects in it, and a message is one"),
        (TEXT.decode().encode("utf-16"), "it looks like UTF-16 or UTF-32, and messages are UTF-8"),
        (TEXT.decode().encode("utf-32-be"), "it looks like UTF-16 or UTF-32, and messages are UTF-8"),
    ],
)
def test_what_is_no_single_object_is_named(value, words):
    batch, (letter,) = decoded(value, TEXT)
    assert (batch.num_rows, letter.reason, letter.payload) == (1, "undecodable", value)
    assert words in letter.detail


def test_a_byte_order_mark_before_json_is_passed_over():
    batch, dead = decoded(b"\xef\xbb\xbf" + TEXT, TEXT)
    assert (batch["age"].to_pylist(), dead) == ([3, 3], [])


def test_the_id_may_be_the_message_s_key():
    less = json.dumps({name: value for name, value in ROW.items() if name != "impression_id"}).encode()
    for key in (b"17", b'"17"', (17).to_bytes(8, "big")):
        batch, dead = decoded(less, key=key, id_of_key=True)
        assert (batch["impression_id"].to_pylist(), dead) == ([17], [])
    texts = RowSchema(impression_id="string", columns=[{"name": "age"}], tasks=SCHEMA.tasks)
    for key in (b"a-7", b'"a-7"'):
        assert decoded(less, key=key, schema=texts, id_of_key=True).batch["impression_id"].to_pylist() == ["a-7"]
    _, (letter,) = decoded(less, key=None, id_of_key=True)
    assert letter.detail == "it has no key, which is to be its impression_id"
    _, (letter,) = decoded(less, key=b"a-7", id_of_key=True)
    assert "is no whole number" in letter.detail


def test_both_are_said_in_the_topic_s_settings():
    topic = Topic.model_validate({"topic": "shown", "codec": {"unwrap": "debezium"}, "impression_id": {"from": "key"}})
    assert (topic.codec, topic.unwrap, topic.impression_id) == ("json", "debezium", "key")
    assert Topic.model_validate(topic.model_dump()) == topic
    plain = Topic(topic="shown", codec="json")
    names = [hash_of({"kafka": {"impressions": each.model_dump()}}) for each in (topic, plain)]
    assert names[0] != names[1]
    for wrong in ({"codec": "arrow", "unwrap": "connect"}, {"impression_id": "key"}, {"codec": {"unwrap": "soap"}}):
        with pytest.raises(ValidationError):
            Topic.model_validate({"topic": "shown"} | wrong)


def test_half_a_character_and_a_number_without_end_name_their_column():
    schema = RowSchema(columns=[{"name": "age"}, {"name": "city", "type": "string"}], tasks=SCHEMA.tasks)
    odd = json.dumps(ROW | {"city": "a\ud800"}).encode()
    _, (letter,) = decoded(odd, schema=schema)
    assert (letter.reason, "`city` is " in letter.detail) == ("wrong_type:city", True)
    long = json.dumps(ROW | {"city": "a", "age": 0}).encode().replace(b'"age": 0', b'"age": ' + b"9" * 5000)
    _, (letter,) = decoded(long, schema=schema)
    assert (letter.reason, "`age` is 999" in letter.detail) == ("out_of_range:age", True)
