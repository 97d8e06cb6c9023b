"""A dead letter keeps its reason, its origin and what it held."""

import base64
import json

import pytest

from streaming.messages.dead_letters import (
    DEAD_LETTER_SCHEMA,
    PAYLOAD_LIMIT_BYTES,
    DeadLetter,
    letters_to_batch,
    letters_to_json,
)


def letter(payload=b"{}", row=0):
    return DeadLetter("impression", "null:age", "ads", 2, 17, row, "`age` is null", payload)


def messages(*letters, most_bytes=10**6):
    return [json.loads(text) for text in letters_to_json(letters_to_batch(letters), most_bytes)]


def test_a_batch_of_letters_has_a_row_each():
    batch = letters_to_batch([letter(row=0), letter(row=1)])
    assert batch.schema.equals(DEAD_LETTER_SCHEMA)
    assert batch["source_row"].to_pylist() == [0, 1]


def test_no_letters_make_an_empty_batch():
    assert letters_to_batch([]).num_rows == 0
    assert messages() == []


def test_text_stays_readable_and_bytes_stay_exact():
    text, binary = messages(letter(b'{"age": null}'), letter(b"\xff\x00"))
    assert text["payload"] == '{"age": null}'
    assert binary["payload_base64"] == "/wA="
    assert (text["source_partition"], text["source_offset"]) == (2, 17)


def test_a_huge_payload_is_cut_and_its_length_told():
    huge = letter(b"x" * (PAYLOAD_LIMIT_BYTES + 5))
    row = letters_to_batch([huge]).to_pylist()[0]
    assert (len(row["payload"]), row["payload_bytes"]) == (PAYLOAD_LIMIT_BYTES, PAYLOAD_LIMIT_BYTES + 5)
    (message,) = messages(huge)
    assert (len(message["payload"]), message["payload_bytes"]) == (PAYLOAD_LIMIT_BYTES, PAYLOAD_LIMIT_BYTES + 5)


@pytest.mark.parametrize("payload", [bytes(200_000), b"\xff" * 200_000, "é".encode() * 99_999 + b"xy"])
@pytest.mark.parametrize("most_bytes", [768, 10_000, 200_000])
def test_a_message_fits_whatever_json_makes_of_its_payload(payload, most_bytes):
    """A zero byte of text is six of JSON: a payload of 64 KiB would be 384."""
    batch = letters_to_batch([letter(payload)])
    (text,) = letters_to_json(batch, most_bytes)
    assert len(text) <= most_bytes
    message = json.loads(text)
    assert message["payload_bytes"] == 200_000
    kept = message.get("payload", "").encode() or base64.b64decode(message["payload_base64"])
    assert payload.startswith(kept)
    assert len(kept) > min(PAYLOAD_LIMIT_BYTES, most_bytes / 6) / 2 - 100


def test_a_long_sentence_is_cut_once_the_payload_is_gone():
    long = letter(b"{}")._replace(detail="\x00" * 2000)
    (message,) = messages(long, most_bytes=768)
    assert (message["payload"], message["reason"]) == ("", "null:age")
    assert 0 < len(message["detail"]) < 100


def test_a_character_cut_in_two_leaves_the_text_readable():
    (message,) = messages(letter(b"x" + "é".encode() * PAYLOAD_LIMIT_BYTES))
    assert message["payload"] == "x" + "é" * (PAYLOAD_LIMIT_BYTES // 2 - 1)
