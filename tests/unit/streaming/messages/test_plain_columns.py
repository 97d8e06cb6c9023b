"""Columns looked at together are refused for what each is refused for alone, in the same words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.messages.limits import Limits, PlainColumns
from streaming.messages.validation import RowRules, conform
from streaming.schema import Column, RowSchema, Task

TASKS = [Task(name="ctr", window_s=60)]
WHOLE = [0, 1, -1, 5, 6, 2**53 + 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 5.0, 5.5, float("nan"), float("inf"), -float("inf"), 3e38]
BOUNDS: list[dict[str, Any]] = [{}, {"minimum": 0}, {"maximum": 5}, {"minimum": -1, "maximum": 2**53}]


@st.composite
def rules_and_rows(draw: st.DrawFn) -> tuple[RowRules, pa.Table]:
    count = draw(st.sampled_from([0, 1, 3, 30]))
    columns, arrays = [], {}
    for n, kind in enumerate(
        draw(st.lists(st.sampled_from(["int64", "float32", "string", "list<int64>"]), max_size=6))
    ):
        bounds = {} if kind == "string" else draw(st.sampled_from(BOUNDS))
        columns.append(Column(name=f"c{n}", type=kind, nullable=draw(st.booleans()), **bounds))
        values = {"int64": st.sampled_from(WHOLE), "float32": st.sampled_from(FLOATS), "string": st.just("a")}.get(
            kind, st.lists(st.sampled_from(WHOLE), max_size=3)
        )
        mild = {"int64": st.just(1), "float32": st.just(1.0)}.get(kind, values)
        some = draw(st.sampled_from([mild, mild, values, st.none() | mild]))
        arrays[f"c{n}"] = pa.array(draw(st.lists(some, min_size=count, max_size=count)), columns[-1].arrow_type)
    times = st.sampled_from([0, 10**12]) | (st.sampled_from([-1, 10**15]) if draw(st.booleans()) else st.just(7))
    whole = {
        "impression_id": pa.array(range(count), pa.int64()),
        "event_time_ms": pa.array(draw(st.lists(times, min_size=count, max_size=count)), pa.int64()),
        "vertical": pa.array(["feed"] * count, pa.string()),
    }
    limits = Limits({"c0": 6}, {"c1": (-4.5, 5.25)})
    return RowRules("impression", RowSchema(columns=columns, tasks=TASKS), limits=limits), pa.table(whole | arrays)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rules_and_rows(), st.integers(0, 30), st.booleans())
def test_columns_are_judged_together_as_each_alone(given_: tuple[RowRules, pa.Table], start: int, exact: bool) -> None:
    rules, table = given_
    table = table.slice(min(start, len(table)))
    batch, refusals = conform(table, rules.schema)
    at_once = rules.conform(pa.table(table.columns, schema=rules.schema) if exact else table)
    assert at_once[0].schema == rules.schema
    assert repr(at_once[0].to_pylist()) == repr(batch.to_pylist())  # NaN is not itself
    assert at_once[1] == refusals
    together = rules.check(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainColumns, "suspects", lambda self, batch: range(batch.num_columns))
        alone = rules.check(batch)
    assert list(together.items()) == list(alone.items())


def test_columns_that_are_as_they_should_be_are_not_looked_at_again() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64()), ("x", pa.float32())])
    plain = PlainColumns(schema, {"a": (0, 9), "x": (None, 1.5)})
    rows = {"a": [0, 9], "b": [-(2**63), 2**63 - 1], "x": np.array([-3e38, 1.5], np.float32)}
    assert plain.suspects(pa.record_batch(rows, schema)) == []
    assert plain.suspects(pa.record_batch(rows | {"b": [1, None]}, schema)) == [1]
    assert plain.suspects(pa.record_batch(rows | {"a": [1, 10]}, schema)) == [0]
    assert plain.suspects(pa.record_batch(rows | {"x": np.array([0, np.nan], np.float32)}, schema)) == [2]
