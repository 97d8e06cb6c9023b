"""The same rows make the same tensors, to the bit, in training, in replay and in serving: whatever columns and features
there are, however the rows are cut, and in every form in which they can be asked about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exfm.features.as_served import AsServed
from exfm.features.batch import Batch, BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.feature_cache import FeatureCache
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.features.statistics import Statistics
from pipelines.serve.prediction_request import ARROW, JSON, parse_request
from pipelines.served_rows import checked, checked_columns, serving_rules
from streaming.messages.codecs import make_codec
from streaming.messages.ipc import write_ipc
from streaming.messages.limits import Limits
from streaming.messages.message import RawMessage
from streaming.schema import Column, RowSchema, Task

TASKS = [Task(name="ctr", window_s=60)]
ROWS = 40
WORDS = ["", "a", "reise", "новый", 'say "b"', "x" * 40]
LENGTH = 3


@dataclass
class World:
    """A row schema, rows of it, and features of the rows."""

    schema: RowSchema
    rows: pa.Table
    features: FeatureSet


@st.composite
def worlds(draw: st.DrawFn) -> World:
    kinds = ["int64", "string", "float32", "list<int64>", "list<string>", "list<float32>"]
    columns = [Column(name="id")]
    for n, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=7))):
        length = {"length": LENGTH} if kind == "list<float32>" else {}
        columns.append(Column(name=f"c{n}", type=kind, nullable=draw(st.booleans()), **length))
    schema = RowSchema(columns=columns, tasks=TASKS)
    return World(schema, rows_of(schema, draw(st.integers(0, 2**32))), features_of(draw, columns))


def features_of(draw: st.DrawFn, columns: list[Column]) -> FeatureSet:
    kinds: dict[str, list[Any]] = {"sparse": [SparseFeature(name="id", rows=50)], "dense": [], "sequence": []}
    for column in columns:
        for feature in draw(st.lists(st.sampled_from(possible(column)), max_size=3, unique_by=lambda f: f.name)):
            kinds[{SparseFeature: "sparse", DenseFeature: "dense"}.get(type(feature), "sequence")].append(feature)
    plain = [column.name for column in columns if column.type in ("int64", "string")]
    if draw(st.booleans()):
        crossed = draw(st.lists(st.sampled_from(plain), min_size=2, max_size=3))
        kinds["sparse"].append(SparseFeature(name="cross", columns=crossed, rows=70))
    offset = draw(st.sampled_from(["+00:00", "+05:30", "-11:00"]))
    if draw(st.booleans()):
        kinds["sparse"].append(SparseFeature(name="when", transform="hour_of_week", utc_offset=offset))
        kinds["dense"].append(DenseFeature(name="day", transform="hour_of_day", utc_offset=offset))
    history = [HistoryFeature(name="h", by="id", of="label_ctr", half_life_s=draw(st.sampled_from([None, 60])))]
    return FeatureSet(**kinds, history=history)


def possible(column: Column) -> list[SparseFeature | DenseFeature | SequenceFeature]:
    """Features that can be made of a column, each by a name of its own."""
    of: dict[str, Any] = {"column": column.name}
    name = column.name
    if column.type == "list<float32>":
        return [DenseFeature(name=f"{name}_v", length=LENGTH, **of),
                DenseFeature(name=f"{name}_w", length=LENGTH, clip=(-1, 1), **of)]  # fmt: skip
    found: list[Any] = []
    if column.type != "float32":
        found.append(SparseFeature(name=f"{name}_hash", rows=97, **of))
    if column.type.startswith("list<"):
        found.append(SparseFeature(name=f"{name}_first", rows=97, most=2, **of))
        if column.type == "list<int64>":
            found.append(SequenceFeature(name=f"{name}_gaps", transform="gap", length=3, **of))
        return [*found, SequenceFeature(name=f"{name}_seen", rows=31, length=2, **of)]
    constant = "a" if column.type == "string" else 3
    if column.type != "float32":
        found.append(SparseFeature(name=f"{name}_only", rows=97, serve_as=constant, **of))
    if column.type != "string":
        found += [
            SparseFeature(name=f"{name}_cut", transform="bucketize", boundaries=(-3, 0, 2.5), **of),
            DenseFeature(name=f"{name}_log", transform="log1p", **of),
            DenseFeature(name=f"{name}_fixed", transform="standardise", mean=2, std=3, sigmas=4, **of),
            DenseFeature(name=f"{name}_scaled", transform="standardise", statistics="online", clip=(-50, 50), **of),
            DenseFeature(name=f"{name}_far", transform="log1p", statistics="online", serve_as=2, **of),
            DenseFeature(name=f"{name}_q", transform="quantiles", buckets=3, **of),
        ]
    return found


def rows_of(schema: RowSchema, seed: int) -> pa.Table:
    drawn = np.random.default_rng(seed)

    def value(kind: str) -> Any:
        if kind.startswith("list<"):
            count = LENGTH if kind == "list<float32>" else drawn.integers(0, 5)
            return [value(kind[5:-1]) for _ in range(count)]
        if kind == "string":
            return WORDS[drawn.integers(len(WORDS))]
        if kind == "float32":
            return float(np.float32(drawn.normal() * 10.0 ** drawn.integers(-6, 5)))
        return int(drawn.choice([drawn.integers(-9, 9), drawn.integers(-(2**62), 2**62)]))

    columns: dict[str, Any] = {
        "impression_id": pa.array(range(ROWS)),
        "event_time_ms": pa.array(drawn.integers(0, 2 * 10**12, ROWS)),
        "vertical": pa.array(["feed"] * ROWS),
    }
    for column in schema.columns:
        missing = drawn.random(ROWS) < (0.2 if column.nullable else 0)
        values = [None if gone else value(column.type) for gone in missing]
        columns[column.name] = pa.array(values, column.arrow_type)
    return pa.table(columns).cast(schema.impression)


def tensors(batch: Batch) -> list[torch.Tensor]:
    """What a model reads of a row."""
    raw = torch.zeros(0) if batch.raw is None else batch.raw
    return [batch.sparse.values(), batch.sparse.lengths(), batch.dense, raw]


def assert_same(one: Batch, other: Batch) -> None:
    for a, b in zip(tensors(one), tensors(other), strict=True):
        assert a.dtype == b.dtype
        assert a.numpy().tobytes() == b.numpy().tobytes()


def through_topics(world: World, codec: str) -> pa.Table:
    """The rows as augmentation reads them from Kafka."""
    limits = Limits(world.features.index_rows, world.features.ranges)
    decoder = make_codec(codec, "impression", world.schema, limits=limits)
    values = decoder.encode(world.rows.combine_chunks().to_batches()[0])
    batch, dead = decoder.decode([RawMessage("ads", 0, n, 10, None, value) for n, value in enumerate(values)])
    assert not dead
    return pa.Table.from_batches([batch])


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(1, ROWS - 1))
def test_the_same_rows_make_the_same_tensors_everywhere(world: World, cut: int) -> None:
    build = BatchBuilder(world.features, ["ctr"])
    trained = build(world.rows)
    for codec in ("arrow", "json"):
        assert_same(build(through_topics(world, codec)), trained)
    replayed(world, cut, trained)
    served(world, AsServed(world.features)(trained))


def replayed(world: World, cut: int, trained: Batch) -> None:
    """Chunks of any size, batches of any cut, parts that were made for a longer stretch."""
    lake = world.rows.append_column("lake_seq", pa.array(range(ROWS)))
    chunks = pa.concat_tables([lake.slice(0, cut), lake.slice(cut)])
    shared = BatchBuilder(world.features, ["ctr"], feature_cache=FeatureCache(lambda: [lake]))
    assert_same(BatchBuilder(world.features, ["ctr"])(chunks), trained)
    later = trained.only(torch.arange(ROWS) >= cut)
    assert_same(BatchBuilder(world.features, ["ctr"])(lake.slice(cut)), later)
    assert_same(shared(lake.slice(cut)), later)
    statistics = Statistics(world.features)
    statistics.add(statistics.sums(trained))
    assert_same(statistics.complete(shared(lake.slice(cut))), statistics.complete(later))


def served(world: World, expected: Batch) -> None:
    """Requests of each kind, and a data frame. Columns that are known in training only are not among what is asked."""
    rules, features = serving_rules(world.schema, world.features), world.features
    build, names = BatchBuilder(features, ["ctr"], serving=True), list(features.serving_columns())
    rows = world.rows.select(names)
    columns = {name: rows[name].to_pylist() for name in names}
    bodies = [
        (json.dumps({"rows": rows.to_pylist()}), JSON),
        (json.dumps({"columns": columns}), JSON),
        (write_ipc(rows.combine_chunks().to_batches()[0]), ARROW),
    ]
    for body, kind in bodies:
        asked = parse_request(body if isinstance(body, bytes) else body.encode(), kind, only=names, max_rows=ROWS)
        batch, refusals = checked_columns(asked.columns, asked.context, asked.size, rules)
        assert not refusals
        assert_same(build(batch), expected)
    frame = rows.to_pandas(types_mapper={pa.int64(): _whole()}.get)
    batch, refusals = checked(frame, rules)
    assert not refusals
    assert_same(build(batch), expected)


def _whole() -> Any:
    import pandas as pd

    return pd.Int64Dtype()  # as floats, whole numbers beyond 2^53 would be others
