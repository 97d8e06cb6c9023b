"""A weight that follows how much the teacher is seen to know."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from exfm.distillation.advantage import measured, no_advantage_yet, share
from exfm.distillation.arm import Arm
from tests.support.models.states import same
from tests.support.models.students import served, stream, student


def test_a_teacher_that_is_worse_loses_its_weight_and_one_that_is_better_keeps_it():
    weights = {}
    for wrong in (False, True):
        one = student(arm_of=Arm(adapter=True, follows="advantage"))
        rng = torch.Generator().manual_seed(3)
        for batch in stream(8_000):
            noise = 3 * torch.randn(batch.teacher_logits.shape, generator=rng)
            one.train_step(replace(batch, teacher_logits=noise) if wrong else batch)
        weights[wrong] = one.correction_figures()
    assert weights[False]["teacher_weight_ctr"] > 0.9
    assert weights[True]["teacher_weight_ctr"] < 0.1


def test_the_weight_of_a_batch_is_that_of_the_rows_before_it():
    """What a batch says of the teacher counts from the next one on: the first one teaches what labels teach."""
    one, twin = student(arm_of=Arm(adapter=True, follows="advantage")), student("none")
    first, second = stream(4_096, batch_rows=2_048)
    one.train_step(first), twin.train_step(first)
    assert same(served(one.state()), served(twin.state()))
    assert one.correction_figures()["teacher_weight_ctr"] > 0
    one.train_step(second), twin.train_step(second)
    assert not same(served(one.state()), served(twin.state()))


def test_the_weight_is_about_the_same_where_only_a_share_of_the_negatives_is_there():
    generator = torch.Generator().manual_seed(1)
    known, unknown, kept = torch.randn(3, 40_000, 1, generator=generator)
    y = torch.bernoulli(torch.sigmoid(known + 0.5 * unknown - 1), generator=generator)
    z_S, z_F = known - 1, known + 0.5 * unknown - 1
    there = (y == 1) | (kept > 0.67)  # of all, and of every fourth negative
    found = []
    for mask in (torch.ones_like(there), there):
        state = no_advantage_yet(1)
        for rows in torch.arange(len(y)).split(1_000):
            state = measured(state, z_S[rows], z_F[rows], y[rows], mask[rows], torch.ones(1_000))
        found.append(share(state).item())
    assert found[0] == pytest.approx(found[1], abs=0.1)
    assert min(found) > 0.4


def test_a_weight_of_zero_leaves_exactly_the_twin():
    one, twin = student(arm_of=Arm(adapter=True, follows="advantage")), student("none")
    batches = stream(1_500)
    state = one.state()
    state["advantage/information"] *= 1e9  # so sure that a teacher knows nothing that no batch changes that
    one.load_state(state)
    for batch in batches:
        assert np.array_equal(one.train_step(batch).logits, twin.train_step(batch).logits)
