from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from exfm.distillation.arm import Arm
from exfm.embeddings.adagrad import PER_HALF_LIFE, AccumulatorConfig, scale_accumulator
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig

FEATURES = FeatureSet(sparse=[SparseFeature(name="ad", rows=50), SparseFeature(name="user", rows=81)])
B = 64
KINDS = {"halving": {"half_life_rows": 7 * B}, "reset": {"reset_every_rows": 5 * B + 3}}


def batch(seed, ads=50):
    rng = np.random.default_rng(seed)
    rows = {"ad": rng.integers(0, ads, B), "user": rng.integers(0, 999, B), "label_ctr": rng.integers(0, 2, B)}
    return BatchBuilder(FEATURES, ["ctr"])(pa.table(rows))


def teacher(seed=0, **accumulators):
    cfg = TeacherConfig(width=4, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))
    return Teacher(cfg.model_copy(update={"accumulators": AccumulatorConfig(**accumulators)}), FEATURES, ["ctr"], seed)


def student(seed=0, **accumulators):
    cfg = StudentConfig(arm=Arm(kind="none"), accumulators=AccumulatorConfig(**accumulators))
    return Student(cfg, FEATURES, ["ctr"], seed)


MODELS = pytest.mark.parametrize("new", [teacher, student])


def of(model):
    return {k: v for k, v in model.state().items() if k.endswith("/accumulator")}


def test_a_half_life_is_cut_into_equal_steps_that_multiply_to_one_half():
    halving = AccumulatorConfig(half_life_rows=1000)
    ends = range(0, 1001, 10)
    factors = [halving.factor(a, b) for a, b in pairwise(ends)]
    assert np.prod(factors) == pytest.approx(0.5)
    assert sorted(factors).count(1.0) == 100 - PER_HALF_LIFE


def test_it_is_the_rows_that_count_not_how_they_come_in_batches():
    for every in ({"half_life_rows": 160}, {"reset_every_rows": 40}):
        cuts = np.random.default_rng(0).integers(0, 1000, 30)
        ends = [0, *sorted(cuts.tolist()), 1000]
        factor = AccumulatorConfig(**every).factor
        assert np.prod([factor(a, b) for a, b in pairwise(ends)]) == pytest.approx(factor(0, 1000))


def test_both_at_once_are_refused_with_both_numbers():
    with pytest.raises(ValidationError, match="halve every 5,000 rows or be reset every 70, not both"):
        AccumulatorConfig(half_life_rows=5000, reset_every_rows=70)


def test_what_becomes_tiny_is_zero_and_not_a_denormal_number():
    m = torch.tensor([1.0, 1e-3])
    for _ in range(99):
        scale_accumulator(m, 0.5)
    assert m.tolist() == [2.0**-99, 0.0]


@MODELS
def test_accumulators_that_only_grow_are_scaled_and_nothing_else_is(new):
    plain, halving, reset = new(), new(half_life_rows=2 * B * PER_HALF_LIFE), new(reset_every_rows=2 * B)
    for model in (plain, halving, reset):
        model.train_step(batch(0)), model.train_step(batch(1))
    for name, m in of(plain).items():
        assert m.any()
        assert torch.equal(of(halving)[name], m * 2 ** (-1 / PER_HALF_LIFE))
        assert not of(reset)[name].any()
    for name, tensor in plain.state().items():
        if not name.endswith("/accumulator"):
            assert torch.equal(halving.state()[name], tensor)


@MODELS
@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_goes_on_with_the_same_bits_and_scales_at_the_same_rows(new, kind):
    """The interval is no multiple of the batch, and the restart falls between two scalings."""
    straight, first, second = new(**KINDS[kind]), new(**KINDS[kind]), new(seed=9, **KINDS[kind])
    for step in range(3):
        straight.train_step(batch(step)), first.train_step(batch(step))
    second.train_step(batch(77))
    second.load_state(first.state())
    for step in range(3, 12):
        straight.train_step(batch(step)), second.train_step(batch(step))
    a, b = straight.state(), second.state()
    assert all(torch.equal(a[name], b[name]) for name in a)


@MODELS
def test_a_row_that_only_grew_learns_no_more_and_one_that_forgets_goes_on(new):
    """The same few ads again and again: the steps of a table that only grows shrink, the others' do not."""
    late = {}
    for kind, accumulators in {"grows": {}, "halves": {"half_life_rows": 5 * B}}.items():
        model = new(**accumulators)
        moved = []
        for step in range(120):
            before = model.state()["table/ad/weight"]
            model.train_step(batch(step, ads=3))
            moved.append((model.state()["table/ad/weight"] - before).abs().sum().item())
        late[kind] = sum(moved[-30:])
    assert late["halves"] > 2 * late["grows"]


def test_a_step_that_is_not_finite_is_no_rows_learned():
    model = teacher(half_life_rows=16 * B)
    broken = batch(0)
    broken.weights[0] = float("nan")
    before = model.state()
    assert not model.train_step(broken).finite
    assert all(torch.equal(v, before[k]) for k, v in model.state().items())


def test_a_teacher_whose_accumulators_only_grow_keeps_no_count():
    """Its checkpoints are as they were before there was a choice."""
    assert "progress/rows" not in teacher().state()
    assert teacher(half_life_rows=9).state()["progress/rows"] == 0
