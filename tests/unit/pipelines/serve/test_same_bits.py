"""What is quick is what it was, to the bit: tables looked up in place, whole columns of one kind at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from pipelines.served_rows import checked_columns, serving_rules
from streaming.schema import Column, RowSchema, Task
from tests.support.models.collections import embedding_bags, fused

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="ad", rows=50),
        SparseFeature(name="tags", rows=30, width=8),
        SparseFeature(name="words", rows=20),
    ],
    sequence=[SequenceFeature(name="seen", rows=40, length=3, units=1)],
)


def rows(count: int, random: np.random.Generator, *, lists: bool) -> pa.Table:
    def many() -> pa.Array:
        values = [random.integers(0, 99, random.integers(0, 4) if lists else 1).tolist() for _ in range(count)]
        return pa.array(values, pa.list_(pa.int64()))

    ads = pa.array(random.integers(0, 99, count), pa.int64())
    return pa.table({"ad": ads, "tags": many(), "words": many(), "seen": many()})


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 100, 129])
def test_tables_looked_up_in_place_give_the_bits_of_the_collection(count, lists):
    features = FEATURES if lists else FeatureSet(sparse=FEATURES.sparse)
    tables, collection = fused(features, 4, seed=3).export(), embedding_bags(features, 4, seed=3)
    batch = BatchBuilder(features, ["ctr"])(rows(count, np.random.default_rng(count), lists=lists))
    with torch.inference_mode():
        found, whole = tables.lookup(batch.sparse).pooled, collection(batch.sparse).values()
    assert found.shape == whole.shape
    assert np.array_equal(found.numpy().view(np.int32), whole.numpy().view(np.int32))


SCHEMA = RowSchema(
    columns=[
        Column(name="other"),
        Column(name="id", minimum=-5, maximum=2**62),
        Column(name="may", nullable=True),
        Column(name="bid", type="float32", minimum=0.1, maximum=9.0),
        Column(name="age", type="float32", nullable=True),
        Column(name="note", type="string"),
        Column(name="tags", type="list<int64>"),
    ],
    tasks=[Task(name="ctr", window_s=60)],
)
NAMES = [column.name for column in SCHEMA.columns[1:]]
ODD = [
    None, True, 0, 1, -1, -6, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 0.0, -0.0, 0.1, 1.0, 0.5, 9.0, 1e300,
    2.0**62, float("nan"), float("inf"), "x", "", "\ud800", "7", [], [1], [1.0], [1.5], [None], ["x"], [2**64], {},
    {"a": 1},
]  # fmt: skip


OTHERS = {"other": 1}


def checked(values: list, name: str):
    rules = serving_rules(SCHEMA, _reading(name))
    batch, refusals = checked_columns({name: values}, OTHERS, len(values), rules)
    return batch.column(name), refusals


def _reading(name: str) -> FeatureSet:
    if name in ("bid", "age"):
        return FeatureSet(sparse=[SparseFeature(name="other", rows=9)], dense=[DenseFeature(name=name)])
    return FeatureSet(sparse=[SparseFeature(name=name, rows=9)])


def bits(column: pa.Array) -> list[bytes]:
    return [repr(value).encode() for value in column.to_pylist()]


@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_many_kinds_is_what_each_of_its_values_is_alone(name):
    random = np.random.default_rng(len(name))
    alone = [checked([value], name) for value in ODD]
    for _ in range(60):
        chosen = random.integers(0, len(ODD), random.integers(2, 40)).tolist()
        column, refusals = checked([ODD[n] for n in chosen], name)
        assert {place: ODD[chosen[place]] for place in refusals} == {
            p: ODD[n] for p, n in enumerate(chosen) if alone[n][1]
        }
        for place, n in enumerate(chosen):
            if place in refusals:
                assert refusals[place].reason == alone[n][1][0].reason
            else:
                assert bits(column.slice(place, 1)) == bits(alone[n][0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "values",
    [
        [1, 2**40, -5, 0],
        [0.25, 0.1, 9.0, 1e-40],
        [0.1, float("nan")],
        ["x", "é"],
        [True, False],
        [None, 3],
        [None, 0.3],
    ],
)
def test_a_list_is_taken_as_the_same_arrow_column_is(name, values):
    """A null among values of a kind that the column cannot have stays a null here: Arrow gives it their type."""
    if None in values and name in ("note", "tags"):
        values = [value for value in values if value is not None]
    rules = serving_rules(SCHEMA, _reading(name))
    arrow = pa.chunked_array([pa.array(values)])
    listed, arrived = (checked_columns({name: given}, OTHERS, len(values), rules) for given in (values, arrow))
    assert bits(listed[0].column(name)) == bits(arrived[0].column(name))
    assert listed[1] == arrived[1]


def test_a_shared_value_is_what_it_is_in_every_row():
    for name in NAMES:
        for value in ODD:
            rules = serving_rules(SCHEMA, _reading(name))
            shared = checked_columns({}, OTHERS | {name: value}, 3, rules)
            repeated = checked_columns({name: [value] * 3}, OTHERS, 3, rules)
            assert bits(shared[0].column(name)) == bits(repeated[0].column(name))
            assert shared[1] == repeated[1]


@pytest.mark.parametrize("values", [[[], []], [[], [3]], pa.chunked_array([pa.array([[], []])])])
def test_an_empty_list_is_a_list(values):
    rules = serving_rules(SCHEMA, _reading("tags"))
    batch, refusals = checked_columns({"tags": values}, {}, 2, rules)
    assert not refusals
    assert batch["tags"].to_pylist()[0] == []
