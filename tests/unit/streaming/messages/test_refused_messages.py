"""What is wrong becomes one dead letter and harms nothing beside it."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.messages.codecs import make_codec
from tests.support.streams.messages import GOOD, SCHEMA, as_arrow, changed, impressions, messages

BAD_ROWS = {
    "missing_column:age": changed(age="absent"),
    "wrong_type:age": changed(age="old"),
    "null:age": changed(age=None),
    "out_of_range:age": changed(age=121),
    "not_finite:price": changed(price=float("nan")),
    "bad_vertical": changed(vertical=""),
    "null:vertical": changed(vertical=None),
    "bad_event_time": changed(event_time_ms=-1),
    "out_of_range:recent": changed(recent=[1, 2000]),
    "wrong_type:city": changed(city=5),
    "missing_column:impression_id": changed(impression_id="absent"),
}


@pytest.mark.parametrize("reason", BAD_ROWS)
def test_a_bad_json_message_is_one_dead_letter_and_its_neighbours_survive(reason):
    values = [json.dumps(row).encode() for row in (GOOD, BAD_ROWS[reason], GOOD)]
    batch, dead = make_codec("json", "impression", SCHEMA).decode(messages(values))
    assert [(letter.reason, letter.offset, letter.row) for letter in dead] == [(reason, 101, 0)]
    assert dead[0].payload == values[1]
    assert dead[0].kind == "impression"
    assert batch["source_offset"].to_pylist() == [100, 102]


@pytest.mark.parametrize("reason", [reason for reason in BAD_ROWS if not reason.startswith(("missing", "wrong"))])
def test_a_bad_row_of_a_micro_batch_is_one_dead_letter_and_its_neighbours_survive(reason):
    batch, dead = make_codec("arrow", "impression", SCHEMA).decode(messages([as_arrow([GOOD, BAD_ROWS[reason], GOOD])]))
    assert [(letter.reason, letter.topic, letter.partition, letter.offset, letter.row) for letter in dead] == [
        (reason, "ads", 0, 100, 1)
    ]
    assert json.loads(dead[0].payload)["impression_id"] == 1
    assert batch["source_row"].to_pylist() == [0, 2]


@pytest.mark.parametrize("reason", ["missing_column:age", "wrong_type:age", "wrong_type:city"])
def test_a_column_wrong_for_a_whole_micro_batch_refuses_each_of_its_rows(reason):
    values = [as_arrow([BAD_ROWS[reason]] * 3), as_arrow([GOOD] * 2)]
    batch, dead = make_codec("arrow", "impression", SCHEMA).decode(messages(values))
    assert [(letter.reason, letter.offset, letter.row) for letter in dead] == [(reason, 100, row) for row in range(3)]
    assert batch["source_offset"].to_pylist() == [101, 101]


def test_a_row_that_breaks_two_rules_is_one_dead_letter():
    values = [as_arrow([changed(age=500, vertical="", price=float("inf"))])]
    assert [letter.reason for letter in make_codec("arrow", "impression", SCHEMA).decode(messages(values)).dead] == [
        "bad_vertical"
    ]


@pytest.mark.parametrize("name", ["arrow", "json"])
@pytest.mark.parametrize("junk", [b"\x00\x01junk", b"[1, 2]", b'{"age": 3} {"age": 4}', b'{"a":', b"\xff\xfe", b" "])
def test_junk_is_undecodable(name, junk):
    codec = make_codec(name, "impression", SCHEMA)
    good = codec.encode(impressions(1))
    batch, dead = codec.decode(messages([*good, junk, *good]))
    assert [(letter.reason, letter.offset, letter.payload) for letter in dead] == [("undecodable", 101, junk)]
    assert batch["source_offset"].to_pylist() == [100, 102]


@pytest.mark.parametrize("name", ["arrow", "json", "avro"])
def test_a_message_without_a_value_is_a_tombstone_and_no_end(name):
    codec = make_codec(name, "impression", SCHEMA)
    _, [letter] = codec.decode(messages([b""]))
    assert (letter.reason, letter.offset, letter.payload) == ("tombstone", 100, b"")


def test_one_object_over_two_messages_cannot_shift_the_rows_after_it():
    pieces = [b'{"age": 1,', b'"x": 2}', b"{} {}", json.dumps(GOOD).encode()]
    batch, dead = make_codec("json", "impression", SCHEMA).decode(messages(pieces))
    assert [letter.offset for letter in dead] == [100, 101, 102]
    assert batch["source_offset"].to_pylist() == [103]


@given(
    st.lists(
        st.one_of(
            st.just(json.dumps(GOOD).encode()),
            st.text('{}[]":,1a \n', max_size=12).map(str.encode),
            st.binary(max_size=6),
            st.sampled_from(
                [json.dumps(row).encode() for row in (changed(age="absent"), changed(city=4), changed(age=-1))]
            ),
        ),
        max_size=12,
    )
)
@settings(max_examples=150, deadline=None)
def test_every_json_message_is_one_row_or_one_dead_letter_whatever_surrounds_it(values):
    batch, dead = make_codec("json", "impression", SCHEMA).decode(messages(values, start=0))
    good = [n for n, value in enumerate(values) if value == json.dumps(GOOD).encode()]
    assert batch["source_offset"].to_pylist() == good
    assert [letter.offset for letter in dead] == [n for n in range(len(values)) if n not in good]


def test_text_that_is_not_utf8_is_refused():
    text = json.dumps(GOOD).encode().replace(b"Ulm", b"\xff\xff")
    assert [letter.reason for letter in make_codec("json", "impression", SCHEMA).decode(messages([text])).dead] == [
        "undecodable"
    ]


def test_flipped_bytes_of_a_micro_batch_never_crash_and_lose_no_neighbour():
    codec = make_codec("arrow", "impression", SCHEMA)
    good = codec.encode(impressions(20))[0]
    generator = random.Random(5)
    for _ in range(300):
        corrupt = bytearray(good)
        for _ in range(generator.randint(1, 8)):
            corrupt[generator.randrange(len(corrupt))] = generator.randrange(256)
        batch, _ = codec.decode(messages([bytes(corrupt), good]))
        assert batch["source_offset"].to_pylist().count(101) == 20


def test_an_oversized_message_is_refused_unread():
    codec = make_codec("json", "impression", SCHEMA, max_message_bytes=200)
    batch, dead = codec.decode(messages([json.dumps(GOOD | {"x": "y" * 300}).encode(), json.dumps(GOOD).encode()]))
    assert [(letter.reason, letter.offset) for letter in dead] == [("oversized", 100)]
    assert "200" in dead[0].detail
    assert batch.num_rows == 1


def test_an_integer_too_large_for_64_bits_is_out_of_range():
    value = json.dumps(GOOD | {"impression_id": 2**70}).encode()
    dead = make_codec("json", "impression", SCHEMA).decode(messages([value])).dead
    assert [letter.reason for letter in dead] == ["out_of_range:impression_id"]


def test_feedback_of_an_unknown_task_is_a_feedback_dead_letter():
    rows = [{"impression_id": 1, "event_time_ms": 5, "task": task} for task in ("ctr", "like", "cvr")]
    batch, dead = make_codec("arrow", "feedback", SCHEMA).decode(messages([as_arrow(rows)]))
    assert [(letter.kind, letter.reason, letter.row) for letter in dead] == [("feedback", "unknown_task:like", 1)]
    assert batch["task"].to_pylist() == ["ctr", "cvr"]


@pytest.mark.parametrize("codec", ["arrow", "json"])
@pytest.mark.parametrize("task", [" ctr ", "ctr\n", "CTR", "unknown: ctr"])
def test_a_task_with_blanks_or_capitals_is_a_dead_letter_that_says_so(codec, task):
    rows = [{"impression_id": 1, "event_time_ms": 5, "task": each} for each in ("ctr", task)]
    values = [as_arrow(rows)] if codec == "arrow" else [json.dumps(row).encode() for row in rows]
    batch, (letter,) = make_codec(codec, "feedback", SCHEMA).decode(messages(values))
    assert letter.reason.startswith("unknown_task:")
    meant = "unknown:ctr" if ":" in task else "ctr"
    assert f"`task` is {task!r}; tasks: ctr, cvr: it is `{meant}` but for blanks or capitals" in letter.detail
    assert batch["task"].to_pylist() == ["ctr"]


def test_rare_bad_messages_among_many_are_found():
    good, bad = json.dumps(GOOD).encode(), json.dumps(changed(age="x")).encode()
    places = {3, 700, 701, 1999}
    values = [bad if n in places else good for n in range(2000)]
    batch, dead = make_codec("json", "impression", SCHEMA).decode(messages(values, start=0))
    assert {letter.offset for letter in dead} == places
    assert batch["source_offset"].to_pylist() == [n for n in range(2000) if n not in places]
