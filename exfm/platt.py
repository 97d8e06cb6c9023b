"""Platt scaling of the teacher's logit, online: the baseline that a student adapter has to beat.

    platt(z_F) = a·z_F + b          for one task;    a, b ← Adam on h(a·z_F + b, y);    start a = 1, b = 0

It undoes a teacher whose logits are shifted or stretched, and can do nothing else; two weights a task.

B examples, T tasks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exfm.online import Fitted


def initial_platt(tasks: int) -> Fitted:
    """Of T tasks: weights (T, 2), a and b."""
    return Fitted.starting_at(torch.tensor([1.0, 0.0]).repeat(tasks, 1))


def recalibrated(weights: Tensor, teacher_logits: Tensor) -> Tensor:
    """a·z_F + b: (B, T), of any gradient, from weights (T, 2) and teacher logits (B, T).

    >>> recalibrated(torch.tensor([[2.0, 1.0]]), torch.tensor([[-1.0], [3.0]])).flatten().tolist()
    [-1.0, 7.0]
    """
    a, b = weights.unbind(1)
    return a * teacher_logits + b
