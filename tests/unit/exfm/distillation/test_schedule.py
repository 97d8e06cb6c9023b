"""A student that begins with a single head changes at its row to an auxiliary one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from exfm.distillation.arm import Arm
from tests.support.models.arms import learn
from tests.support.models.states import same
from tests.support.models.students import served, stream, student


def test_before_the_change_it_is_a_single_head_and_its_other_heads_are_warm():
    scheduled = student(arm_of=Arm(single_head_rows=10_000, single_head_weight=0.7, label_scale=1.2))
    single, auxiliary = student(arm_of=Arm(kind="single_head", weight=0.7)), student(arm_of=Arm())
    cold = scheduled.state()["dense/auxiliary.weight"]
    for batch in stream(1_000):
        assert np.array_equal(scheduled.train_step(batch).logits, single.train_step(batch).logits)
        auxiliary.train_step(batch)
    assert same(served(scheduled.state()), served(single.state()))
    assert not same(served(scheduled.state()), served(auxiliary.state()))
    assert not torch.equal(scheduled.state()["dense/auxiliary.weight"], cold)


@pytest.mark.parametrize("change", [512, 600, 767, 768])
def test_the_schedule_changes_at_exactly_its_row(change):
    """The third step has rows 512 to 767. Of one row in it the teacher says something, and no label is known: the
    serving head moves where the row comes before the change, and stays where it does not."""
    batches = stream(768)
    for row in {change - 1, change, change + 1} & set(range(512, 768)):
        one = student(arm_of=Arm(single_head_rows=change, rows="all"))
        learn(one, batches[:2])
        second = student(arm_of=one.cfg.arm)
        second.load_state(one.state())
        before = one.state()
        nothing = torch.zeros_like(batches[2].label_mask)
        told = nothing.clone()
        told[row - 512] = True
        batch = replace(batches[2], label_mask=nothing, teacher_mask=told)
        for resumed in (one, second):
            optimizer_at_rest(resumed)
            resumed.train_step(batch)
            after = resumed.state()
            moved = {name: not torch.equal(after[name], before[name]) for name in before if name.startswith("dense/")}
            assert moved["dense/serving.weight"] == (row < change)
            assert moved["dense/auxiliary.weight"]
            assert moved["dense/trunk.top.0.weight"]


def optimizer_at_rest(one):
    """Adam without momentum: what has no gradient does not move."""
    state = one.state()
    one.load_state(state | {k: torch.zeros_like(v) for k, v in state.items() if k.startswith("adam/")})


def test_after_the_change_it_is_an_auxiliary_head_and_nothing_more():
    """From the same state on, a scheduled student and one that never had a schedule learn the same bits."""
    scheduled, plain = student(arm_of=Arm(single_head_rows=512)), student(arm_of=Arm())
    batches = stream(2_000)
    learn(scheduled, batches[:2])
    plain.load_state(scheduled.state())
    learn(scheduled, batches[2:]), learn(plain, batches[2:])
    assert same(scheduled.state(), plain.state())
