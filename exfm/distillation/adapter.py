"""The student adapter (SA): a small MLP that corrects the teacher's logit with today's labels (ExFM, arXiv 2502.17494).

    SA(z_F) = z_F + W₂ · relu(W₁ z_F + b₁) + b₂                       for one task
    SA(z_F, c) = z_F + W₂ · relu(W₁ z_F + V c + b₁) + b₂              with context c = (log(1 + age) / 10, sg x)
    L_SA = h(SA, y), Adam

age: rows between what the scoring snapshot had learned and the row; x: the trunk's output, detached. A function of z_F
alone can only recalibrate; with context the correction may differ between rows.

W₂ and b₂ start at 0: an adapter that has learned nothing repeats its teacher. It closes the gap between an old teacher
and today's data, and exists in training only.

B examples, T tasks, K hidden width, C width of the context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from exfm.data import label_shift
from exfm.distillation.arm import Arm
from exfm.distillation.correction import SeenBatch
from exfm.distillation.loss import Lesson, entropy_slope
from exfm.randomness import named_generator

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
AGE_UNIT = 10.0
"""log(1 + age) over this: 22,000 rows are 1. Adam's steps are those of weights on inputs about as large as 1."""


class Fitted(NamedTuple):
    """The whole state of the adapters. Immutable: an update returns a new one."""

    weights: Tensor  # (T, P)
    exp_avg: Tensor  # (T, P)
    exp_avg_sq: Tensor  # (T, P)
    steps: Tensor  # (T, 1) float32, updates so far


def initial_adapter(tasks: Sequence[str], width: int, seed: int, context: int = 0) -> Fitted:
    """An adapter per task, weights (T, 3K + 1 + KC), K = width, C = context: W₁, b₁, W₂ of K each, b₂, V.

    W₁, b₁ ~ N(0, 1) and V ~ N(0, 1/C) from the seed and the task's name alone, W₂ = b₂ = 0.
    """
    K = width
    weights = torch.zeros(len(tasks), 3 * K + 1 + K * context)
    for t, task in enumerate(tasks):
        weights[t, : 2 * K].normal_(generator=named_generator(seed, f"adapter/{task}"))
        if context:
            of_context = named_generator(seed, f"adapter context/{task}")
            weights[t, 3 * K + 1 :].normal_(std=context**-0.5, generator=of_context)
    zeros = torch.zeros_like(weights)
    return Fitted(weights, zeros, zeros.clone(), torch.zeros(len(tasks), 1))


def context_of(teacher_age: Tensor, x: Tensor) -> Tensor:
    """c (B, 1 + H), without gradient, from ages in rows (B,) and the trunk's output (B, H).

    >>> context_of(torch.tensor([0.0, 22_025.5]), torch.tensor([[2.0], [3.0]]))
    tensor([[0.0000, 2.0000],
            [1.0000, 3.0000]])
    """
    return torch.cat([torch.log1p(teacher_age).unsqueeze(1) / AGE_UNIT, x.detach()], dim=1)


def adapted_logits(weights: Tensor, teacher_logits: Tensor, context: Tensor | None = None) -> Tensor:
    """SA's logits (B, T), of any gradient, from weights (T, 3K + 1 + KC), teacher logits (B, T), context (B, C).

    >>> weights = initial_adapter(["ctr"], 8, seed=0).weights
    >>> adapted_logits(weights, torch.tensor([[-2.0], [1.0]])).flatten().tolist()
    [-2.0, 1.0]
    """
    parts = _Parts.of(weights, context)
    hidden = _hidden(parts, teacher_logits, context)
    return teacher_logits + (torch.relu(hidden) * parts.W2).sum(2) + parts.b2.squeeze(1)


class _Parts(NamedTuple):
    """The weights of the adapters of T tasks; V is (T, K · C)."""

    W1: Tensor
    b1: Tensor
    W2: Tensor
    b2: Tensor
    V: Tensor

    @classmethod
    def of(cls, weights: Tensor, context: Tensor | None) -> _Parts:
        C = 0 if context is None else context.shape[1]
        K = (weights.shape[1] - 1) // (3 + C)
        return cls(*weights.split((K, K, K, 1, K * C), dim=1))


def _hidden(parts: _Parts, teacher_logits: Tensor, context: Tensor | None) -> Tensor:
    """(B, T, K), before the ReLU."""
    T, K = parts.W1.shape
    hidden = torch.addcmul(parts.b1, teacher_logits.unsqueeze(2), parts.W1)
    return hidden if context is None else hidden + (context @ parts.V.reshape(T * K, -1).T).view(-1, T, K)


def _gradient(weights: Tensor, teacher_logits: Tensor, context: Tensor | None, slope: Tensor) -> Tensor:
    """The gradient (T, P) of a loss whose derivative by the adapters' logits is `slope` (B, T)."""
    parts = _Parts.of(weights, context)
    hidden = _hidden(parts, teacher_logits, context)
    open_TBK = (hidden > 0).to(hidden.dtype).transpose(0, 1)
    slope_T1B = slope.T.unsqueeze(1)
    through = torch.cat([slope_T1B * teacher_logits.T.unsqueeze(1), slope_T1B], dim=1)  # (T, 2, B)
    W1, b1 = (torch.bmm(through, open_TBK) * parts.W2.unsqueeze(1)).unbind(1)
    W2 = torch.bmm(slope_T1B, torch.relu(hidden).transpose(0, 1)).squeeze(1)
    found = [W1, b1, W2, slope.sum(0).unsqueeze(1)]
    if context is not None:
        of_hidden = open_TBK * parts.W2.unsqueeze(1) * slope.T.unsqueeze(2)  # (T, B, K)
        found.append(torch.matmul(of_hidden.transpose(1, 2), context).flatten(1))
    return torch.cat(found, dim=1)


def updated(
    state: Fitted,
    lr: float,
    teacher_logits: Tensor,
    labels: Tensor,
    mask: Tensor,
    weights: Tensor,
    context: Tensor | None = None,
    negative_rate: Tensor | None = None,
) -> Fitted:
    """The adapter after one Adam step on L_SA over the rows of mask (B, T), those with a label and a teacher logit.

    Teacher logits and labels (B, T), weights (B,), context (B, C), negative_rate (T,) as `objective` takes it. A task
    without rows stays as it is. Logits and labels under a False mask must be finite. The result is not checked: a
    caller that finds it not finite keeps the old one.
    """
    z = adapted_logits(state.weights, teacher_logits, context)
    if negative_rate is not None:
        z = z + label_shift(negative_rate)
    g = _gradient(state.weights, teacher_logits, context, entropy_slope(z, labels, mask, weights))
    learns = mask.any(0).unsqueeze(1)
    steps = state.steps + learns
    m = torch.where(learns, torch.lerp(state.exp_avg, g, 1 - BETA1), state.exp_avg)
    v = torch.where(learns, torch.lerp(state.exp_avg_sq, g * g, 1 - BETA2), state.exp_avg_sq)
    m_hat = m / (1 - BETA1**steps)
    v_hat = v / (1 - BETA2**steps)
    moved = state.weights - lr * m_hat / (v_hat.sqrt() + EPS)
    return Fitted(torch.where(learns, moved, state.weights), m, v, steps)


class StudentAdapter(NamedTuple):
    """The correction SA(z_F') (exfm/distillation/correction.py). The teacher's own logits stay as they are."""

    fitted: Fitted
    lr: float
    has_context: bool

    @classmethod
    def initial(cls, arm: Arm, tasks: Sequence[str], width: int, seed: int) -> StudentAdapter:
        has_context = arm.adapter_input == "context"
        fitted = initial_adapter(tasks, arm.adapter_width, seed, 1 + width if has_context else 0)
        return cls(fitted, arm.adapter_lr, has_context)

    def learn(self, seen: SeenBatch, lesson: Lesson, before: Callable[[], Lesson]) -> StudentAdapter:
        def learned() -> Fitted:
            taught = (seen.labels, seen.known, seen.batch.weights, self._context(seen), seen.batch.negative_rate)
            return updated(self.fitted, self.lr, lesson.teacher_logits, *taught)

        if self.has_context:
            return self._replace(fitted=learned())
        past = (self.lr, *self.fitted, lesson.teacher_logits)
        return self._replace(fitted=Fitted(*(part.clone() for part in seen.once("adapter", past, learned))))

    def apply(self, lesson: Lesson, seen: SeenBatch) -> Lesson:
        said = (self.fitted.weights, lesson.teacher_logits)
        if self.has_context:
            return lesson._replace(adapted=adapted_logits(*said, self._context(seen)))
        return lesson._replace(adapted=seen.once("adapted", said, lambda: adapted_logits(*said)))

    def state(self) -> dict[str, Tensor]:
        return {f"adapter/{key}": value for key, value in self.fitted._asdict().items()}

    def figures(self, tasks: Sequence[str]) -> dict[str, Tensor]:
        if self.has_context:
            return {}
        return {"adapter_shift": adapted_logits(self.fitted.weights, torch.zeros(1, len(tasks)))[0]}

    def _context(self, seen: SeenBatch) -> Tensor | None:
        return context_of(seen.batch.teacher_age, seen.trunk_output) if self.has_context else None
