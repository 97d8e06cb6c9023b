"""Dense features are scaled by what the rows before were, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from exfm.distillation.arm import Arm
from exfm.features.batch import BatchBuilder
from exfm.features.dense import LARGEST_INPUT, DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.learned_rows import LearnedRows
from exfm.features.sparse import SparseFeature
from exfm.features.statistics import Statistics, bins_of
from exfm.interactions.registry import TrunkConfig
from exfm.models.engine import StudentEngine
from exfm.models.growth.refit import MadeWith, fitted_teacher
from exfm.models.scorer import TeacherScorer, snapshot_of
from exfm.models.served import check_parity, load_served, save_served
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from tests.support.models.states import same

TASKS = ("ctr",)
SCALED = DenseFeature(name="price", transform="standardise", statistics="online", sigmas=2)
LOGGED = DenseFeature(name="views", transform="log1p", statistics="online")
CUT = DenseFeature(name="depth", column="views", transform="quantiles", buckets=4)
USER = SparseFeature(name="user", rows=30, transform="index")
FEATURES = FeatureSet(sparse=[USER], dense=[DenseFeature(name="bid"), SCALED, CUT, LOGGED])
PLAIN = FeatureSet(sparse=[USER], dense=[DenseFeature(name="bid")])
SMALL = StudentConfig(trunk=TrunkConfig(name="mlp", mlp=(8,)), width=4, arm=Arm(kind="auxiliary_head"))
TEACHER = TeacherConfig(width=4, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))


def table(rows=320, seed=0):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "user": rng.integers(0, 30, rows),
            "bid": rng.random(rows).astype(np.float32),
            "price": pa.array(rng.normal(1e6, 300, rows), mask=rng.random(rows) < 0.1),
            "views": pa.array(rng.geometric(0.05, rows) - 1, mask=rng.random(rows) < 0.1),
            "label_ctr": rng.integers(0, 2, rows).astype(np.int8),
            "teacher_logit_ctr": rng.normal(size=rows).astype(np.float32),
        }
    )


def batches(rows=320, batch_rows=64, features=FEATURES):
    build, whole = BatchBuilder(features, TASKS), table(rows)
    return [build(whole.slice(start, batch_rows)) for start in range(0, rows, batch_rows)]


def by_hand(past, row):
    """The floats of one row, after the rows of `past`."""
    prices = [r["price"] for r in past if r["price"] is not None]
    logs = [np.log1p(r["views"]) for r in past if r["views"] is not None]
    views = [r["views"] for r in past if r["views"] is not None]

    def scaled(x, values, sigmas):
        return 0.0 if x is None or not values else np.clip((x - np.mean(values)) / np.std(values), -sigmas, sigmas)

    cut = [0.0] * 4
    if row["views"] is not None and views:
        bins = bins_of(torch.tensor([float(v) for v in views])).numpy()
        own = bins_of(torch.tensor([float(row["views"])])).numpy()[0]
        u = ((bins < own).sum() + (bins == own).sum() / 2) / len(views)
        cut[min(int(4 * u), 3)] = 1.0
    log = None if row["views"] is None else np.log1p(row["views"])
    return [row["bid"], scaled(row["price"], prices, 2), *cut, scaled(log, logs, 10)]


def test_a_row_is_scaled_as_a_slow_loop_over_the_earlier_rows_says():
    one, rows = Student(SMALL, FEATURES, TASKS, 3), table().to_pylist()
    for number, batch in enumerate(batches()):
        past, now = rows[: 64 * number], rows[64 * number : 64 * (number + 1)]
        got = one.statistics.complete(batch).dense.numpy()
        assert np.allclose(got, [by_hand(past, row) for row in now], atol=1e-5)
        assert one.train_step(batch).finite


def test_quantiles_hold_equal_shares_of_what_comes_next_whatever_its_scale():
    rng, features = np.random.default_rng(5), FeatureSet(sparse=[USER], dense=[CUT])
    x = torch.from_numpy(np.exp(rng.normal(0, 4, 40_000)) * rng.choice([-1.0, 1.0], 40_000))
    (of,) = Statistics(features).each
    of.counts += of.sums(x[:20_000])
    shares = of(x[20_000:]).mean(0)
    assert (shares - 0.25).abs().max() < 0.02


def test_no_row_is_among_its_own_statistics():
    *before, last = batches()
    moved = replace(last, raw=last.raw * 3)
    a, b = Student(SMALL, FEATURES, TASKS, 3), Student(SMALL, FEATURES, TASKS, 3)
    for batch in before:
        a.train_step(batch), b.train_step(batch)
    half = torch.arange(64) < 32
    mixed = replace(last, raw=torch.where(half.unsqueeze(1), last.raw, moved.raw))
    said = [one.train_step(batch).logits[:32] for one, batch in ((a, last), (b, mixed))]
    assert np.array_equal(*said)
    assert not torch.equal(a.statistics.complete(last).dense, b.statistics.complete(last).dense)  # but the next does


def test_a_step_that_is_not_finite_counts_nothing():
    one = Student(SMALL, FEATURES, TASKS, 3)
    good, bad = batches(128)
    one.train_step(good)
    before = one.state()
    assert not one.train_step(replace(bad, weights=bad.weights * float("inf"))).finite
    assert one.try_step(bad).finite
    assert same(before, one.state())


def test_a_student_that_was_saved_goes_on_with_its_statistics_to_the_bit():
    first, second = Student(SMALL, FEATURES, TASKS, 3), Student(SMALL, FEATURES, TASKS, 4)
    for batch in batches(192):
        first.train_step(batch)
    second.load_state(first.state())
    assert second.statistics.tensors()["statistics/price/total"][0] > 150
    for batch in batches():
        assert np.array_equal(first.train_step(batch).logits, second.train_step(batch).logits)
    assert same(first.state(), second.state())


def test_student_and_twin_count_the_same_rows_their_own_also_where_the_student_learns_others():
    engine = StudentEngine(SMALL, FEATURES, TASKS, 3, twin=True, learned_rows=LearnedRows("own", "all"))
    rng, own = np.random.default_rng(1), 0
    for batch in batches():
        mine = torch.from_numpy(rng.random(64) < 0.4)
        own += int((mine & ~batch.raw[:, 0].isnan()).sum())
        engine.step(replace(batch, own=mine))
    one, twin = (model.statistics.tensors() for model in engine.models.values())
    assert same(one, twin)
    assert one["statistics/price/total"][0] == own


def test_what_is_served_scales_as_the_student_does(tmp_path):
    one = Student(SMALL, FEATURES, TASKS, 3)
    *before, last = batches()
    for batch in before:
        one.train_step(batch)
    served = load_served(save_served(one.export(), tmp_path, "v1"))
    assert check_parity(one, served, last) <= 1e-6
    one.train_step(last)
    check_parity(one, one.export(), last)
    assert np.abs(one.score(last) - served.score(last)).max() > 0


def test_a_teachers_snapshot_scores_as_it_would_and_its_state_goes_on():
    one, two = (Teacher(TEACHER, FEATURES, TASKS, seed) for seed in (1, 2))
    for batch in batches(192):
        one.train_step(batch)
    last = batches()[-1]
    scorer = TeacherScorer(TEACHER, FEATURES, TASKS)
    scorer.load(snapshot_of(one.state()))
    assert np.allclose(scorer.score(last), one.score(last), atol=1e-5)
    assert np.abs(scorer.score(last) - scorer.score(replace(last, raw=last.raw + 500))).max() > 0
    two.load_state(one.state())
    assert np.array_equal(one.train_step(last).logits, two.train_step(last).logits)
    one.close(), two.close()


def test_a_feature_that_is_added_to_a_teacher_starts_to_count_with_its_next_row():
    before = Teacher(TEACHER, PLAIN, TASKS, 1)
    for batch in batches(128, features=PLAIN):
        before.train_step(batch)
    was, now = (MadeWith.of(TEACHER, features, TASKS, 1) for features in (PLAIN, FEATURES))
    after = Teacher(TEACHER, FEATURES, TASKS, 1)
    after.load_state(fitted_teacher(before.state(), was, now))
    after.train_step(batches(64)[0])
    assert after.statistics.tensors()["statistics/price/total"][0] == 64 - table(64)["price"].null_count
    dropped = fitted_teacher(after.state(), now, was, drop=True)
    assert not any(name.startswith("statistics/") for name in dropped)
    before.close(), after.close()


def test_sums_of_parts_are_those_of_the_whole():
    """So ranks count together what one process counts."""
    statistics, (batch,) = Statistics(FEATURES), batches(64)
    half = torch.arange(64) < 20
    parts = [statistics.sums(batch.only(rows)) for rows in (half, ~half)]
    assert torch.allclose(parts[0] + parts[1], statistics.sums(batch), rtol=1e-12)
    assert not statistics.sums(batch.only(torch.zeros(64, dtype=torch.bool))).any()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"statistics": "online"}, "`statistics: online` belongs to transform `standardise`, `log1p` or"),
        ({"statistics": "online", "transform": "standardise", "mean": 3}, "`mean` and `std` are learned"),
        ({"sigmas": 3}, "`sigmas` belongs to transform `standardise`"),
        ({"buckets": 3}, "`buckets` belongs to transform `quantiles`"),
        ({"clip": (3, 1)}, r"clip \[3, 1\] has to go from a number to a larger one"),
        ({"clip": (0, 1e9)}, "leaves values that are larger than 16,777,216"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(how, words):
    with pytest.raises(ValidationError, match=words):
        DenseFeature(name="x", **how)


def test_what_is_clipped_or_learned_bears_every_number():
    for how in ({"clip": (0, 9)}, {"transform": "standardise", "sigmas": 4}, {"transform": "quantiles"}):
        assert DenseFeature(name="x", **how).bounds is None
    build = BatchBuilder(FeatureSet(sparse=[USER], dense=[DenseFeature(name="x", clip=(-1, 9))]), [])
    assert build(pa.table({"user": [1, 2, 3], "x": [-5.0, 4.0, 1e30]})).dense[:, 0].tolist() == [-1, 4, 9]


def test_infinite_values_of_an_old_lake_are_left_out_and_poison_nothing():
    engine, (batch,) = StudentEngine(SMALL, FEATURES, TASKS, 3), batches(64)
    raw = batch.raw.clone()
    raw[5, 0] = float("inf")
    judged = engine.step(replace(batch, raw=raw))
    assert judged.finite_rows == 63
    assert all(state.isfinite().all() for state in engine.student.statistics.tensors().values())
    assert engine.student.statistics.complete(batch).dense.abs().max() < LARGEST_INPUT
