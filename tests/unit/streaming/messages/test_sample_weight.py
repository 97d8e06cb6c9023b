"""A column `sample_weight` says what a row counts: it is refused at the edge where it says nothing usable."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from streaming.messages.codecs import make_codec
from streaming.messages.message import RawMessage
from streaming.messages.validation import RowRules
from streaming.schema import Column, RowSchema, Task

SCHEMA = RowSchema(columns=[Column(name="sample_weight", type="float32")], tasks=[Task(name="ctr", window_s=60)])


def row(weight: object) -> dict[str, object]:
    return {"impression_id": 1, "event_time_ms": 0, "vertical": "feed", "sample_weight": weight}


@pytest.mark.parametrize("column", [{"type": "string"}, {"type": "list<float32>"}, {"nullable": True}])
def test_a_weight_is_a_float_of_every_row(column):
    with pytest.raises(ValidationError, match="it needs type float32, and a value in every row"):
        RowSchema(columns=[Column(name="sample_weight", **column)], tasks=[Task(name="ctr", window_s=60)])


@pytest.mark.parametrize("declared", [{}, {"type": "int64"}, {"type": "float32"}])
def test_whole_weights_are_read_as_floats(declared):
    schema = RowSchema(columns=[Column(name="sample_weight", **declared)], tasks=[Task(name="ctr", window_s=60)])
    columns = {"impression_id": [1, 2], "event_time_ms": [0, 0], "vertical": ["feed", "feed"], "sample_weight": [1, 4]}
    batch, refusals = RowRules("impression", schema).conform(pa.table(columns))
    assert (refusals, batch["sample_weight"]) == ({}, pa.array([1, 4], pa.float32()))


@pytest.mark.parametrize("weight", [0.0, -0.0, 1e-9, 0.25, 3e38])
def test_any_finite_weight_from_0_on_is_let_in(weight):
    assert RowRules("impression", SCHEMA).check(pa.RecordBatch.from_pylist([row(weight)], SCHEMA.impression)) == {}


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        ("-0.5", "out_of_range:sample_weight"),
        ("-1e300", "not_finite:sample_weight"),
        ("1e300", "not_finite:sample_weight"),  # beyond what a float32 holds
        ("NaN", "not_finite:sample_weight"),
        ("null", "null:sample_weight"),
        ('"2"', "wrong_type:sample_weight"),
    ],
)
def test_a_bad_weight_is_a_dead_letter_with_its_reason_and_its_neighbours_survive(weight, reason):
    value = '{"impression_id": 1, "event_time_ms": 3, "vertical": "feed", "sample_weight": %s}'
    values = [(value % text).encode() for text in ("2", weight, "0.5")]
    messages = [RawMessage("impressions", 0, at, at, None, text) for at, text in enumerate(values)]
    rows, dead = make_codec("json", "impression", SCHEMA).decode(messages)
    assert [letter.reason for letter in dead] == [reason]
    assert rows["sample_weight"].to_pylist() == [2, 0.5]


def test_what_is_allowed_is_said():
    (refusal,) = (
        RowRules("impression", SCHEMA).check(pa.RecordBatch.from_pylist([row(-1.0)], SCHEMA.impression)).values()
    )
    assert refusal.detail == "`sample_weight` is -1.0; allowed: at least 0"


def test_other_floats_may_be_below_0():
    schema = RowSchema(columns=(Column(name="bid", type="float32"),), tasks=SCHEMA.tasks)
    below = pa.RecordBatch.from_pylist([{**row(0.0), "bid": -1.0}], schema.impression)
    assert RowRules("impression", schema).check(below) == {}
