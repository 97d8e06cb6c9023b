"""Parts of batches that are made once for a stretch of rows: to the bit those that are made of the rows alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.errors import ConfigError
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.feature_cache import FeatureCache
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.sparse import SequenceFeature, SparseFeature

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="user", rows=500),
        SparseFeature(name="site", rows=100),
        SparseFeature(name="tags", rows=50),
        SparseFeature(name="slot", rows=4, transform="index"),
        SparseFeature(name="user_site", columns=["user", "site"], rows=900),
        SparseFeature(name="age", transform="bucketize", boundaries=(20, 40)),
    ],
    dense=[DenseFeature(name="bid", transform="log1p"), DenseFeature(name="price", transform="standardise", std=3)],
    sequence=[SequenceFeature(name="seen", rows=30, length=3)],
    history=[HistoryFeature(name="user_ctr", by="user", of="label_ctr", half_life_s=60)],
)


def rows(count: int = 400, groups: tuple[str, ...] = ("ctr", "cvr")) -> pa.Table:
    drawn = np.random.default_rng(7)

    def some(values: np.ndarray) -> pa.Array:
        return pa.array(values, mask=drawn.random(count) < 0.2)

    lists = [drawn.integers(0, 90, drawn.integers(0, 4)).tolist() for _ in range(count)]
    return pa.table(
        {
            "lake_seq": np.cumsum(drawn.integers(1, 4, count)),  # rows of others lie between
            "block": np.arange(count) // 50,
            "teacher_version": some(np.arange(count) // 60),
            "event_time_ms": drawn.integers(0, 10**9, count),
            "settlement": np.asarray(groups)[drawn.integers(0, len(groups), count)],
            "user": some(drawn.integers(0, 10**9, count)),
            "site": pa.array([f"site {n}" for n in drawn.integers(0, 30, count)]),
            "tags": pa.array([each or None for each in lists], pa.list_(pa.int64())),
            "slot": drawn.integers(0, 4, count),
            "age": some(drawn.integers(10, 70, count)),
            "bid": some(drawn.normal(size=count).astype(np.float32)),
            "price": drawn.normal(size=count),
            "seen": pa.array(lists, pa.list_(pa.int64())),
            "label_ctr": some(drawn.integers(0, 2, count).astype(np.int8)),
            "teacher_logit_ctr": some(drawn.normal(size=count).astype(np.float32)),
            "sample_weight": drawn.random(count).astype(np.float32),
        }
    )


def assert_same(one: object, other: object) -> None:
    for name, value in vars(one).items():
        theirs = vars(other)[name]
        if name == "sparse":
            assert value.keys() == theirs.keys()
            assert torch.equal(value.values(), theirs.values())
            assert torch.equal(value.lengths(), theirs.lengths())
        elif value is None:
            assert theirs is None
        else:
            assert value.dtype == theirs.dtype
            assert value.numpy().tobytes() == theirs.numpy().tobytes(), name


@pytest.mark.parametrize("rate", [None, {"ctr": 0.5}])
def test_a_batch_is_the_same_to_the_bit_wherever_its_parts_were_made(rate):
    table = rows()
    alone = BatchBuilder(FEATURES, ["ctr"], rate)
    shared = BatchBuilder(FEATURES, ["ctr"], rate, FeatureCache(lambda: [table.slice(0, 250), table.slice(250)]))
    chance = np.random.default_rng(1)
    for _ in range(30):
        at = np.flatnonzero(chance.random(400) < chance.random())
        lost = chance.integers(0, 200)  # also batches inside one stretch
        batch = table.take(at[(at >= lost) & (at < lost + chance.integers(1, 200))])
        assert_same(shared(batch), alone(batch))
        assert shared(batch).shown_ms is not None


def test_labels_are_those_of_the_rows_that_are_given():
    table = rows()
    build = BatchBuilder(FEATURES, ["ctr"], feature_cache=FeatureCache(lambda: [table]))
    sampled = table.set_column(table.schema.get_field_index("label_ctr"), "label_ctr", pa.nulls(400, pa.int8()))
    assert not build(sampled[:50]).label_mask.any()


def test_what_is_wrong_with_rows_of_others_is_not_ours_and_with_our_own_is_said():
    table = rows(groups=("ctr", "cvr", "other"))
    spoiled = table.set_column(table.schema.get_field_index("slot"), "slot", pa.array([99] + [1] * 399))
    build = BatchBuilder(FEATURES, ["ctr"], feature_cache=FeatureCache(lambda: [spoiled]))
    ours = spoiled.filter(pa.compute.field("settlement") != "other")
    assert_same(build(ours[1:]), BatchBuilder(FEATURES, ["ctr"])(ours[1:]))
    with pytest.raises(ConfigError, match="value 99 of column `slot`"):
        BatchBuilder(FEATURES, ["ctr"], feature_cache=FeatureCache(lambda: [spoiled]))(spoiled)


def test_a_feature_is_made_once_for_all_and_goes_with_its_stretch(monkeypatch):
    made: list[str] = []
    from exfm.features import feature_cache as module

    bags_of = module.bags_of
    monkeypatch.setattr(
        module, "bags_of", lambda feature, columns: made.append(feature.name) or bags_of(feature, columns)
    )
    table, held = rows(), []
    feature_cache = FeatureCache(lambda: held)
    builders = [BatchBuilder(FEATURES.select(names), ["ctr"], feature_cache=feature_cache)
                for names in (FEATURES.names, ("user", "site"), ("user", "bid"))]  # fmt: skip
    held.append(table)
    for first in range(0, 400, 40):
        for build in builders:
            build(table[first : first + 40])
    assert sorted(made) == sorted(feature.name for feature in FEATURES.sparse)
    held.clear()
    builders[1](table[:40])
    assert made[len(FEATURES.sparse) :] == ["user"]  # it has nulls; `site` is made with all that are like it
