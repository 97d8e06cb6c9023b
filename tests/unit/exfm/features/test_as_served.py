"""What is known in training only is learned from, and neither served nor judged by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from exfm.distillation.arm import Arm
from exfm.features.as_served import AsServed
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.models.engine import StudentEngine
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.snapshots.increments.increment import probe_of

TASKS = ("ctr",)
PLACE = SparseFeature(name="place", column="position", rows=9, transform="index", serve_as=2)
FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="user", rows=40),
        PLACE,
        SparseFeature(name="shelf", rows=20, serve_as="top"),
        SparseFeature(name="tags", rows=9, transform="index"),
    ],
    sequence=[SequenceFeature(name="seen", column="tags", rows=9, length=2)],
    dense=[
        DenseFeature(name="bid"),
        DenseFeature(name="depth", column="position", transform="log1p", serve_as=3),
        DenseFeature(name="far", column="position", transform="standardise", statistics="online", serve_as=1),
    ],
)
SMALL = StudentConfig(trunk=TrunkConfig(name="mlp", mlp=(8,)), width=4, arm=Arm(kind="auxiliary_head"))


def table(rows=256, seed=0):
    rng = np.random.default_rng(seed)
    position = rng.integers(0, 9, rows)
    return pa.table(
        {
            "user": pa.array(rng.integers(0, 60, rows), mask=rng.random(rows) < 0.1),
            "position": pa.array(position, mask=rng.random(rows) < 0.1),
            "shelf": rng.choice(["top", "low"], rows),
            "tags": pa.array([rng.integers(0, 9, n).tolist() for n in rng.integers(0, 4, rows)], pa.list_(pa.int64())),
            "bid": rng.random(rows).astype(np.float32),
            "label_ctr": (rng.random(rows) < 0.8 - position / 12).astype(np.int8),
            "teacher_logit_ctr": rng.normal(size=rows).astype(np.float32),
            "event_time_ms": np.arange(rows) * 1000,
            "settlement": ["ctr"] * rows,
        }
    )


def batches(rows=256):
    build, whole = BatchBuilder(FEATURES, TASKS), table(rows)
    return [build(whole.slice(start, 64)) for start in range(0, rows, 64)]


def assert_same(one, other):
    assert torch.equal(one.sparse.values(), other.sparse.values())
    assert torch.equal(one.sparse.lengths(), other.sparse.lengths())
    assert torch.equal(one.dense, other.dense)
    assert torch.equal(one.raw, other.raw)


def test_a_logged_batch_as_served_is_what_a_server_makes_of_the_row_without_the_columns():
    asked = table().drop_columns(["position", "shelf"])
    served = BatchBuilder(FEATURES, TASKS, serving=True)(asked)
    assert_same(AsServed(FEATURES)(BatchBuilder(FEATURES, TASKS)(table())), served)
    assert served.sparse["place"].values().unique().tolist() == [2]
    assert FEATURES.serving_columns() == ("user", "tags", "bid")
    assert FEATURES.needs_columns() == ("user", "position", "shelf", "tags", "bid")


def test_a_student_learns_from_the_logged_value_and_is_judged_as_it_is_served():
    one = Student(SMALL, FEATURES, TASKS, 3)
    for batch in batches():
        before, said = one.score(batch), one.export().score(batch)
        result = one.train_step(batch)
        assert np.array_equal(result.logits, before)
        assert np.abs(before - said).max() <= 1e-6
    logged = Student(SMALL, FEATURES, TASKS, 3)
    for batch in batches():
        logged.train_step(AsServed(FEATURES)(batch))
    table_of = [student.net.tables.tensors()["place/weight"] for student in (one, logged)]
    assert [len(weights.unique(dim=0)) for weights in table_of] == [9, 9]
    assert not torch.equal(table_of[0][5], table_of[1][5])  # only one of the two was ever shown place 5


def test_nothing_that_predicts_depends_on_the_logged_value():
    engine = StudentEngine(SMALL, FEATURES, TASKS, 3, twin=True)
    *before, last = batches()
    for batch in before:
        engine.step(batch)
    other = BatchBuilder(FEATURES, TASKS)(table().slice(192).set_column(1, "position", pa.array([8] * 64)))
    probes = [probe_of(engine.student, batch) for batch in (last, other)]
    assert torch.equal(probes[0].logits, probes[1].logits)
    assert torch.equal(probes[0].ids, probes[1].ids)
    twice = StudentEngine(SMALL, FEATURES, TASKS, 3, twin=True)
    twice.load(engine.state())
    one, two = engine.step(last), twice.step(other)
    for name in engine.models:
        assert np.array_equal(one.results[name].logits, two.results[name].logits)


def test_a_student_without_such_features_gets_the_batch_itself():
    plain = FeatureSet(sparse=[SparseFeature(name="user", rows=40)])
    batch = BatchBuilder(plain, TASKS)(table())
    assert AsServed(plain)(batch) is batch
    assert plain.as_served is plain


def test_other_rows_of_a_batch_are_judged_by_none():
    one, batch = Student(SMALL, FEATURES, TASKS, 3), batches()[0]
    own = torch.arange(64) % 3 == 0
    assert len(one.train_step(replace(batch, own=own)).logits) == int(own.sum())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"rows": 5, "transform": "index", "serve_as": 5}, "its table has rows 0 to 4"),
        ({"rows": 5, "serve_as": 0.5}, "what is hashed is an integer or a text"),
        ({"transform": "bucketize", "boundaries": (1, 2), "serve_as": "a"}, "what is cut into buckets is a number"),
        ({"rows": 5, "columns": ("a", "b"), "serve_as": 1}, "for a feature of one column"),
        ({"transform": "hour_of_day", "serve_as": 1}, "for a feature of one column"),
    ],
)
def test_a_constant_that_a_feature_cannot_have_is_refused(how, words):
    with pytest.raises(ValidationError, match=words):
        SparseFeature(name="f", **how)
