"""Platt scaling: it starts as its teacher, and finds the line that a miscalibrated teacher's logits lie on."""

import torch

from exfm.online import fitted
from exfm.platt import initial_platt, recalibrated


def rows(n, seed):
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(n, 2, generator=g) - 1
    return truth, torch.bernoulli(torch.sigmoid(truth), generator=g)


def learned(state, lr, z, y, mask):
    return fitted(state, lr, lambda theta: recalibrated(theta, z), y, mask, torch.ones(len(y)))


def test_before_it_has_learned_it_says_what_the_teacher_says():
    z, _ = rows(50, seed=0)
    assert torch.equal(recalibrated(initial_platt(2).weights, z), z)


def test_it_finds_the_line_that_undoes_a_miscalibrated_teacher():
    """z_F = 1.5·truth − 1 for one task, truth / 2 + ½ for the other: a = ⅔ and 2, b = ⅔ and −1."""
    state = initial_platt(2)
    everywhere = torch.ones(2048, 2, dtype=torch.bool)
    for seed in range(500):
        truth, y = rows(2048, seed)
        wrong = torch.stack([1.5 * truth[:, 0] - 1, truth[:, 1] / 2 + 0.5], dim=1)
        state = learned(state, 1e-2, wrong, y, everywhere)
    assert torch.allclose(state.weights, torch.tensor([[2 / 3, 2 / 3], [2.0, -1.0]]), atol=0.1)


def test_a_task_without_rows_stays_as_it_is():
    z, y = rows(64, seed=1)
    mask = torch.tensor([True, False]).expand(64, 2)
    after = learned(initial_platt(2), 4e-3, z, y, mask)
    assert after.weights[1].tolist() == [1, 0]
    assert after.weights[0].tolist() != [1, 0]
    assert after.steps.flatten().tolist() == [1, 0]
