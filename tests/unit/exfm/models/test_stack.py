"""The stack: two logits weighed online."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from exfm.features.batch import Batch
from exfm.metrics.classification import cross_entropy
from exfm.models.stack import Stack
from tests.support.models.batches import batch_of_labels


def _streams(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Labels of a truth, the truth, and noise of the same size."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(rows, 1, generator=generator)
    y = torch.bernoulli(torch.sigmoid(truth - 2), generator=generator)
    return y, truth, torch.randn(rows, 1, generator=generator)


def _progressive(y: Tensor, deep: Tensor, wide: Tensor, prior: float = -2.0) -> tuple[Stack, Tensor]:
    stack, offset, seen = Stack(1), torch.tensor([prior]), []
    for rows in torch.arange(len(y)).split(64):
        seen.append(stack(offset, deep[rows], wide[rows]))
        stack.learn(offset, deep[rows], wide[rows], batch_of_labels(y[rows]), offset)
    return stack, torch.cat(seen)


def _loss(z: Tensor, y: Tensor) -> float:
    return float(cross_entropy(z.numpy().ravel(), y.numpy().ravel()).mean())


def test_the_stack_follows_the_better_of_two_models_whichever_it_is() -> None:
    y, truth, noise = _streams(8192, seed=1)
    for deep, wide in ((truth - 2, noise - 2), (noise - 2, truth - 2)):
        _, z = _progressive(y, deep, wide)
        assert _loss(z[1024:], y[1024:]) < 1.003 * _loss(truth[1024:] - 2, y[1024:])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_stack_follows_its_linear_part_where_positives_are_few_and_the_network_is_worse(seed: int) -> None:
    """As of a log of app installs: 100,000 rows, some 250 of them positive."""
    generator = torch.Generator().manual_seed(seed)
    truth = -8 + 2 * torch.randn(100_000, 1, generator=generator)
    y = torch.bernoulli(torch.sigmoid(truth), generator=generator)
    assert 150 < int(y.sum()) < 350
    network = truth + 1.5 * torch.randn(len(y), 1, generator=generator)
    _, z = _progressive(y, deep=network, wide=truth, prior=-6.0)
    assert _loss(network, y) > 1.05 * _loss(truth, y)
    assert _loss(z, y) < 1.01 * _loss(truth, y)


def test_the_stack_of_two_noises_is_no_worse_than_the_rate() -> None:
    y, _, noise = _streams(8192, seed=2)
    other = noise.roll(1, 0)
    _, z = _progressive(y, 2 * noise - 2, 2 * other - 2)
    rate = torch.full_like(y, float(torch.logit(y.mean())))
    assert _loss(z[1024:], y[1024:]) < 1.01 * _loss(rate[1024:], y[1024:])


def test_a_stack_taken_up_from_its_tensors_goes_on_with_the_same_bits() -> None:
    y, truth, noise = _streams(512, seed=3)
    stack, _ = _progressive(y, truth, noise)
    again = Stack(1)
    again.load(stack.tensors())
    for each in (stack, again):
        each.learn(torch.zeros(1), truth, noise, batch_of_labels(y), torch.zeros(1))
    assert torch.equal(stack.theta, again.theta)


def test_rows_whose_label_is_not_known_teach_nothing() -> None:
    y, truth, noise = _streams(64, seed=4)
    batch: Batch = batch_of_labels(y, known=torch.zeros(64, 1, dtype=torch.bool))
    stack = Stack(1)
    before = stack.theta.clone()
    stack.learn(torch.zeros(1), truth, noise, batch, torch.zeros(1))
    assert torch.equal(stack.theta, before)


def test_a_batch_that_is_not_finite_teaches_nothing() -> None:
    y, truth, noise = _streams(64, seed=5)
    stack = Stack(1)
    before = stack.theta.clone()
    stack.learn(torch.zeros(1), truth * torch.inf, noise, batch_of_labels(y), torch.zeros(1))
    assert torch.equal(stack.theta, before)
