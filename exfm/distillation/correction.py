"""What a correction of the teacher is, and what it learns from.

A correction changes what the teacher says to a student: its logits, or the weight that they get. It learns online, from
the labels of each batch. A new one is a class that follows `Correction` and a line in `Corrections.of`
(exfm/distillation/corrections.py).

B examples, T tasks, H width of the trunk's output.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import torch
from torch import Tensor

from exfm.distillation.loss import Lesson

if TYPE_CHECKING:
    from exfm.data import Batch

S = TypeVar("S")


@dataclass(frozen=True)
class SeenBatch:
    """A batch, and what the student made of it. No tensor has a gradient."""

    batch: Batch
    student_logits: Tensor  # (B, T), before the step
    trunk_output: Tensor  # (B, H)
    label_rows: Tensor | None = None  # (B,) bool: rows whose labels the student learns; None: all
    residuals: Tensor | None = None  # (B, T, F): what the teacher got wrong of late (residuals.py); None: not asked for

    @cached_property
    def known(self) -> Tensor:
        """(B, T) bool: rows with a teacher logit and a label that the student learns. Corrections learn from these."""
        both = self.batch.label_mask & self.batch.teacher_mask
        return both if self.label_rows is None else both & self.label_rows.unsqueeze(1)

    @cached_property
    def teacher_logits(self) -> Tensor:
        """(B, T): the teacher's logits, 0 where there is none."""
        return torch.where(self.batch.teacher_mask, self.batch.teacher_logits, 0.0)

    @cached_property
    def labels(self) -> Tensor:
        """(B, T): labels, 0 where they are not `known`."""
        return torch.where(self.known, self.batch.labels, 0.0)

    def once(self, what: str, of: Sequence[Hashable | Tensor], make: Callable[[], S]) -> S:
        """What follows from the batch, its label rows and `of`, and from nothing else: worked out once for all students
        for which these are equal, to the bit. Nobody writes into it."""
        own = self.label_rows is self.batch.own
        if not own and self.label_rows is not None:
            return make()
        key = tuple(each.numpy().tobytes() if isinstance(each, Tensor) else each for each in of)
        return self.batch.once((what, own, *key), make)


class Correction(Protocol):
    """One correction of the teacher, for all tasks. Immutable: to learn is to return a successor."""

    def learn(self, seen: SeenBatch, lesson: Lesson, before: Callable[[], Lesson]) -> Self:
        """The correction after this batch.

        `lesson` is what the earlier corrections, which have learned from the batch, make of the teacher; `before`
        gives what they made of it before they had.
        """
        ...

    def apply(self, lesson: Lesson, seen: SeenBatch) -> Lesson:
        """`lesson`, corrected."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The state itself, not a copy, by name."""
        ...

    def figures(self, tasks: Sequence[str]) -> dict[str, Tensor]:
        """(T,) each, by name: what is worth watching."""
        ...
