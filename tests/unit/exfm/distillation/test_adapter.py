"""The student adapter: it starts as its teacher, learns to correct it, and is updated like Adam would."""

import pytest
import torch

from exfm.distillation.adapter import adapted_logits, initial_adapter, updated
from exfm.features.sampling import label_shift
from tests.support.models.losses import cross_entropy, mean_over


def rows(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(n, 2, generator=g) - 1
    return truth, torch.bernoulli(torch.sigmoid(truth), generator=g)


def test_a_cold_adapter_repeats_its_teacher():
    x, _ = rows(50)
    assert torch.equal(adapted_logits(initial_adapter(["a", "b"], 8, seed=1).weights, x), x)


def test_an_adapter_of_a_task_does_not_depend_on_the_tasks_beside_it():
    both = initial_adapter(["a", "b"], 8, seed=1)
    assert torch.equal(initial_adapter(["b"], 8, seed=1).weights[0], both.weights[1])
    assert not torch.equal(both.weights[0], both.weights[1])


def by_torch(theta, z, context):
    """SA(z, c), by torch's operators: W2 · relu(W1 z + V c + b1) + b2, added to z."""
    W1, b1, W2, b2, V = theta.split((8, 8, 8, 1, 8 * (0 if context is None else context.shape[1])), dim=1)
    hidden = z.unsqueeze(2) * W1 + b1
    if context is not None:
        hidden = hidden + torch.einsum("bc,tkc->btk", context, V.reshape(len(theta), 8, -1))
    return z + (torch.relu(hidden) * W2).sum(2) + b2.squeeze(1)


@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("rate", [None, torch.tensor([0.25, 1.0])])
def test_logits_and_updates_are_those_of_torch(width, rate):
    x, y = rows(64)
    drawn = torch.Generator().manual_seed(2)
    context = torch.randn(64, width, generator=drawn) if width else None
    mask, weights = torch.rand(64, 2, generator=drawn) < 0.8, 2 * torch.rand(64, generator=drawn)
    state = initial_adapter(["a", "b"], 8, seed=1, context=width)
    theta = state.weights.clone().requires_grad_()
    adam = torch.optim.Adam([theta], lr=0.01)
    for _ in range(20):
        state = updated(state, 0.01, x, y, mask, weights, context, rate)
        adam.zero_grad()
        z = by_torch(theta, x, context)
        z = z if rate is None else z + label_shift(rate)
        mean_over(cross_entropy(z, y), mask, weights.unsqueeze(1)).backward()
        adam.step()
    assert torch.allclose(state.weights, theta, atol=1e-6)
    assert torch.allclose(adapted_logits(state.weights, x, context), by_torch(theta, x, context), atol=1e-5)


def test_an_update_leaves_the_old_state_alone_and_a_task_without_rows_as_it_is():
    x, y = rows(64)
    mask = torch.ones_like(y, dtype=torch.bool)
    mask[:, 1] = False
    old = updated(initial_adapter(["a", "b"], 8, seed=1), 0.01, x, y, torch.ones_like(mask), torch.ones(64))
    copies = [t.clone() for t in old]
    new = updated(old, 0.01, x, y, mask, torch.ones(64))
    assert all(torch.equal(a, b) for a, b in zip(old, copies, strict=True))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(new, old, strict=True))
    assert not torch.equal(new.weights[0], old.weights[0])
    assert new.steps.flatten().tolist() == [2.0, 1.0]


def test_it_learns_away_a_teacher_that_is_wrong_everywhere():
    state = initial_adapter(["a", "b"], 8, seed=1)
    everywhere = torch.ones(512, 2, dtype=torch.bool)
    for seed in range(300):
        truth, y = rows(512, seed)
        state = updated(state, 4e-3, 1.5 * truth - 1, y, everywhere, torch.ones(512))
    truth, _ = rows(4096, seed=1000)
    wrong = 1.5 * truth - 1
    better = (torch.sigmoid(adapted_logits(state.weights, wrong)) - torch.sigmoid(truth)).abs().mean()
    assert better < 0.25 * (torch.sigmoid(wrong) - torch.sigmoid(truth)).abs().mean()
