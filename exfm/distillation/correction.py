"""Interface of a correction of the teacher's logits, and the inputs it learns from.

A correction changes what the teacher says to a student: its logits, or the weight that they get. It learns online, from
the labels of each batch. A new one is a class that follows `Correction` and a line in `Corrections.of`
(exfm/distillation/corrections.py).

B examples, T tasks, H width of the trunk's output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self

from torch import Tensor

from exfm.distillation.targets import Targets

if TYPE_CHECKING:
    from exfm.features.batch import Batch


@dataclass(frozen=True)
class SeenBatch:
    """A batch with the student's predictions for it. No tensor has a gradient."""

    batch: Batch
    student_logits: Tensor  # (B, T), before the step
    trunk_output: Tensor  # (B, H)
    label_rows: Tensor | None = None  # (B,) bool: rows whose labels the student learns; None: all
    residuals: Tensor | None = None  # (B, T, F): what the teacher got wrong of late (residuals.py); None: not asked for

    @cached_property
    def known(self) -> Tensor:
        """Mask (B, T) bool of rows with a teacher logit and a label that the student learns. Corrections learn from
        these."""
        both = self.batch.label_mask & self.batch.teacher_mask
        return both if self.label_rows is None else both & self.label_rows.unsqueeze(1)


class Correction(Protocol):
    """One correction of the teacher, for all tasks. Immutable: to learn is to return a successor."""

    def learn(self, seen: SeenBatch, targets: Targets, before: Callable[[], Targets]) -> Self:
        """The correction after this batch.

        `targets` is what the earlier corrections, which have learned from the batch, make of the teacher; `before`
        gives what they made of it before they had.
        """
        ...

    def apply(self, targets: Targets, seen: SeenBatch) -> Targets:
        """Apply the correction to the targets `targets`."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The state itself, not a copy, by name."""
        ...

    def figures(self, tasks: Sequence[str]) -> dict[str, Tensor]:
        """Figures worth watching, (T,) each, by name."""
        ...
