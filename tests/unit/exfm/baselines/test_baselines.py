"""What a student is compared with as well: a logistic regression by FTRL-proximal, and the label rate so far."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.baselines.constant import Constant
from exfm.baselines.logistic import Logistic
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.learned_rows import LearnedRows
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.models.engine import LOGISTIC, RATE, STUDENT, TWIN, StudentEngine
from tests.support.models.states import same
from tests.support.models.students import FEATURES, SMALL, TASKS, stream

BAGS = FeatureSet(
    sparse=[SparseFeature(name="user", rows=40, transform="index"), SparseFeature(name="words", rows=90)],
    dense=[DenseFeature(name="bid")],
    sequence=[SequenceFeature(name="seen", rows=60, length=3, transform="index")],
)


def bags(rows, seed=0):
    rng = np.random.default_rng(seed)
    lists = [rng.integers(0, 99, n).tolist() for n in rng.integers(0, 4, rows)]
    seen = [rng.integers(0, 60, n).tolist() for n in rng.integers(0, 5, rows)]
    return pa.table(
        {
            "user": rng.integers(0, 40, rows),
            "words": pa.array(lists, pa.list_(pa.int64())),
            "seen": pa.array(seen, pa.list_(pa.int64())),
            "bid": rng.normal(0, 1, rows),
            "label_ctr": rng.integers(0, 2, rows).astype("i1"),
            "label_cvr": pa.array(rng.integers(0, 2, rows).astype("i1"), mask=rng.random(rows) < 0.5),
            "sample_weight": rng.integers(1, 4, rows).astype("f4"),
        }
    )


def batches_of(features, table, size=100):
    build = BatchBuilder(features, TASKS, {"ctr": 0.5})
    return [build(table.slice(at, size)) for at in range(0, table.num_rows, size)]


class OneByOne:
    """FTRL-proximal as the paper writes it down, one coordinate after the other, in double precision."""

    def __init__(self, alpha, beta):
        self.alpha, self.beta, self.s, self.n = alpha, beta, {}, {}

    def w(self, i):
        return -self.alpha * self.s.get(i, 0.0) / (self.beta + self.n.get(i, 0.0) ** 0.5)

    def learn(self, coordinates, y, known, weights, offset, shift, counted):
        z = [offset + sum(self.w(i) for i in row) for row in coordinates]
        g = {}
        for row, z_b, y_b, known_b, weight in zip(coordinates, z, y, known, weights, strict=True):
            if known_b:
                for i in row:
                    g[i] = g.get(i, 0.0) + weight * (1 / (1 + np.exp(-z_b + offset - counted - shift)) - y_b)
        for i, g_i in g.items():
            n = self.n.get(i, 0.0)
            sigma = ((n + g_i**2) ** 0.5 - n**0.5) / self.alpha
            self.s[i] = self.s.get(i, 0.0) + g_i - sigma * self.w(i)
            self.n[i] = n + g_i**2
        return z


@pytest.mark.parametrize("kind", ["one id each", "bags"])
def test_it_learns_what_a_slow_reference_learns(kind):
    features = FEATURES if kind == "one id each" else BAGS
    table = bags(400)
    batches = batches_of(BAGS, table) if kind == "bags" else stream(1_000, batch_rows=128)
    ftrl = Logistic(features, TASKS)
    count = len(features.keys) + len(features.dense) + 1 + (3 if kind == "one id each" else 1)
    slow = [OneByOne(2.0 / count, 1.0) for _ in TASKS]
    sums = np.full((2, 2), 0.5)
    for batch in batches:
        slots, starts = ftrl.ftrl.hashing(batch.sparse, batch.dense)
        coordinates = [slots[start:end].tolist() for start, end in pairwise(starts)]
        logits = ftrl.train_step(batch).logits
        for t in range(2):
            y, known = batch.labels[:, t].numpy(), batch.label_mask[:, t].numpy()
            rate = 1.0 if batch.negative_rate is None else float(batch.negative_rate[t])
            offset = np.log(sums[0, t] / sums[1, t])
            w = batch.weights.numpy() * known
            sums[:, t] += (w * y).sum(), (w * (1 - y)).sum() / rate
            counted = np.log(sums[0, t] / sums[1, t])
            z = slow[t].learn(coordinates, y, known, batch.weights.tolist(), offset, -np.log(rate), counted)
            np.testing.assert_allclose(logits[:, t], z, atol=2e-5)


def test_a_row_has_a_coordinate_for_every_id_bucket_and_cross_and_one_that_all_share():
    ftrl, batch = Logistic(FEATURES, TASKS), stream(300, batch_rows=300)[0]
    hashing = ftrl.ftrl.hashing
    slots = hashing(batch.sparse, batch.dense).slots.reshape(300, -1).T
    ids = batch.sparse.values().numpy().reshape(3, 300)
    assert len(slots) == 3 + 3 + 2 + 1
    assert hashing.crosses == ((0, 1), (0, 2), (1, 2))
    for k, of in enumerate([*ids, *(ids[a] * 1_000 + ids[b] for a, b in hashing.crosses)]):
        assert len(np.unique(slots[k])) >= 0.99 * len(np.unique(of))
        assert len(set(zip(slots[k], of, strict=True))) == len(np.unique(of))  # the same value, the same slot
    assert len(set(slots[-1])) == 1


def test_it_learns_a_planted_linear_signal_and_a_planted_cross():
    rng = np.random.default_rng(0)
    features = FeatureSet(sparse=[SparseFeature(name=name, rows=8, transform="index") for name in "ab"])
    a, b = rng.integers(0, 8, (2, 60_000))
    crossed = rng.normal(0, 1, (8, 8))
    truth = -2 + rng.normal(0, 1, 8)[a] + crossed[a, b]
    table = pa.table({"a": a, "b": b, "label_ctr": (rng.random(60_000) < 1 / (1 + np.exp(-truth))).astype("i1")})
    build, ftrl = BatchBuilder(features, ["ctr"]), Logistic(features, ["ctr"])
    for at in range(0, 60_000, 256):
        last = ftrl.train_step(build(table.slice(at, 256)))
    assert last.logits.shape == (60_000 % 256, 1)
    found = np.concatenate([ftrl.train_step(build(table.slice(at, 256))).logits[:, 0] for at in range(0, 10_000, 256)])
    assert np.abs(found - truth[: len(found)]).mean() < 0.25
    assert np.abs(np.log(0.2) - truth).mean() > 0.9


@pytest.mark.parametrize("cut", [0, 3])
def test_baselines_that_were_saved_and_loaded_go_on_bit_for_bit(cut):
    def new():
        return StudentEngine(SMALL, FEATURES, TASKS, 1, twin=True, baselines=True)

    batches, whole, first, second = stream(2_000), new(), new(), new()
    judged = [whole.step(batch) for batch in batches]
    assert list(judged[0].results) == [STUDENT, TWIN, LOGISTIC, RATE]
    for batch in batches[:cut]:
        first.step(batch)
    second.step(batches[0])
    second.load(first.state())
    for batch in batches[cut:]:
        second.step(batch)
    assert same(second.state(), whole.state())
    assert second.trained_rows == dict.fromkeys((STUDENT, TWIN, LOGISTIC, RATE), 2_000)


@pytest.mark.parametrize("whose", ["own", "all"])
def test_they_learn_the_rows_whose_labels_the_student_learns_and_are_judged_on_its_own(whose):
    rows = LearnedRows(labels=whose, distillation="all")
    engine = StudentEngine(SMALL, FEATURES, TASKS, 1, twin=True, baselines=True, learned_rows=rows)
    alone, taught = Logistic(FEATURES, TASKS), []
    for batch in stream(1_000):
        mixed = replace(batch, own=torch.arange(len(batch)) % 3 == 0)
        results = engine.step(mixed).results
        assert {len(result.logits) for result in results.values()} == {int(mixed.own.sum())}
        labelled = mixed if whose == "all" else mixed.own_rows
        assert np.array_equal(results[LOGISTIC].logits, alone.train_step(labelled).logits)
        taught.append(results[LOGISTIC].rows_per_task)
    assert len(set(engine.trained_rows.values())) == 1
    assert sum(taught).tolist() == engine.student.progress["labelled"]


@pytest.mark.parametrize("broken", ["dense", "weights"])
def test_a_batch_that_is_not_finite_changes_nothing(broken):
    first, second = stream(512)
    values = getattr(second, broken).clone()
    values[7] = float("nan")
    for baseline in (Logistic(FEATURES, TASKS), *([Constant(TASKS)] if broken == "weights" else [])):
        baseline.train_step(first)
        before = baseline.state()
        assert not baseline.train_step(replace(second, **{broken: values})).finite
        assert same(baseline.state(), before)
        assert baseline.train_step(second).finite


def test_the_constant_says_the_rate_of_the_rows_before():
    constant, seen = Constant(TASKS), []
    for batch in stream(1_000):
        logits = constant.train_step(batch).logits
        y = np.concatenate([b.labels[:, 0].numpy() for b in seen]) if seen else np.zeros(0)
        assert np.allclose(logits[:, 0], np.log((y.sum() + 0.5) / (len(y) - y.sum() + 0.5)))
        seen.append(batch)
