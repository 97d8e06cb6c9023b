"""What a teacher says to a student once it was corrected: by Platt scaling, by the student adapter, by its record.

    z_F' = a·z_F + b          exfm/distillation/platt.py, else z_F
    SA(z_F', …)               exfm/distillation/adapter.py
    f, f'                     factors on the two distillation weights, exfm/distillation/advantage.py, else 1

One state, one candidate update per batch: whoever takes a step takes all of it or none. The corrections learn first and
are run again; the factors are those of before this batch. They measure what was said before it, and of Platt scaling
nothing: what a teacher knows is not a matter of its calibration, and labels went into a and b. Where
negatives are downsampled (exfm/data/sampling.py) the corrections learn from shifted logits; the factors come from a
regression whose intercept takes up that shift.

B examples, T tasks, H width of the trunk's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from exfm.data import Batch
from exfm.distillation import adapter, platt
from exfm.distillation.adapter import Fitted
from exfm.distillation.advantage import factor, measured, no_advantage_yet
from exfm.distillation.arm import Arm
from exfm.distillation.logistic import Regression


class Lesson(NamedTuple):
    """What the teacher says of one batch. Without gradient; under a False teacher mask whatever there was."""

    teacher_logits: Tensor  # (B, T): z_F'
    adapted: Tensor | None = None  # (B, T): SA
    factors: Tensor | None = None  # (T,) in [0, 1]: f
    adapted_factors: Tensor | None = None  # (T,) in [0, 1]: f'


class Guidance(NamedTuple):
    """All that corrects a teacher; None where the arm does without. Immutable."""

    arm: Arm
    platt: Regression | None
    adapter: Fitted | None
    advantage: Regression | None  # of z_F for T tasks, and beside an adapter of SA for T more

    @classmethod
    def initial(cls, arm: Arm, tasks: Sequence[str], width: int, seed: int) -> Guidance:
        """Before the first batch; `width` is H. It repeats the teacher."""
        context = 1 + width if arm.adapter_input == "context" else 0
        followed = (1 + arm.adapter) * len(tasks) if arm.follows == "advantage" else 0
        return cls(
            arm=arm,
            platt=platt.initial_platt(len(tasks)) if arm.recalibration == "platt" else None,
            adapter=adapter.initial_adapter(tasks, arm.adapter_width, seed, context) if arm.adapter else None,
            advantage=no_advantage_yet(followed) if followed else None,
        )

    def taught(self, batch: Batch, z_S: Tensor, x_BH: Tensor) -> tuple[Guidance, Lesson]:
        """A candidate for the state after this batch, and what it says of it.

        z_S (B, T) and x (B, H), both without gradient, are the student's before its step. What lies under a False mask
        is not looked at.
        """
        if all(part is None for part in self[1:]):
            return self, Lesson(batch.teacher_logits)
        known = batch.label_mask & batch.teacher_mask
        z_F = torch.where(batch.teacher_mask, batch.teacher_logits, 0.0)
        y = torch.where(known, batch.labels, 0.0)
        context = adapter.context_of(batch.teacher_age, x_BH) if self.arm.adapter_input == "context" else None

        after = self._replace(platt=self._learned_platt(z_F, y, known, batch))
        z_A = after._recalibrated(z_F)
        after = after._replace(adapter=self._fitted_adapter(z_A, y, known, batch, context))
        lesson = after._says(z_F, context)
        if self.advantage is None:
            return after, lesson
        before = self._says(z_F, context)
        said = [z_F] if before.adapted is None else [z_F, before.adapted]
        z_S, y, known = (tensor.repeat(1, len(said)) for tensor in (z_S, y, known))
        after = after._replace(advantage=measured(self.advantage, z_S, torch.cat(said, 1), y, known, batch.weights))
        factors, *adapted = factor(self.advantage).chunk(len(said))
        return after, lesson._replace(factors=factors, adapted_factors=adapted[0] if adapted else None)

    def _learned_platt(self, z_F: Tensor, y: Tensor, known: Tensor, batch: Batch) -> Regression | None:
        if self.platt is None:
            return None
        taught = (y, known, batch.weights, batch.negative_rate)
        return platt.updated(self.platt, self.arm.platt_half_life_rows, z_F, *taught)

    def _fitted_adapter(
        self, z_F: Tensor, y: Tensor, known: Tensor, batch: Batch, context: Tensor | None
    ) -> Fitted | None:
        if self.adapter is None:
            return None
        taught = (y, known, batch.weights, context, batch.negative_rate)
        return adapter.updated(self.adapter, self.arm.adapter_lr, z_F, *taught)

    def _recalibrated(self, z_F: Tensor) -> Tensor:
        return z_F if self.platt is None else platt.recalibrated(self.platt, z_F)

    def _says(self, z_F: Tensor, context: Tensor | None) -> Lesson:
        """The corrections as they are, on z_F."""
        z_P = self._recalibrated(z_F)
        return Lesson(
            teacher_logits=z_P,
            adapted=None if self.adapter is None else adapter.adapted_logits(self.adapter.weights, z_P, context),
        )

    @property
    def first_to_overflow(self) -> list[Tensor]:
        """Where these are finite, the rest is."""
        squares = [] if self.adapter is None else [self.adapter.exp_avg_sq]
        regressions = [part for part in (self.platt, self.advantage) if part is not None]
        return squares + [tensor.float() for part in regressions for tensor in part]

    def tensors(self) -> dict[str, Tensor]:
        """The state itself, not a copy, by name."""
        parts = {"platt": self.platt, "adapter": self.adapter, "advantage": self.advantage}
        found = {name: part._asdict() for name, part in parts.items() if part is not None}
        return {f"{name}/{key}": value for name, part in found.items() for key, value in part.items()}

    def figures(self, tasks: Sequence[str]) -> dict[str, float]:
        """What is worth watching, by name and task: Platt's `platt_scale` a and `platt_shift` b; the adapter's
        correction SA(0) − 0 of a teacher that says ½ as `adapter_shift` (without context); the factors
        `teacher_weight` and `adapter_weight`."""
        found: dict[str, Tensor] = {}
        if self.platt is not None:
            found["platt_scale"], found["platt_shift"] = self.platt.theta.unbind(1)
        if self.adapter is not None and self.arm.adapter_input == "logit":
            zero = torch.zeros(1, len(tasks))
            found["adapter_shift"] = adapter.adapted_logits(self.adapter.weights, zero)[0]
        if self.advantage is not None:
            found |= zip(("teacher_weight", "adapter_weight"), factor(self.advantage).split(len(tasks)), strict=False)
        return {
            f"{name}_{task}": value for name, T in found.items() for task, value in zip(tasks, T.tolist(), strict=True)
        }
