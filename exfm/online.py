"""Small corrections of a teacher's logit that are fitted online: a few weights per task, one Adam step a batch.

    L = h(correction(z_F; θ), y),   θ ← Adam(θ, ∂L/∂θ)

Both corrections, the student adapter (exfm/adapter.py) and Platt scaling (exfm/platt.py), are of this kind.

B examples, T tasks, P weights of a task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from exfm.distillation import cross_entropy, mean_over
from exfm.sampling import label_shift

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


class Fitted(NamedTuple):
    """All that a correction is. Immutable: an update makes another one."""

    weights: Tensor  # (T, P)
    exp_avg: Tensor  # (T, P)
    exp_avg_sq: Tensor  # (T, P)
    steps: Tensor  # (T, 1) float32, updates so far

    @classmethod
    def starting_at(cls, weights: Tensor) -> Fitted:
        """Before its first update."""
        return cls(weights, torch.zeros_like(weights), torch.zeros_like(weights), torch.zeros(len(weights), 1))


def fitted(
    state: Fitted,
    lr: float,
    correction: Callable[[Tensor], Tensor],
    labels: Tensor,
    mask: Tensor,
    weights: Tensor,
    negative_rate: Tensor | None = None,
) -> Fitted:
    """The state after one Adam step on L over the rows of mask (B, T).

    `correction` makes logits (B, T) of weights (T, P); labels (B, T), weights (B,), negative_rate (T,) as `objective`
    takes it. A task without rows stays as it is.
    Logits and labels under a False mask must be finite. The result is not checked: a caller that finds it not finite
    keeps the old one.
    """
    theta = state.weights.detach().requires_grad_()
    with torch.enable_grad():
        z = correction(theta)
        if negative_rate is not None:
            z = z + label_shift(negative_rate)
        loss = mean_over(cross_entropy(z, labels), mask, weights)
        (g,) = torch.autograd.grad(loss, theta)
    learns = mask.any(0).unsqueeze(1)
    steps = state.steps + learns
    m = torch.where(learns, torch.lerp(state.exp_avg, g, 1 - BETA1), state.exp_avg)
    v = torch.where(learns, torch.lerp(state.exp_avg_sq, g * g, 1 - BETA2), state.exp_avg_sq)
    m_hat = m / (1 - BETA1**steps)
    v_hat = v / (1 - BETA2**steps)
    moved = state.weights - lr * m_hat / (v_hat.sqrt() + EPS)
    return Fitted(torch.where(learns, moved, state.weights), m, v, steps)
