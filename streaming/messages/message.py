"""A message of a topic, as read."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from streaming.position import Partition

END_HEADER = "exfm-end"


class RawMessage(NamedTuple):
    """One Kafka message. `timestamp_ms` is the record's, from its producer or broker; an absent value is b""."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    refused: str | None = None  # why its value was not taken: what holds it is too large
    leader_epoch: int = -1  # of the broker that took it, as the cluster counts them; -1: not known


def is_end_marker(message: RawMessage) -> bool:
    """True for an end marker, which a producer writes after its last message: the end of a bounded stream."""
    return not message.value and any(name == END_HEADER for name, _ in message.headers)


def by_partition(messages: Sequence[RawMessage]) -> dict[Partition, list[RawMessage]]:
    """Messages of each partition, in the order given."""
    groups: dict[Partition, list[RawMessage]] = {}
    for message in messages:
        groups.setdefault(Partition(message.topic, message.partition), []).append(message)
    return groups


Envelope = Literal["connect", "debezium", "cloudevents", "confluent"]
"""What a producer puts around a JSON object. connect: {schema, payload}; debezium: {before, after, op, …}, of which
`after` is the row; cloudevents: {specversion, data, …}; confluent: a byte 0 and a schema's number in four."""

BOM = b"\xef\xbb\xbf"


def framed(value: bytes) -> str:
    """Describe a value that is not a JSON object but begins like another known format; empty if unknown.

    >>> framed(b'\\0\\0\\0\\0\\7{"a": 1}').split(":")[0]
    '; codec'
    >>> framed(b'[{"a": 1}]'), framed(b"nonsense")
    ('; it is a JSON array, and a message is one object: send a message for each', '')
    """
    if (
        value[:4].replace(b"\0", b"") in (b"{", b"\xff\xfe", b"\xfe\xff", b"\xff\xfe{", b"\xfe\xff{")
        and b"\0" in value[:4]
    ):
        return "; it looks like UTF-16 or UTF-32, and messages are UTF-8"
    if value[:1] == b"\0" and value[5:].lstrip()[:1] == b"{":
        return "; codec: {unwrap: confluent} takes that off: it is JSON behind Confluent's byte 0 and schema number"
    if value[:1] == b"\0" and len(value) > 5:
        return "; it begins as Confluent's wire format with Avro, of which `codec: avro` reads topics"
    if value[:1] == b"[":
        return "; it is a JSON array, and a message is one object: send a message for each"
    with suppress(ValueError, RecursionError):
        text = value.decode()
        _, end = json.JSONDecoder().raw_decode(text)
        if text[end:].lstrip()[:1] == "{":
            return "; there are several JSON objects in it, and a message is one: send a message for each"
    return ""


def wrapped(record: Any) -> str:
    """Describe an object that lacks a column and looks like an envelope.

    >>> wrapped({"specversion": "1.0", "data": {}})
    '; it looks like an envelope of cloudevents: codec: {unwrap: cloudevents} takes what is inside'
    """
    envelope = envelope_of(record) if isinstance(record, dict) else None
    return (
        f"; it looks like an envelope of {envelope}: codec: {{unwrap: {envelope}}} takes what is inside"
        if envelope
        else ""
    )


def envelope_of(record: Mapping[str, Any]) -> Envelope | None:
    """Recognise the envelope of an object.

    >>> envelope_of({"op": "c", "before": None, "after": {"a": 1}, "ts_ms": 7}), envelope_of({"a": 1})
    ('debezium', None)
    """
    keys = record.keys()
    if keys == {"schema", "payload"}:
        payload = record["payload"]
        return "debezium" if isinstance(payload, dict) and {"op", "after"} <= payload.keys() else "connect"
    if {"op", "after"} <= keys:
        return "debezium"
    return "cloudevents" if "specversion" in keys and keys & {"data", "data_base64"} else None


def envelope_in(value: bytes) -> Envelope | None:
    """Recognise the envelope of a message's value.

    >>> [envelope_in(value) for value in (b'{"specversion": "1.0", "data": {}}', b'\\0\\0\\0\\0\\7{"a": 1}', b"{")]
    ['cloudevents', 'confluent', None]
    """
    if value[:1] == b"\0":
        return "confluent" if value[5:].lstrip()[:1] == b"{" else None
    with suppress(ValueError, RecursionError):
        record = json.loads(value.removeprefix(BOM))
        return envelope_of(record) if isinstance(record, dict) else None
    return None


def whole_keys(keys: Sequence[bytes | None]) -> bool | None:
    """Type of ids among the keys of messages: True for integers (in digits or in 8 bytes), False for texts, None if
    they are not ids: absent, JSON objects, other bytes.

    >>> whole_keys([b"1", b"-27"]), whole_keys([b"a", b"2"]), whole_keys([b"1", None]), whole_keys([b'{"id": 1}'])
    (True, False, None, None)
    """
    ids = [key for key in keys if key]
    if not ids or len(ids) < len(keys):
        return None
    try:
        texts = [key.decode() for key in ids]
    except UnicodeDecodeError:
        texts = ["\0"]
    if not all(text.isprintable() for text in texts):
        return True if {len(key) for key in ids} == {8} else None
    if any(text.startswith(("{", "[")) for text in texts):
        return None
    digits = [text.strip('"') for text in texts]
    return all(re.fullmatch("0|-?[1-9][0-9]{0,18}", each) and -(2**63) <= int(each) < 2**63 for each in digits)


def unwrapped(value: bytes, envelope: Envelope) -> bytes:
    """The JSON object inside an envelope. Raises ValueError, in words.

    >>> unwrapped(b'{"schema": {"type": "struct"}, "payload": {"a": 1}}', "connect")
    b'{"a": 1}'
    >>> unwrapped(b'{"op": "d", "before": {"a": 1}, "after": null}', "debezium")
    Traceback (most recent call last):
    ...
    ValueError: it is a deletion (Debezium's op is d), and holds no row
    """
    if envelope == "confluent":
        if value[:1] != b"\0" or len(value) < 6:
            raise ValueError("not Confluent's wire format: it begins with a byte 0 and a schema's number")
        return value[5:]
    try:
        record = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}{framed(value)}") from None
    actual = envelope_of(record) if isinstance(record, dict) else None
    if actual != envelope:
        what = f"it is of {actual}: codec: {{unwrap: {actual}}}" if actual else "it has not the keys of one"
        raise ValueError(f"not in an envelope of {envelope}; {what}")
    if envelope == "connect":
        inside = record["payload"]
    elif envelope == "debezium":
        payload = record.get("payload", record) if record.keys() == {"schema", "payload"} else record
        inside = payload["after"]
        if inside is None:
            raise ValueError(f"it is a deletion (Debezium's op is {payload['op']}), and holds no row")
    elif "data" in record:
        inside = record["data"]
    else:
        return base64.b64decode(record["data_base64"])
    return inside.encode() if isinstance(inside, str) else json.dumps(inside).encode()


def with_id_of_key(value: bytes, key: bytes | None, *, text: bool) -> bytes:
    """A JSON object with the message's key as its `impression_id`: a text, or an integer in digits or in 8 bytes.
    Raises ValueError, in words.

    >>> with_id_of_key(b'{"age": 3}', b"17", text=False), with_id_of_key(b'{"age": 3}', b'"a-7"', text=True)
    (b'{"age": 3, "impression_id": 17}', b'{"age": 3, "impression_id": "a-7"}')
    """
    if not key:
        raise ValueError("it has no key, which is to be its impression_id")
    try:
        text_id = json.loads(key) if key[:1] == b'"' else key.decode()
        number = None if text else int(text_id)
    except ValueError:
        if text or len(key) != 8:
            raise ValueError(f"its key {key[:40]!r} is no {'text' if text else 'whole number'}") from None
        text_id, number = "", int.from_bytes(key, "big", signed=True)
    try:
        record = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}{framed(value)}") from None
    if not isinstance(record, dict):
        raise ValueError(f"a JSON {type(record).__name__}, not an object")
    return json.dumps(record | {"impression_id": text_id if text else number}).encode()
