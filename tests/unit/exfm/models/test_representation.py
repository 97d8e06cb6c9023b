"""A teacher's representation of rows: learned beside it, said in the same inference, and nothing to the teacher."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exfm.features.representation import packed, unpacked
from exfm.models import teacher_net
from exfm.models.growth.refit import MadeWith, fitted_teacher
from exfm.models.scorer import TeacherScorer
from exfm.models.teacher import Teacher
from exfm.parallel.group import RankGroup
from exfm.snapshots.checkpoint import load_checkpoint, save_checkpoint
from tests.support.models.states import same
from tests.support.models.teachers import CFG, FEATURES, TASKS, batch

K = 6
WITH = CFG.model_copy(update={"representation": K})


@pytest.fixture
def group():
    with RankGroup() as group:
        yield group


def trained(cfg, group, steps=range(6)):
    teacher = Teacher(cfg, FEATURES, TASKS, 0, group=group)
    return teacher, [teacher.train_step(batch(step)) for step in steps]


def scorer_of(teacher, cfg=WITH):
    scorer = TeacherScorer(cfg, FEATURES, TASKS)
    scorer.load(teacher.snapshot())
    return scorer


def test_the_teacher_has_the_same_bits_with_and_without(group):
    (plain, plain_steps), (teacher, steps) = trained(CFG, group), trained(WITH, group)
    for one, other in zip(plain_steps, steps, strict=True):
        assert np.array_equal(one.logits, other.logits)
        assert one.loss == other.loss
    more = {name: tensor for name, tensor in teacher.state().items() if "representation" not in name}
    assert same(plain.state(), more)
    assert np.array_equal(scorer_of(plain, CFG).score(batch(9)), scorer_of(teacher).score(batch(9)))


def test_one_inference_says_both_and_a_teacher_without_one_says_logits_alone(group):
    (plain, _), (teacher, _) = trained(CFG, group), trained(WITH, group)
    logits, r = scorer_of(teacher).answer(batch(9))
    assert np.array_equal(logits, teacher.score(batch(9)))
    assert r.shape == (64, K)
    assert np.ptp(r, axis=0).min() > 0.01
    assert scorer_of(plain, CFG).answer(batch(9)).representation is None
    assert scorer_of(teacher).answer(batch(9, count=0)).representation.shape == (0, K)


def test_it_learns_the_labels_from_what_it_hands_out(group):
    """Logits of r alone are better than the prior's."""
    teacher, _ = trained(WITH, group, range(300))
    rows = batch(1000, count=2000)
    r = torch.from_numpy(scorer_of(teacher).answer(rows).representation)
    of_r = teacher._net.representation.logits(r) + teacher._net.prior.offset()
    click = rows.labels[:, :1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    rate = click.mean().logit().expand_as(click)
    assert loss(of_r[:, :1].detach(), click) < 0.9 * loss(rate, click)


def test_a_teacher_that_was_stopped_goes_on_with_the_same_representation(group, tmp_path):
    straight, _ = trained(WITH, group)
    half, _ = trained(WITH, group, range(3))
    saved = load_checkpoint(save_checkpoint(tmp_path, "v3", half.state(), {}, kind="teacher"))
    again = Teacher(WITH, FEATURES, TASKS, 0, group=group)
    again.load_state(saved.tensors)
    for step in range(3, 6):
        again.train_step(batch(step))
    assert same(straight.state(), again.state())


def test_it_stays_where_the_teachers_tables_grow(group):
    teacher, _ = trained(WITH, group)
    ad, *others = FEATURES.sparse
    grown = FEATURES.model_copy(update={"sparse": (ad.model_copy(update={"rows": 100}), *others)})
    was, now = (MadeWith.of(WITH, features, TASKS, 0) for features in (FEATURES, grown))
    scorer = TeacherScorer(WITH, grown, TASKS)
    scorer.load(fitted_teacher(teacher.snapshot(), was, now))
    assert np.array_equal(scorer.answer(batch(9)).representation, scorer_of(teacher).answer(batch(9)).representation)


def test_compiled_code_hands_out_the_layer_that_it_is_made_of(monkeypatch):
    """The projection is beside the code. Here the code is run as it was written, not compiled."""

    def run(function, *_, **__):
        def code(tensors):
            with torch.enable_grad():
                return function(*tensors)

        return code

    monkeypatch.setattr(teacher_net, "machine_code", run)
    with RankGroup() as group:
        teacher, _ = trained(WITH.model_copy(update={"compile": True}), group)
        plain, _ = trained(WITH, group)
    for name, tensor in plain.state().items():
        if name.startswith(("dense/", "adam/")):
            assert torch.allclose(tensor, teacher.state()[name], atol=1e-5), name
    compiled = scorer_of(teacher, WITH.model_copy(update={"compile": True})).answer(batch(9))
    np.testing.assert_allclose(compiled.representation, scorer_of(plain).answer(batch(9)).representation, atol=1e-5)


def test_a_cell_has_four_bytes_and_one_for_each_value_and_is_right_to_half_a_step(group):
    r = np.random.default_rng(1).normal(0, 3, (500, 16)).astype(np.float32)
    cells = packed(r)
    assert cells.shape == (500, 20)
    assert (np.abs(unpacked(cells) - r) <= np.abs(r).max(axis=1, keepdims=True) / 127 / 2 + 1e-6).all()
