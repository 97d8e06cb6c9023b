"""Distilling the representation of a row: a head, in training only, predicts it from the trunk's output.

    L_r = Σ_b weight_b · mean_j (ẑ_bj − (r_bj − μ_j) / σ_j)² / n

over the n distillation rows that have one; μ and σ are the mean and the standard deviation of the values of all
earlier rows, so that no teacher's scale decides what a weight of L_r means. `representation_weight` · L_r is added to a
student's loss (exfm/distillation/loss.py), and reaches what is served through the trunk alone.

B examples, k values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exfm.errors import ModelError
from exfm.features.batch import Batch

LEAST_VARIANCE = 1e-12


class RepresentationLoss:
    """L_r, and the moments of what it learned from: `total` (1 + 2 k,) float64, as a history has it."""

    def __init__(self, width: int) -> None:
        self.width, self.total = width, torch.zeros(1 + 2 * width, dtype=torch.float64)

    def __call__(self, predicted: Tensor, batch: Batch, distillation_rows: Tensor | None) -> Tensor:
        """A scalar with gradient, from predictions (B, k); 0 where no row has a representation."""
        r, known = self._known(batch)
        if distillation_rows is not None:
            known = known & distillation_rows
        n, (mean, square) = self.total[:1].clamp(min=1), self.total[1:].view(2, -1)
        mean, spread = mean / n, (square / n - (mean / n) ** 2).clamp(min=LEAST_VARIANCE).sqrt()
        targets = torch.where(known.unsqueeze(1), (r - mean) / spread, 0.0).to(predicted.dtype)
        errors = (predicted - targets).square().mean(1) * batch.weights
        loss = torch.where(known, errors, 0.0).sum() / known.sum().clamp(min=1)
        return loss if self.total[0] else loss * 0.0  # before the first row there is no scale

    def add(self, batch: Batch) -> None:
        """Count a learned batch's values."""
        r, known = self._known(batch)
        r = r[known].double()
        self.total += torch.cat([known.sum().double().view(1), r.sum(0), r.square().sum(0)])

    def _known(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Values (B, k), and the rows (B,) that have them."""
        r = batch.teacher_embedding
        if r is None:
            return batch.dense.new_zeros(len(batch), self.width), torch.zeros(len(batch), dtype=torch.bool)
        if r.shape[1] < self.width:
            raise ModelError(
                f"an arm distils {self.width} values of the teacher's representation, and the rows have {r.shape[1]}; "
                f"set representation_width to {r.shape[1]}, or give the teacher a larger `representation`"
            )
        return r[:, : self.width], torch.isfinite(r[:, 0])
