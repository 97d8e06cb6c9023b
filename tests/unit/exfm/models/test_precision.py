"""A teacher whose products are of bf16: other logits than fp32 gives, the same ones every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exfm.models.scorer import TeacherScorer
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from tests.support.models.states import same
from tests.support.models.teachers import CFG, FEATURES, TASKS, batch

BF16 = CFG.model_copy(update={"precision": "bf16"})


@pytest.fixture
def group():
    with RankGroup() as group:
        yield group


def trained(group, cfg, steps, state=None):
    teacher = Teacher(cfg, FEATURES, TASKS, 0, group=group)
    if state is not None:
        teacher.load_state(state)
    for step in steps:
        assert teacher.train_step(batch(step)).finite
    return teacher


def test_bf16_learns_nearly_the_same_and_keeps_everything_in_fp32(group):
    fp32, bf16 = (trained(group, cfg, range(30)) for cfg in (CFG, BF16))
    z, rounded = fp32.score(batch(99)), bf16.score(batch(99))
    assert not np.array_equal(z, rounded)
    assert np.abs(z - rounded).mean() < 0.1
    learned = {name: t for name, t in bf16.state().items() if name.startswith(("dense/", "adam/"))}
    assert {t.dtype for t in learned.values()} == {torch.float32}


@pytest.mark.parametrize("interaction", ["dlrm", "dcn"])
def test_other_interactions_learn_nearly_the_same_in_bf16(group, interaction):
    cfg = TeacherConfig(width=4, interaction=interaction, head=(8,))
    fp32, bf16 = (trained(group, cfg.model_copy(update={"precision": of}), range(30)) for of in ("fp32", "bf16"))
    z, rounded = fp32.score(batch(99)), bf16.score(batch(99))
    assert not np.array_equal(z, rounded)
    assert np.abs(z - rounded).mean() < 0.1


def test_two_runs_and_a_resumed_one_are_the_same_to_the_bit(group):
    straight, again = (trained(group, BF16, range(6)) for _ in range(2))
    half = trained(group, BF16, range(3)).state()
    resumed = trained(group, BF16, range(3, 6), half)
    assert same(straight.state(), again.state())
    assert same(straight.state(), resumed.state())


def test_what_scores_says_what_the_teacher_says(group):
    teacher = trained(group, BF16, range(3))
    scorer = TeacherScorer(BF16, FEATURES, TASKS)
    scorer.load(teacher.snapshot())
    np.testing.assert_array_equal(scorer.score(batch(9)), teacher.score(batch(9)))


def test_bf16_takes_no_other_dtype():
    assert BF16.model_dump()["precision"] == "bf16"
    with pytest.raises(ValueError, match="precision `bf16` computes products of a float32 teacher"):
        TeacherConfig.model_validate({"precision": "bf16", "dense_dtype": "float64"})
