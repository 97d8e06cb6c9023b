"""Rows that a student learns from: its own, or those of every vertical in the lake.

    L = Σ_{label rows} h(z_S, y) + w · Σ_{distillation rows} h(z_D, p_F)

A student is for its own rows, and judged on them. It may learn from the others' logged logits alone, whose labels it
then never sees, or from their labels, too. A model leaves out what it has no use for: the twin of a student that
learns its own labels reads the same batches, and learns what it would have learned by itself.

B examples.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from exfm.features.batch import Batch

Whose = Literal["own", "all"]


class LearnedRows(NamedTuple):
    """Choice of rows, own or all verticals', for labels and for teacher logits."""

    labels: Whose = "own"
    distillation: Whose = "own"

    @property
    def without_teacher(self) -> LearnedRows:
        """The same choice for a model that does not distil."""
        return self._replace(distillation="own")

    def of(self, batch: Batch) -> Batch:
        """Rows of a batch from which labels or teacher logits are learned."""
        return batch if "all" in self else batch.own_rows

    def label_rows(self, batch: Batch) -> Tensor | None:
        """Mask (B,) bool of rows whose labels are learned; None if all are."""
        return None if self.labels == "all" else batch.own

    def distillation_rows(self, batch: Batch) -> Tensor | None:
        """Mask (B,) bool of rows whose teacher logits are learned; None if all are."""
        return None if self.distillation == "all" else batch.own
