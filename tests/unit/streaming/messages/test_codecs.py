"""What goes into a topic comes out the same; what is wrong becomes one dead letter and harms nothing beside it."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import StreamingError
from streaming.messages import END_HEADER, ExamplesCodec, Limits, RawMessage, by_partition, is_end_marker, make_codec
from streaming.messages.ipc import read_ipc, write_ipc
from streaming.schema import Column, RowSchema, Task

SCHEMA = RowSchema(
    columns=(
        Column(name="age", minimum=0, maximum=120),
        Column(name="city", type="string", nullable=True),
        Column(name="price", type="float32"),
        Column(name="recent", type="list<int64>", maximum=1000),
    ),
    tasks=(Task(name="ctr", window_s=60), Task(name="cvr", window_s=3600, given="ctr")),
)
GOOD = {
    "impression_id": 1,
    "event_time_ms": 1000,
    "vertical": "feed",
    "age": 30,
    "city": "Ulm",
    "price": 1.5,
    "recent": [1, 2],
}


def impressions(count):
    rows = [
        GOOD | {"impression_id": n, "recent": list(range(n % 4)), "city": None if n % 3 else "Köln"}
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA.impression)


def messages(values, partition=0, start=100):
    return [RawMessage("ads", partition, start + n, 5000 + n, None, value) for n, value in enumerate(values)]


def changed(**changes):
    return {name: value for name, value in (GOOD | changes).items() if value != "absent"}


def as_arrow(records):
    """A micro-batch whose column types are whatever its rows suggest."""
    return write_ipc(pa.RecordBatch.from_pylist(records))


@pytest.mark.parametrize("name", ["arrow", "json"])
def test_rows_come_back_as_they_went_in_with_their_origin(name):
    codec = make_codec(name, "impression", SCHEMA)
    batch = impressions(7)
    decoded, dead = codec.decode(messages(codec.encode(batch)))
    assert dead == []
    assert decoded.schema.equals(codec.schema)
    assert decoded.select(SCHEMA.impression.names).to_pylist() == batch.to_pylist()
    offsets, rows = ([100] * 7, list(range(7))) if name == "arrow" else (list(range(100, 107)), [0] * 7)
    assert decoded["source_offset"].to_pylist() == offsets
    assert decoded["source_row"].to_pylist() == rows
    assert set(decoded["source_topic"].to_pylist()) == {"ads"}
    assert decoded["record_time_ms"].to_pylist() == [4900 + offset for offset in offsets]


def test_arrow_and_json_decode_to_equal_rows():
    arrow, as_json = (make_codec(name, "impression", SCHEMA) for name in ("arrow", "json"))
    batch = impressions(50)
    one, two = (codec.decode(messages(codec.encode(batch))).batch for codec in (arrow, as_json))
    names = SCHEMA.impression.names
    assert one.select(names).equals(two.select(names))


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.lists(st.integers(-(2**63), 1000), max_size=4),
        ),
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_value_survives_both_codecs(rows):
    records = [GOOD | {"impression_id": i, "city": c, "price": p, "recent": r} for i, c, p, r in rows]
    batch = pa.RecordBatch.from_pylist(records, SCHEMA.impression)
    for name in ("arrow", "json"):
        codec = make_codec(name, "impression", SCHEMA)
        decoded, dead = codec.decode(messages(codec.encode(batch)))
        assert dead == []
        assert decoded.select(SCHEMA.impression.names).to_pylist() == batch.to_pylist()


def test_string_ids_are_kept_as_strings():
    schema = SCHEMA.model_copy(update={"impression_id": "string"})
    codec = make_codec("json", "feedback", schema)
    values = [
        b'{"impression_id": "a-1", "event_time_ms": 3, "task": "ctr"}',
        b'{"impression_id": 1, "event_time_ms": 3, "task": "ctr"}',
    ]
    batch, dead = codec.decode(messages(values))
    assert batch["impression_id"].to_pylist() == ["a-1"]
    assert [letter.reason for letter in dead] == ["wrong_type:impression_id"]


BAD_ROWS = {
    "missing_column:age": changed(age="absent"),
    "wrong_type:age": changed(age="old"),
    "null:age": changed(age=None),
    "out_of_range:age": changed(age=121),
    "not_finite:price": changed(price=float("nan")),
    "bad_vertical": changed(vertical=""),
    "null:vertical": changed(vertical=None),
    "bad_event_time": changed(event_time_ms=-1),
    "null:recent": changed(recent=[1, None]),
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


@pytest.mark.parametrize(
    "column_type", [pa.int8(), pa.uint16(), pa.int32(), pa.dictionary(pa.int8(), pa.int32()), pa.float64()]
)
def test_integers_of_other_widths_are_taken(column_type):
    table = pa.table(pa.Table.from_pylist([GOOD] * 2))
    ages = pa.array([30, 31], column_type)
    value = write_ipc(table.set_column(3, "age", ages).to_batches()[0])
    batch, dead = make_codec("arrow", "impression", SCHEMA).decode(messages([value]))
    assert dead == []
    assert batch["age"].to_pylist() == [30, 31]


@pytest.mark.parametrize("column_type", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_strings_of_other_layouts_are_taken(column_type):
    table = pa.Table.from_pylist([GOOD] * 2)
    cities = pa.array(["Ulm", None]).cast(column_type)
    value = write_ipc(table.set_column(4, "city", cities).to_batches()[0])
    batch, dead = make_codec("arrow", "impression", SCHEMA).decode(messages([value]))
    assert dead == []
    assert batch["city"].to_pylist() == ["Ulm", None]


@pytest.mark.parametrize("name", ["arrow", "json"])
def test_an_unsigned_id_beyond_int64_keeps_its_64_bits(name):
    ids = [1, 2**63, 2**64 - 1]
    rows = pa.Table.from_pylist([GOOD] * 3)
    arrow = write_ipc(rows.set_column(0, "impression_id", pa.array(ids, pa.uint64())).to_batches()[0])
    values = [arrow] if name == "arrow" else [json.dumps(GOOD | {"impression_id": id}).encode() for id in ids]
    batch, dead = make_codec(name, "impression", SCHEMA).decode(messages(values))
    assert dead == []
    assert batch["impression_id"].to_pylist() == [1, -(2**63), -1]


@pytest.mark.parametrize("name", ["arrow", "json"])
@pytest.mark.parametrize(
    ("at", "ms"), [("2026-11-22T18:00:00.5Z", 1_795_370_400_500), ("2026-11-22 20:00+02:00", 1_795_370_400_000)]
)
def test_a_time_in_text_is_its_milliseconds(name, at, ms):
    record = GOOD | {"event_time_ms": at}
    value = as_arrow([record]) if name == "arrow" else json.dumps(record).encode()
    batch, dead = make_codec(name, "impression", SCHEMA).decode(messages([value]))
    assert (batch["event_time_ms"].to_pylist(), dead) == ([ms], [])


def test_timestamps_are_milliseconds_in_arrow_messages():
    rows = pa.Table.from_pylist([GOOD]).set_column(1, "event_time_ms", pa.array([7_000_999], pa.timestamp("us", "UTC")))
    batch, dead = make_codec("arrow", "impression", SCHEMA).decode(messages([write_ipc(rows.to_batches()[0])]))
    assert (batch["event_time_ms"].to_pylist(), dead) == ([7000], [])


@pytest.mark.parametrize("name", ["arrow", "json"])
def test_true_and_false_are_1_and_0(name):
    record = GOOD | {"age": True, "recent": [True, False]}
    value = as_arrow([record]) if name == "arrow" else json.dumps(record).encode()
    batch, dead = make_codec(name, "impression", SCHEMA).decode(messages([value]))
    assert (batch["age"].to_pylist(), batch["recent"].to_pylist(), dead) == ([1], [[1, 0]], [])


@pytest.mark.parametrize("name", ["arrow", "json"])
def test_nan_is_null_where_the_column_is_nullable_and_refused_with_the_way_out_where_it_is_not(name):
    record = GOOD | {"price": float("nan")}
    value = as_arrow([record]) if name == "arrow" else json.dumps(record).encode()
    columns = [c.model_copy(update={"nullable": c.nullable or c.name == "price"}) for c in SCHEMA.columns]
    nullable = RowSchema(columns=columns, tasks=SCHEMA.tasks)
    batch, dead = make_codec(name, "impression", nullable).decode(messages([value]))
    assert (batch["price"].to_pylist(), dead) == ([None], [])
    (letter,) = make_codec(name, "impression", SCHEMA).decode(messages([value])).dead
    assert letter.reason == "not_finite:price"
    assert letter.detail.endswith(
        "declare it `nullable: true`, and such rows are kept (null in the lake, 0 to the models)"
    )


def test_a_row_without_a_float_says_how_it_could_be_kept():
    value = json.dumps(GOOD | {"price": None}).encode()
    (letter,) = make_codec("json", "impression", SCHEMA).decode(messages([value])).dead
    assert (letter.reason, letter.detail) == (
        "null:price",
        "`price` is None; the column is not nullable: declare it `nullable: true`, and such rows are kept (null in the "
        "lake, 0 to the models)",
    )


def test_one_value_in_another_form_changes_none_of_those_read_with_it():
    records = [GOOD | {"impression_id": n} for n in range(5)]
    records[2] |= {"event_time_ms": "1970-01-01T00:00:01Z", "city": "K\u00f6ln", "unnamed": {"deep": [1]}}
    values = [json.dumps(record).encode() for record in records]
    together, dead = make_codec("json", "impression", SCHEMA).decode(messages(values))
    alone = [
        make_codec("json", "impression", SCHEMA).decode(messages([v], start=100 + n)) for n, v in enumerate(values)
    ]
    assert dead == []
    assert [row | {"record_time_ms": 0} for row in together.to_pylist()] == [
        row | {"record_time_ms": 0} for batch, _ in alone for row in batch.to_pylist()
    ]
    assert together["event_time_ms"].to_pylist() == [1000] * 5


def test_feedback_may_say_that_a_label_is_unknown():
    value = b'{"impression_id": 5, "event_time_ms": 9, "task": "unknown:cvr"}'
    batch, dead = make_codec("json", "feedback", SCHEMA).decode(messages([value]))
    assert (batch["task"].to_pylist(), dead) == (["unknown:cvr"], [])


def test_unknown_columns_are_dropped_and_absent_nullable_ones_are_null():
    row = changed(city="absent") | {"debug": {"deep": [1]}}
    for name, value in (("json", json.dumps(row).encode()), ("arrow", as_arrow([row]))):
        batch, dead = make_codec(name, "impression", SCHEMA).decode(messages([value]))
        assert dead == []
        assert batch.schema.names[:7] == SCHEMA.impression.names
        assert batch["city"].to_pylist() == [None]


@pytest.mark.parametrize("name", ["arrow", "json"])
@pytest.mark.parametrize(
    "junk", [b"", b"\x00\x01junk", b"[1, 2]", b'{"age": 3} {"age": 4}', b'{"a":', b"\xff\xfe", b" "]
)
def test_junk_is_undecodable(name, junk):
    codec = make_codec(name, "impression", SCHEMA)
    good = codec.encode(impressions(1))
    batch, dead = codec.decode(messages([*good, junk, *good]))
    assert [(letter.reason, letter.offset, letter.payload) for letter in dead] == [("undecodable", 101, junk)]
    assert batch["source_offset"].to_pylist() == [100, 102]


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


@pytest.mark.parametrize("name", ["arrow", "json"])
def test_end_markers_are_passed_over(name):
    codec = make_codec(name, "impression", SCHEMA)
    end = RawMessage("ads", 0, 9, 1, None, b"", ((END_HEADER, b"1"),))
    assert is_end_marker(end)
    batch, dead = codec.decode([end])
    assert (batch.num_rows, dead) == (0, [])
    assert batch.schema.equals(codec.schema)


def test_rare_bad_messages_among_many_are_found():
    good, bad = json.dumps(GOOD).encode(), json.dumps(changed(age="x")).encode()
    places = {3, 700, 701, 1999}
    values = [bad if n in places else good for n in range(2000)]
    batch, dead = make_codec("json", "impression", SCHEMA).decode(messages(values, start=0))
    assert {letter.offset for letter in dead} == places
    assert batch["source_offset"].to_pylist() == [n for n in range(2000) if n not in places]


def test_messages_are_grouped_by_partition_in_order():
    mixed = [m for pair in zip(messages([b"a", b"b"], 0), messages([b"c", b"d"], 1), strict=True) for m in pair]
    assert {tuple(key): [m.value for m in group] for key, group in by_partition(mixed).items()} == {
        ("ads", 0): [b"a", b"b"],
        ("ads", 1): [b"c", b"d"],
    }


def augmented(count):
    batch = pa.Table.from_arrays(
        [
            pa.array(np.arange(count) % 100).cast(f.type) if pa.types.is_integer(f.type) else pa.nulls(count, f.type)
            for f in SCHEMA.augmented
        ],
        schema=SCHEMA.augmented,
    )
    return batch.combine_chunks().to_batches()[0]


def test_examples_are_split_where_a_message_would_be_too_large():
    codec = ExamplesCodec(SCHEMA)
    batch = augmented(400)
    limit = len(write_ipc(batch)) // 3
    parts = codec.encode(batch, limit)
    assert len(parts) > 2
    assert max(map(len, parts)) <= limit
    back = pa.concat_batches([codec.decode(message) for message in messages(parts)])
    assert back.equals(batch)


def test_an_empty_slice_of_examples_is_still_one_message():
    codec = ExamplesCodec(SCHEMA)
    (value,) = codec.encode(augmented(4).slice(0, 0))
    assert codec.decode(messages([value])[0]).num_rows == 0


def test_a_corrupt_or_foreign_example_is_an_error_that_names_it():
    codec = ExamplesCodec(SCHEMA)
    with pytest.raises(StreamingError, match="message 100 of topic `ads`"):
        codec.decode(messages([b"junk"])[0])
    with pytest.raises(StreamingError, match="another schema"):
        codec.decode(messages([write_ipc(impressions(1))])[0])
    with pytest.raises(StreamingError, match="may have 10;"):
        codec.encode(augmented(1), 10)


def test_ipc_of_no_bytes_is_a_value_error():
    with pytest.raises(ValueError, match=r"empty|Empty|null"):
        read_ipc(b"")


@pytest.mark.parametrize("codec", ["arrow", "json"])
def test_what_a_table_or_a_message_cannot_hold_is_a_dead_letter(codec):
    limits = Limits({"age": 100, "recent": 50}, row_bytes=400)
    decoder = make_codec(codec, "impression", SCHEMA, limits=limits)
    changes = [
        {"age": 99},
        {"age": 100},
        {"recent": [49, 50]},
        {"recent": [-1]},
        {"recent": [1] * 50},
        {"city": "x" * 391},
    ]
    rows = [GOOD | {"recent": [1]} | change for change in changes]
    values = decoder.encode(pa.RecordBatch.from_pylist(rows, SCHEMA.impression))
    batch, dead = decoder.decode([RawMessage("ads", 0, n, 10, None, value) for n, value in enumerate(values)])
    assert batch["age"].to_pylist() == [99]
    reasons = ["out_of_range:age", "out_of_range:recent", "out_of_range:recent", "row_too_large", "row_too_large"]
    assert [letter.reason for letter in dead] == reasons
    assert dead[0].detail == "`age` is 100; allowed: 0 to 99"
    assert "407 bytes" in dead[3].detail


def decoded_with(limits, rows, codec, schema=SCHEMA):
    decoder = make_codec(codec, "impression", schema, limits=limits)
    values = decoder.encode(pa.RecordBatch.from_pylist(rows, schema.impression))
    return decoder.decode([RawMessage("ads", 0, n, 10, None, value) for n, value in enumerate(values)])


@pytest.mark.parametrize("codec", ["arrow", "json"])
def test_a_number_that_no_model_can_bear_is_a_dead_letter(codec):
    limits = Limits(ranges={"price": (-(2.0**24), 2.0**24), "age": (-0.5, 99.5)})
    changes = [{"price": 2.0**24}, {"price": 3e38}, {"price": -1e9}, {"age": 99}, {"age": 100}]
    batch, dead = decoded_with(limits, [GOOD | change for change in changes], codec)
    assert batch["price"].to_pylist() == [2.0**24, GOOD["price"]]
    assert [letter.reason for letter in dead] == ["out_of_range:price", "out_of_range:price", "out_of_range:age"]
    assert dead[1].detail == "`price` is -1000000000.0; allowed: -16777216 to 16777216"
    assert dead[2].detail == "`age` is 100; allowed: 0 to 99"


@pytest.mark.parametrize("codec", ["arrow", "json"])
def test_a_list_longer_than_declared_or_than_a_row_can_carry_is_a_dead_letter_of_its_column(codec):
    declared = [c.model_copy(update={"max_length": 3} if c.name == "recent" else {}) for c in SCHEMA.columns]
    rows = [GOOD | {"recent": [7] * count} for count in (3, 4, 60)]
    batch, dead = decoded_with(Limits(), rows, codec, SCHEMA.model_copy(update={"columns": tuple(declared)}))
    assert batch.num_rows == 1
    assert [letter.reason for letter in dead] == ["too_long:recent", "too_long:recent"]
    assert dead[0].detail == "`recent` is [7, 7, 7, 7]; a list of at most 3 values is allowed"
    batch, dead = decoded_with(Limits(row_bytes=400), rows, codec)
    assert batch.num_rows == 2
    assert [letter.reason for letter in dead] == ["too_long:recent"]


def test_bounds_of_a_column_of_floats_are_kept_and_narrowed_by_what_a_model_can_bear():
    column = Column(name="score", type="float32", minimum=0.5, maximum=1e30)
    schema = RowSchema(columns=[column], tasks=[Task(name="ctr", window_s=60)])
    rows = [{"impression_id": 1, "event_time_ms": 5, "vertical": "a", "score": score} for score in (0.4, 0.5, 1e20)]
    batch, dead = decoded_with(Limits(ranges={"score": (-1e6, 1e6)}), rows, "arrow", schema)
    assert batch["score"].to_pylist() == [0.5]
    assert [letter.detail.partition("; ")[2] for letter in dead] == ["allowed: 0.5 to 1000000"] * 2
    assert [letter.reason for letter in dead] == ["out_of_range:score"] * 2


def test_only_lists_have_a_longest():
    with pytest.raises(ValueError, match="`max_length` is for lists"):
        Column(name="age", max_length=3)
