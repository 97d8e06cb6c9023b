"""Values of other types than the declared ones are taken where they say the same."""

import json

import pyarrow as pa
import pytest

from streaming.messages.codecs import make_codec
from streaming.messages.ipc import write_ipc
from streaming.schema import Column, RowSchema, Task
from tests.support.streams.messages import GOOD, SCHEMA, as_arrow, changed, messages


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
def test_an_unsigned_id_beyond_int64_is_refused_and_its_digits_are_kept_as_text(name):
    ids = [1, 2**63 - 1, 2**64 - 1]
    rows = pa.Table.from_pylist([GOOD] * 3)
    arrow = write_ipc(rows.set_column(0, "impression_id", pa.array(ids, pa.uint64())).to_batches()[0])
    values = [arrow] if name == "arrow" else [json.dumps(GOOD | {"impression_id": id}).encode() for id in ids]
    batch, dead = make_codec(name, "impression", SCHEMA).decode(messages(values))
    assert [letter.reason for letter in dead] == ["out_of_range:impression_id"]
    assert batch["impression_id"].to_pylist() == [1, 2**63 - 1]


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


@pytest.mark.parametrize("codec", ["arrow", "json"])
def test_a_null_inside_a_list_of_ids_is_left_out(codec):
    schema = RowSchema(
        columns=[Column(name="tags", type="list<int64>"), Column(name="words", type="list<string>", nullable=True)],
        tasks=[Task(name="ctr", window_s=60)],
    )
    rows = [
        {"impression_id": n, "event_time_ms": 0, "vertical": "feed", "tags": tags, "words": words}
        for n, (tags, words) in enumerate([([1, None, 2], ["a", None]), ([None], None), ([], [])])
    ]
    table = pa.Table.from_pylist(rows)
    values = [write_ipc(table.to_batches()[0])] if codec == "arrow" else [json.dumps(row).encode() for row in rows]
    batch, dead = make_codec(codec, "impression", schema).decode(messages(values))
    assert dead == []
    assert batch["tags"].to_pylist() == [[1, 2], [], []]
    assert batch["words"].to_pylist() == [["a"], None, []]
