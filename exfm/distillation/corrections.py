"""The corrections of one student's teacher, in their order.

    z_F' = a·z_F + b          exfm/distillation/platt.py, else z_F; with residuals.py, + Σ c·r
    SA(z_F', …)               exfm/distillation/adapter.py
    f, f'                     factors on the two distillation weights, exfm/distillation/advantage.py, else 1

There is one candidate update per batch; a step takes all of it or none. Platt scaling and the adapter learn
first and are then applied; the factors are those of before this batch. The factors measure what was said before the
batch, without Platt scaling: what a teacher knows does not depend on its calibration, and labels went into a and b.
Where negatives are downsampled (exfm/features/sampling.py), the corrections learn from shifted logits; the factors come
from a regression whose intercept takes up that shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

from exfm.distillation.adapter import StudentAdapter
from exfm.distillation.advantage import Advantage
from exfm.distillation.arm import Arm
from exfm.distillation.correction import Correction, SeenBatch
from exfm.distillation.platt import PlattScaling
from exfm.distillation.targets import Targets


class Corrections(NamedTuple):
    """Chain of corrections of a teacher; empty if the arm has none. Immutable."""

    each: tuple[Correction, ...]

    @classmethod
    def of(cls, arm: Arm, tasks: Sequence[str], width: int, seed: int) -> Corrections:
        """Corrections of an arm before the first batch, the identity. `width` is that of the trunk's output."""
        each: list[Correction] = []
        if arm.recalibration != "none":
            each.append(PlattScaling.initial(len(tasks), arm.platt_half_life_rows, tuple(arm.residuals_by)))
        if arm.adapter:
            each.append(StudentAdapter.initial(arm, tasks, width, seed))
        if arm.follows == "advantage":
            each.append(Advantage.initial(len(tasks), said=1 + arm.adapter))
        return cls(tuple(each))

    def learn(self, seen: SeenBatch) -> tuple[Corrections, Targets]:
        """Learn a batch; return the updated corrections and the corrected targets."""
        if not self.each:
            return self, Targets(seen.batch.teacher_logits)
        targets, learned = Targets(seen.batch.teacher_logits), []
        for n, correction in enumerate(self.each):
            earlier = Corrections(self.each[:n])
            successor = correction.learn(seen, targets, before=partial(earlier.apply, seen))
            targets = successor.apply(targets, seen)
            learned.append(successor)
        return Corrections(tuple(learned)), targets

    def apply(self, seen: SeenBatch) -> Targets:
        """Apply the current corrections to a batch's teacher logits."""
        targets = Targets(seen.batch.teacher_logits)
        for correction in self.each:
            targets = correction.apply(targets, seen)
        return targets

    def state(self) -> dict[str, Tensor]:
        """The state itself, not a copy, by name."""
        return {name: tensor for correction in self.each for name, tensor in correction.state().items()}

    def figures(self, tasks: Sequence[str]) -> dict[str, float]:
        """Figures worth watching, by name and task: Platt's `platt_scale` a, `platt_shift` b and
        `residual_weight_<feature>` c_f; the adapter's correction SA(0) − 0 of a teacher that predicts ½ as
        `adapter_shift` (without context); the factors `teacher_weight` and `adapter_weight`."""
        columns = {name: T for correction in self.each for name, T in correction.figures(tasks).items()}
        return {
            f"{name}_{task}": value
            for name, T in columns.items()
            for task, value in zip(tasks, T.tolist(), strict=True)
        }
