"""What no table, message or model can hold is a dead letter that says what is allowed."""

import pyarrow as pa
import pytest

from streaming.messages.codecs import make_codec
from streaming.messages.limits import Limits
from streaming.messages.message import RawMessage
from streaming.schema import Column, RowSchema, Task
from tests.support.streams.messages import GOOD, SCHEMA


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
    batch, dead = decoded_with(Limits(), rows, codec, RowSchema(columns=tuple(declared), tasks=SCHEMA.tasks))
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


VECTORS = RowSchema(
    columns=[Column(name="v", type="list<float32>", length=3, nullable=True)], tasks=[Task(name="ctr", window_s=60)]
)


@pytest.mark.parametrize("codec", ["arrow", "json"])
def test_a_list_of_floats_has_the_length_that_is_declared_and_finite_values(codec):
    row = {"impression_id": 1, "event_time_ms": 5, "vertical": "feed"}
    lists = [[1, 2.5, 3], None, [1.0, 2.0], [1.0, float("inf"), 2.0], [1.0, None, 2.0], [3e38, 0.0, 0.0]]
    limits = Limits(ranges={"v": (-(2.0**24), 2.0**24)})
    batch, dead = decoded_with(limits, [row | {"v": values} for values in lists], codec, VECTORS)
    assert batch["v"].to_pylist() == [[1.0, 2.5, 3.0], None]
    reasons = sorted(letter.reason for letter in dead)
    assert reasons == ["not_finite:v", "null:v", "out_of_range:v", "wrong_length:v"]
    (said,) = [letter.detail for letter in dead if letter.reason == "wrong_length:v"]
    assert said == "`v` is [1.0, 2.0]; a list of 3 values is needed"
