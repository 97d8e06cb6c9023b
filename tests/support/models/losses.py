"""The losses of every arm, term by term: what exfm/distillation/loss.py must say."""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from torch import Tensor

from exfm.distillation.arm import Arm
from exfm.distillation.targets import RowMasks, Targets
from exfm.features.sampling import label_shift, label_weights, row_weights


def cross_entropy(z: Tensor, target: Tensor) -> Tensor:
    """h(z, y), elementwise, in nats; y may be soft."""
    return nnf.binary_cross_entropy_with_logits(z, target, reduction="none")


def teacher_target(teacher_logits: Tensor, label_scale: float = 1.0, temperature: float = 1.0) -> Tensor:
    """min(1, α·σ(z_F / τ)), elementwise."""
    return (label_scale * torch.sigmoid(teacher_logits / temperature)).clamp(max=1.0)


def mean_over(h: Tensor, mask: Tensor, counts: Tensor, factors: Tensor | None = None) -> Tensor:
    """Σ_t factor · Σ_b mask · count · h / Σ_b mask."""
    means = torch.where(mask, h * counts, 0.0).sum(0) / mask.sum(0).clamp(min=1)
    return (means if factors is None else means * factors).sum()


def terms_by_autograd(
    arm: Arm, labels: Tensor, targets: Targets, rows: RowMasks, z_S: Tensor, z_D: Tensor | None, z_D2: Tensor | None
) -> list[Tensor]:
    """Label, distillation, adapted, single head, with gradient."""
    settled = torch.ones_like(labels, dtype=torch.bool) if rows.label_mask is None else rows.label_mask
    taught = torch.ones_like(settled) if rows.teacher_mask is None else rows.teacher_mask
    every = torch.ones(len(labels), 1, dtype=torch.bool)
    known = settled & (every if rows.label_rows is None else rows.label_rows.unsqueeze(1))
    wanted = settled if arm.rows == "labelled" else torch.ones_like(settled)
    distilled = wanted & taught & (every if rows.distillation_rows is None else rows.distillation_rows.unsqueeze(1))

    weights, z, counts = every.to(z_S)[:, 0] if rows.weights is None else rows.weights, z_S, None
    if rows.negative_rate is not None:
        z = z_S + label_shift(rows.negative_rate)
        counted = label_weights if arm.rows == "labelled" else row_weights
        counts = counted(weights, labels, settled, rows.negative_rate)
    counts = weights.unsqueeze(1) if counts is None else counts
    label = mean_over(cross_entropy(z, torch.where(known, labels, 0.0)), known, weights.unsqueeze(1))
    distillation = adapted = single_head = z_S.new_zeros(())
    if arm.distils:
        z = z_S if arm.kind == "single_head" else z_D
        z_F, tau = torch.where(distilled, targets.teacher_logits, 0.0), arm.temperature
        h = cross_entropy(z / tau, teacher_target(z_F, arm.label_scale, tau))
        distillation = mean_over(h, distilled, counts, targets.factors)
        if rows.cold is not None:
            h = cross_entropy(z_S / tau, teacher_target(z_F, 1.0, tau))
            single_head = mean_over(h, distilled, counts * rows.cold.unsqueeze(1), targets.factors)
    if arm.adapter:
        target = torch.where(distilled, torch.sigmoid(targets.adapted), 0.0)
        adapted = mean_over(cross_entropy(z_D2, target), distilled, counts, targets.adapted_factors)
    return [label, distillation, adapted, single_head]
