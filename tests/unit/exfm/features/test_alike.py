"""Features made together have the bits of each made alone: whatever columns, nulls, numbers and slices there are."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.errors import ConfigError
from exfm.features.alike import Alike
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.features.transforms import bags_of, dense_of

KINDS = {"int": pa.int64(), "short": pa.int32(), "float": pa.float32(), "double": pa.float64(), "text": pa.string()}
FLOATS = [0.0, -0.0, 1.5, -3e38, 3e38, float("nan"), float("inf"), 1e-40, 7.0]
TEXTS = ["", "a", "reise", "новый", "x" * 300]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Up to eight columns, in pieces of any size."""
    count = draw(st.sampled_from([0, 1, 2, 7, 40]))
    columns = {}
    for n, kind in enumerate(draw(st.lists(st.sampled_from(list(KINDS)), min_size=2, max_size=8))):
        values = {"int": st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 12), "short": st.integers(-5, 12)}.get(
            kind, st.sampled_from(TEXTS) if kind == "text" else st.sampled_from(FLOATS)
        )
        some = st.none() | values if draw(st.integers(0, 3)) == 0 else values
        columns[f"{kind}{n}"] = pa.array(draw(st.lists(some, min_size=count, max_size=count)), KINDS[kind])
    table = pa.table(columns)
    cut = draw(st.integers(0, count))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)]) if draw(st.booleans()) else table


@st.composite
def features_of(draw: st.DrawFn, names: list[str]) -> FeatureSet:
    ids = [name for name in names if name.startswith(("int", "short", "text"))]
    numbers = [name for name in names if not name.startswith("text")]
    sparse: list[Any] = [SparseFeature(name="first", column=names[0], rows=3, transform="bucketize", boundaries=(0, 2))
                         if names[0] in numbers else SparseFeature(name="first", column=names[0], rows=11)]  # fmt: skip
    for n, name in enumerate(draw(st.lists(st.sampled_from(ids), max_size=6)) if ids else ()):
        sparse.append(SparseFeature(name=f"hash{n}", column=name, rows=draw(st.sampled_from([1, 97, 2**40]))))
    for n in range(draw(st.integers(0, 3)) if ids else 0):
        crossed = draw(st.lists(st.sampled_from(ids), min_size=2, max_size=4))
        sparse.append(SparseFeature(name=f"cross{n}", columns=crossed, rows=draw(st.sampled_from([5, 2**20]))))
    for n, name in enumerate(draw(st.lists(st.sampled_from(numbers), max_size=3)) if numbers else ()):
        if not name.startswith(("float", "double")):
            sparse.append(SparseFeature(name=f"index{n}", column=name, rows=13, transform="index"))
    dense = []
    for n, name in enumerate(draw(st.lists(st.sampled_from(numbers), max_size=8)) if numbers else ()):
        clip = draw(st.sampled_from([None, None, (0.0, 5.0), (-2.0, 2.5)]))
        more: dict[str, Any] = draw(st.sampled_from([
            {"transform": "log1p"}, {"transform": "quantiles", "buckets": 4}, {"transform": "identity"},
            {"transform": "standardise", "sigmas": 2.0}, {"transform": "standardise", "statistics": "online"},
            {"transform": "log1p", "statistics": "online"},
        ]))  # fmt: skip
        if more["transform"] == "standardise" and "statistics" not in more:
            more = more | {"mean": draw(st.sampled_from([0.0, 3.5])), "std": draw(st.sampled_from([1.0, 0.25]))}
        dense.append(DenseFeature(name=f"dense{n}", column=name, clip=clip, **more))
    return FeatureSet(sparse=draw(st.permutations(sparse)), dense=dense)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.data())
def test_what_is_made_together_is_what_each_makes_alone(data: st.DataObject) -> None:
    rows = data.draw(tables())
    features = data.draw(features_of(rows.schema.names))
    build = BatchBuilder(features, ["ctr"])
    start = data.draw(st.integers(0, rows.num_rows))
    for part in (rows, rows.slice(start), rows.slice(0, start), rows):  # a builder meets nulls, and then none
        check(build, features, part)
        for batch in part.to_batches():
            check(build, features, batch)


def check(build: BatchBuilder, features: FeatureSet, rows: pa.Table | pa.RecordBatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of infinite numbers
        refused = None
        try:
            dense, raw, ids, lengths = alone(features, rows)
        except ConfigError as error:
            refused = str(error)
        if refused is not None:
            with pytest.raises(ConfigError, match=re.escape(refused)):
                build(rows)
            return
        batch = build(rows)
    assert batch.sparse.values().numpy().tobytes() == ids.tobytes()
    assert batch.sparse.lengths().numpy().tobytes() == lengths.tobytes()
    assert batch.sparse.offsets().tolist() == [0, *np.cumsum(lengths).tolist()]
    assert batch.dense.numpy().tobytes() == dense.tobytes()
    assert (b"" if batch.raw is None else batch.raw.numpy().tobytes()) == raw.tobytes()


def alone(features: FeatureSet, rows: pa.Table | pa.RecordBatch) -> tuple[np.ndarray, ...]:
    """Every feature by itself: dense (B, W), raw (B, S), ids and lengths of the bags."""
    count = rows.num_rows
    one = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    whole = {name: one[name].combine_chunks() for name in one.schema.names}
    dense, raw = np.zeros((count, len(features.dense_labels)), np.float32), np.empty((count, len(features.online)))
    for feature, at in zip(features.dense, features.dense_slices, strict=True):
        made = dense_of(feature, whole)
        if feature.online:
            raw[:, features.online.index(feature)] = made[:, 0]
        else:
            dense[:, at] = made
    bags = [bags_of(feature, whole) for feature in features.sparse]
    ids = np.concatenate([each.values for each in bags])
    lengths = np.concatenate([np.ones(count, np.int64) if each.lengths is None else each.lengths for each in bags])
    return dense, raw, ids, lengths


def test_plain_columns_leave_nothing_to_be_made_alone() -> None:
    """The fast way is taken: what is equal by going the slow way shows nothing."""
    features = FeatureSet(
        sparse=[
            SparseFeature(name="ad", rows=9),
            SparseFeature(name="slot", rows=5, transform="index"),
            SparseFeature(name="site", rows=7),
            SparseFeature(name="ad_site", columns=["ad", "site"], rows=50),
            SparseFeature(name="cut", column="bid", transform="bucketize", boundaries=(1, 2)),
        ],
        dense=[DenseFeature(name="bid", transform="log1p"), DenseFeature(name="age", transform="standardise", std=2)],
    )
    rows = pa.table({"ad": [1, 2], "slot": [0, 4], "site": ["a", "b"], "age": [3, 4],
                     "bid": pa.array([0.5, 1], pa.float32())})  # fmt: skip
    make = Alike(features)
    written = np.zeros((5, 2), np.int64), np.zeros((2, 2), np.float32), np.zeros((2, 0))
    assert make(rows, *written) == ([4], [])
    some = rows.set_column(0, "ad", pa.array([1, None]))
    assert make(some, *written) == ([0, 3, 4], [])
    outside = rows.set_column(1, "slot", pa.array([0, 5]))
    assert make(outside, *written) == ([1, 4], [])
    assert make(rows, *written) == ([4], [])


def test_what_one_batch_had_is_not_the_next_ones() -> None:
    """Lengths are shared between batches of a size; ids are not."""
    build = BatchBuilder(FeatureSet(sparse=[SparseFeature(name="ad", rows=9, transform="index")]), ["ctr"])
    first = build(pa.table({"ad": [1, 2]}))
    second = build(pa.table({"ad": [3, 4]}))
    assert first.sparse.values().tolist() == [1, 2]
    assert second.sparse.values().tolist() == [3, 4]
    assert first.sparse.lengths().tolist() == second.sparse.lengths().tolist() == [1, 1]
