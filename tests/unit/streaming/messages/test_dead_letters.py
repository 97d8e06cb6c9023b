"""A dead letter keeps its reason, its origin and what it held."""

import json

from streaming.messages import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch, letters_to_json
from streaming.messages.dead_letters import PAYLOAD_LIMIT_BYTES


def letter(payload=b"{}", row=0):
    return DeadLetter("impression", "null:age", "ads", 2, 17, row, "`age` is null", payload)


def test_a_batch_of_letters_has_a_row_each():
    batch = letters_to_batch([letter(row=0), letter(row=1)])
    assert batch.schema.equals(DEAD_LETTER_SCHEMA)
    assert batch["source_row"].to_pylist() == [0, 1]


def test_no_letters_make_an_empty_batch():
    assert letters_to_batch([]).num_rows == 0
    assert letters_to_json([]) == []


def test_text_stays_readable_and_bytes_stay_exact():
    text, binary = map(json.loads, letters_to_json([letter(b'{"age": null}'), letter(b"\xff\x00")]))
    assert text["payload"] == '{"age": null}'
    assert binary["payload_base64"] == "/wA="
    assert (text["source_partition"], text["source_offset"]) == (2, 17)


def test_a_huge_payload_is_cut_and_its_length_told():
    huge = letter(b"x" * (PAYLOAD_LIMIT_BYTES + 5))
    row = letters_to_batch([huge]).to_pylist()[0]
    assert (len(row["payload"]), row["payload_bytes"]) == (PAYLOAD_LIMIT_BYTES, PAYLOAD_LIMIT_BYTES + 5)
    assert len(json.loads(letters_to_json([huge])[0])["payload"]) == PAYLOAD_LIMIT_BYTES
