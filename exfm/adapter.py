"""The student adapter (SA): a small MLP that corrects the teacher's logit with today's labels (ExFM, arXiv 2502.17494).

    SA(x) = x + W₂ · relu(W₁ x + b₁) + b₂          for one task, x the teacher's logit
    L_SA = h(SA(x), y), Adam

W₂ and b₂ start at 0: a cold adapter repeats its teacher. It closes the gap between an old teacher and today's data, and
exists in training only.

B examples, T tasks, K hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from exfm.distillation import cross_entropy, mean_over
from exfm.embeddings import named_generator

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class AdapterState(NamedTuple):
    """All that the adapter is. Immutable: an update makes another one."""

    weights: Tensor  # (T, 3K + 1): W₁, b₁, W₂ of K each, b₂
    exp_avg: Tensor  # (T, 3K + 1)
    exp_avg_sq: Tensor  # (T, 3K + 1)
    steps: Tensor  # (T, 1) float32, updates so far


def initial_adapter(tasks: Sequence[str], width: int, seed: int) -> AdapterState:
    """An adapter per task, K = width: W₁, b₁ ~ N(0, 1) from the seed and the task's name alone, W₂ = b₂ = 0."""
    weights = torch.zeros(len(tasks), 3 * width + 1)
    for t, task in enumerate(tasks):
        weights[t, : 2 * width].normal_(generator=named_generator(seed, f"adapter/{task}"))
    return AdapterState(weights, torch.zeros_like(weights), torch.zeros_like(weights), torch.zeros(len(tasks), 1))


def adapted_logits(weights: Tensor, teacher_logits: Tensor) -> Tensor:
    """SA's logits (B, T), of any gradient, from weights (T, 3K + 1) and teacher logits (B, T).

    >>> weights = initial_adapter(["ctr"], 8, seed=0).weights
    >>> adapted_logits(weights, torch.tensor([[-2.0], [1.0]])).flatten().tolist()
    [-2.0, 1.0]
    """
    K = weights.shape[1] // 3
    W1, b1, W2, b2 = weights.split((K, K, K, 1), dim=1)
    hidden = torch.relu(teacher_logits.unsqueeze(2) * W1 + b1)
    return teacher_logits + (hidden * W2).sum(2) + b2.squeeze(1)


def updated(
    state: AdapterState, lr: float, teacher_logits: Tensor, labels: Tensor, mask: Tensor, weights: Tensor
) -> AdapterState:
    """The adapter after one Adam step on L_SA over the rows of mask (B, T), those with a label and a teacher logit.

    Teacher logits and labels (B, T), weights (B,). A task without rows stays as it is. Values under a False mask must
    be finite. The result is not checked: a caller that finds it not finite keeps the old one.
    """
    theta = state.weights.detach().requires_grad_()
    with torch.enable_grad():
        loss = mean_over(cross_entropy(adapted_logits(theta, teacher_logits), labels), mask, weights)
        (g,) = torch.autograd.grad(loss, theta)
    learns = mask.any(0).unsqueeze(1)
    steps = state.steps + learns
    m = torch.where(learns, torch.lerp(state.exp_avg, g, 1 - BETA1), state.exp_avg)
    v = torch.where(learns, torch.lerp(state.exp_avg_sq, g * g, 1 - BETA2), state.exp_avg_sq)
    m_hat = m / (1 - BETA1**steps)
    v_hat = v / (1 - BETA2**steps)
    moved = state.weights - lr * m_hat / (v_hat.sqrt() + EPS)
    return AdapterState(torch.where(learns, moved, state.weights), m, v, steps)
