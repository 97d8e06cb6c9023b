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

import numpy as np
import torch
from torch import Tensor

from exfm.distillation.arm import Arm
from exfm.distillation.correction import SeenBatch
from exfm.distillation.targets import Targets
from exfm.features.sampling import label_shift
from exfm.kernels.loops import loop
from exfm.randomness import named_generator

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
AGE_UNIT = 10.0
"""log(1 + age) over this: 22,000 rows are 1. Adam's steps are those of weights on inputs about as large as 1."""


class Fitted(NamedTuple):
    """State of the adapters. Immutable: an update returns a new one."""

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
    """SA's logits (B, T), without gradient, from weights (T, 3K + 1 + KC), teacher logits (B, T), context (B, C).

    >>> weights = initial_adapter(["ctr"], 8, seed=0).weights
    >>> adapted_logits(weights, torch.tensor([[-2.0], [1.0]])).flatten().tolist()
    [-2.0, 1.0]
    """
    said = np.empty(tuple(teacher_logits.shape), np.float32)
    _say(weights.numpy(), teacher_logits.numpy(), _of_context(weights, context), said)
    return torch.from_numpy(said)


def _width(weights: Tensor, context: Tensor | None) -> int:
    """K."""
    return (weights.shape[1] - 1) // (3 + (0 if context is None else context.shape[1]))


def _of_context(weights: Tensor, context: Tensor | None) -> np.ndarray:
    """V c, (T, B, K); (T, 0, K) without context."""
    T, K = len(weights), _width(weights, context)
    if context is None:
        return np.empty((T, 0, K), np.float32)
    V = weights[:, 3 * K + 1 :].view(T, K, -1)
    return torch.matmul(context, V.transpose(1, 2)).numpy()


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
    without rows stays as it is. Logits and labels under a False mask are not looked at. The result is not checked: a
    caller that finds it not finite keeps the old one.
    """
    of_context, T = _of_context(state.weights, context), len(state.weights)
    shift = torch.zeros(T) if negative_rate is None else label_shift(negative_rate)
    g, of_hidden = torch.zeros_like(state.weights), np.zeros_like(of_context)
    rows = (teacher_logits.numpy(), of_context, labels.numpy(), mask.numpy(), weights.numpy(), shift.numpy())
    counts = np.zeros(T, np.int64)
    _add_rows(state.weights.numpy(), *rows, g.numpy(), of_hidden, counts)
    if context is not None:
        V = g[:, 3 * of_hidden.shape[2] + 1 :]
        V.copy_(torch.matmul(torch.from_numpy(of_hidden).transpose(1, 2), context).flatten(1))
    before = [part.numpy() for part in state]
    after = [np.empty_like(part) for part in before]
    _adam(*before, g.numpy(), counts, lr, *after)
    return Fitted(*map(torch.from_numpy, after))


@loop("void(f4[:, ::1], f4[:, :], f4[:, :, :], f4[:, ::1])")
def _say(weights, z_BT, of_context, said_BT):
    T, C, K = of_context.shape
    for t in range(T):
        W1, b1, W2, b2 = weights[t, :K], weights[t, K : 2 * K], weights[t, 2 * K : 3 * K], weights[t, 3 * K]
        for b in range(len(z_BT)):
            z, added = z_BT[b, t], np.float32(0)
            for k in range(K):
                hidden = z * W1[k] + b1[k]
                if C:
                    hidden += of_context[t, b, k]
                added += max(hidden, np.float32(0)) * W2[k]
            said_BT[b, t] = z + added + b2


@loop("void(f4[:, ::1], f4[:, :], f4[:, :, :], f4[:, :], b1[:, :], f4[:], f4[:], f4[:, ::1], f4[:, :, ::1], i8[::1])")
def _add_rows(weights, z_BT, of_context, labels_BT, known_BT, weights_B, shift_T, g_TP, of_hidden, rows_T):
    """The gradient (T, P) of L_SA, without that of V; that by what V adds, (T, B, K) with context; and rows (T,)."""
    T, C, K = of_context.shape
    hidden = np.empty(K)
    for t in range(T):
        W1, b1, W2, b2 = weights[t, :K], weights[t, K : 2 * K], weights[t, 2 * K : 3 * K], weights[t, 3 * K]
        g = np.zeros(3 * K + 1)
        for b in range(len(z_BT)):
            rows_T[t] += known_BT[b, t]
        for b in range(len(z_BT)):
            if not known_BT[b, t]:
                continue
            z = z_BT[b, t]
            said = z + np.float64(b2) + shift_T[t]
            for k in range(K):
                hidden[k] = z * W1[k] + b1[k]
                if C:
                    hidden[k] += of_context[t, b, k]
                said += max(hidden[k], 0.0) * W2[k]
            slope = (1 / (1 + np.exp(-said)) - labels_BT[b, t]) * weights_B[b] / rows_T[t]
            g[3 * K] += slope
            for k in range(K):
                if hidden[k] > 0:
                    of_k = slope * W2[k]
                    g[k] += of_k * z
                    g[K + k] += of_k
                    g[2 * K + k] += slope * hidden[k]
                    if C:
                        of_hidden[t, b, k] = of_k
        for p in range(3 * K + 1):
            g_TP[t, p] = g[p]


@loop(
    "void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], i8[::1], f8,"
    " f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1])"
)
def _adam(w_TP, m_TP, v_TP, steps_T1, g_TP, rows_T, lr, w_after, m_after, v_after, steps_after):
    T, P = w_TP.shape
    for t in range(T):
        learns = rows_T[t] > 0
        steps = steps_T1[t, 0] + (1.0 if learns else 0.0)
        steps_after[t, 0] = steps
        whole_m, whole_v = 1 - BETA1**steps, 1 - BETA2**steps
        for p in range(P):
            w, m, v, g = w_TP[t, p], m_TP[t, p], v_TP[t, p], np.float64(g_TP[t, p])
            if learns:
                m, v = m + (1 - BETA1) * (g - m), v + (1 - BETA2) * (g * g - v)
                w -= lr * (m / whole_m) / (np.sqrt(v / whole_v) + EPS)
            w_after[t, p], m_after[t, p], v_after[t, p] = w, m, v


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

    def learn(self, seen: SeenBatch, targets: Targets, before: Callable[[], Targets]) -> StudentAdapter:
        batch = seen.batch
        taught = (batch.labels, seen.known, batch.weights, self._context(seen), batch.negative_rate)
        return self._replace(fitted=updated(self.fitted, self.lr, targets.teacher_logits, *taught))

    def apply(self, targets: Targets, seen: SeenBatch) -> Targets:
        said = adapted_logits(self.fitted.weights, targets.teacher_logits, self._context(seen))
        return targets._replace(adapted=said)

    def state(self) -> dict[str, Tensor]:
        return {f"adapter/{key}": value for key, value in self.fitted._asdict().items()}

    def figures(self, tasks: Sequence[str]) -> dict[str, Tensor]:
        if self.has_context:
            return {}
        return {"adapter_shift": adapted_logits(self.fitted.weights, torch.zeros(1, len(tasks)))[0]}

    def _context(self, seen: SeenBatch) -> Tensor | None:
        return context_of(seen.batch.teacher_age, seen.trunk_output) if self.has_context else None
