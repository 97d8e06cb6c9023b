"""Platt scaling: it starts as its teacher, and soon finds the line that a miscalibrated teacher's logits lie on."""

import pytest
import torch

from exfm.distillation.platt import initial_platt, recalibrated, updated

HALF_LIFE_ROWS = 10_000


def rows(n, seed, mean=-1.0):
    """True logits of two tasks, and labels."""
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(n, 2, generator=g) + mean
    return truth, torch.bernoulli(torch.sigmoid(truth), generator=g)


def learned(state, z, y, mask=None, weights=None):
    mask = torch.ones_like(y, dtype=torch.bool) if mask is None else mask
    return updated(state, HALF_LIFE_ROWS, z, y, mask, torch.ones(len(y)) if weights is None else weights)


def after(teacher, n, mean=-1.0):
    """What is learned of a teacher, a function of true logits, in n rows."""
    state = initial_platt(2)
    truth, y = rows(n, seed=0, mean=mean)
    for some in torch.arange(n).split(512):
        state = learned(state, teacher(truth[some]), y[some])
    return state


def excess_loss(state, teacher, mean):
    """By how much the corrected teacher's mean cross-entropy is above the truth's, relative; free of noise."""
    truth = rows(50_000, seed=1, mean=mean)[0]
    p, q = torch.sigmoid(truth), torch.sigmoid(recalibrated(state, teacher(truth))).clamp(1e-6, 1 - 1e-6)
    of_truth, of_q = (-(p * r.log() + (1 - p) * (1 - r).log()).mean() for r in (p, q))
    return (of_q / of_truth - 1).item()


def stretched(truth):
    return 1.5 * truth - 1


def test_before_it_has_learned_it_says_what_the_teacher_says():
    z, _ = rows(50, seed=0)
    assert torch.equal(recalibrated(initial_platt(2), z), z)


def test_it_finds_the_line_that_undoes_a_miscalibrated_teacher_within_a_few_thousand_rows():
    """z_F = 1.5·truth − 1 for one task, truth / 2 + ½ for the other: a = ⅔ and 2, b = ⅔ and −1."""
    state = after(lambda truth: torch.stack([stretched(truth[:, 0]), truth[:, 1] / 2 + 0.5], dim=1), n=8_000)
    assert torch.allclose(state.theta.float(), torch.tensor([[2 / 3, 2 / 3], [2.0, -1.0]]), atol=0.15)


@pytest.mark.parametrize(("mean", "left"), [(-1.0, 0.02), (-3.0, 0.02), (-4.5, 0.1)])
def test_most_of_the_harm_is_undone_after_two_batches_and_nearly_all_after_ten(mean, left):
    """As soon as a student that is born beside such a teacher needs it; and a label may be rare (mean −3: 7 %, −4.5:
    2 %, of which ten batches hold 90 positives)."""
    harm = excess_loss(initial_platt(2), stretched, mean)
    assert excess_loss(after(stretched, 2 * 512, mean), stretched, mean) < 0.25 * harm
    assert excess_loss(after(stretched, 10 * 512, mean), stretched, mean) < left * harm
    assert excess_loss(after(stretched, 40 * 512, mean), stretched, mean) < 1e-3


@pytest.mark.parametrize("shift", [-6.0, 6.0])
def test_from_far_off_it_gets_there_in_steps_and_does_not_swing(shift):
    """Where p(1 − p) is next to 0, it is no guide to how far a Newton step should go."""

    def teacher(truth):
        return truth + shift

    harm = [excess_loss(after(teacher, n, -1.0), teacher, -1.0) for n in (0, 512, 1_024, 4_096, 20_480)]
    assert harm == sorted(harm, reverse=True)
    assert harm[-1] < 0.02


def test_a_calibrated_teacher_stays_as_it_is():
    state = after(lambda truth: truth, n=20_480, mean=-3.0)
    assert excess_loss(state, lambda truth: truth, -3.0) < 1e-3


def test_a_teacher_that_changes_is_followed():
    """It forgets: after two half-lives most of the harm of a change is undone, whatever was learned before."""

    def changed(truth):
        return truth - 1

    state = after(lambda truth: truth + 1, n=40_000)
    harm = excess_loss(state, changed, -1.0)
    for seed in range(2, 2 + 2 * HALF_LIFE_ROWS // 1_000):
        truth, y = rows(1_000, seed)
        state = learned(state, changed(truth), y)
    assert excess_loss(state, changed, -1.0) < 0.2 * harm


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_batches_of_one_class_are_harmless(label):
    """For an hour nobody clicks, or everybody does: what is said stays finite, and is unlearned in a day."""
    state = after(stretched, n=4_096)
    for seed in range(5):
        truth, y = rows(512, seed)
        state = learned(state, stretched(truth), torch.full_like(y, label))
    assert torch.isfinite(recalibrated(state, truth)).all()
    assert state.theta.abs().max() <= 10
    for seed in range(5, 85):
        truth, y = rows(512, seed)
        state = learned(state, stretched(truth), y)
    assert excess_loss(state, stretched, -1.0) < 0.01


def test_a_task_without_rows_stays_as_it_is():
    z, y = rows(64, seed=1)
    mask = torch.tensor([True, False]).expand(64, 2)
    before = after(stretched, n=1_024)
    spoilt = torch.where(mask, z, torch.nan), torch.where(mask, y, torch.nan)
    got = learned(before, *spoilt, mask)
    assert all(torch.equal(a[1], b[1]) for a, b in zip(got, before, strict=True))
    assert not torch.equal(got.theta[0], before.theta[0])


def test_a_row_of_weight_2_is_two_rows():
    z, y = rows(64, seed=1)
    twice = learned(initial_platt(2), z, y, weights=torch.full((64,), 2.0))
    both = learned(initial_platt(2), z.repeat(2, 1), y.repeat(2, 1))
    assert torch.allclose(twice.theta, both.theta)


def test_a_batch_that_is_not_finite_shows_in_the_state_and_raises_nothing():
    z, y = rows(64, seed=1)
    for broken in (torch.nan, torch.inf, 1e25):
        z[3, 0] = broken
        after = learned(initial_platt(2), z, y)
        assert not all(torch.isfinite(tensor.float()).all() for tensor in after)


def test_a_teacher_that_says_the_opposite_is_not_turned_round_but_says_nothing():
    """So a teacher of noise does not come out as one that is always a little right."""
    state = after(lambda truth: -truth, n=20_480)
    assert state.theta[:, 0].tolist() == [0.0, 0.0]
    base_rate = torch.sigmoid(rows(50_000, seed=1)[0]).mean().item()
    assert torch.sigmoid(state.theta[:, 1]).tolist() == pytest.approx([base_rate] * 2, abs=0.03)
