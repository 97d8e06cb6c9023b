"""One training step: how far it moves, and its result."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LARGEST = 1e15
"""A loss, logit or norm of gradients from here on counts as not finite. AdaGrad adds up squares without end: a gradient
of 1e19 would fill its accumulator, and that row would never learn again."""


def share_of_full(rows: int, full_batch: int | None) -> float:
    """The share of a full batch that a step over `rows` rows is; 1 where none is named.

    Learning rates are meant for full batches, and a young model's are smaller, as is the last one of a stream. A step
    of B rows of a full batch of F then moves dense weights by B / F of Adam's rate (the linear scaling rule, arXiv
    1706.02677), and the gradient of the tables, of a loss that is a mean over B rows, is multiplied by B / F: what
    AdaGrad adds up of a row is the same in a batch of any size. Without it, the large means of small batches fill the
    accumulators, and every row that was seen early learns slowly for the rest of the stream.

    >>> share_of_full(32, 512), share_of_full(512, 512), share_of_full(32, None)
    (0.0625, 1.0, 1.0)
    """
    return 1.0 if full_batch is None else rows / full_batch


class StepResult(NamedTuple):
    """One training step.

    `logits` are those the step itself made before its update: a row is judged before it is learned
    (progressive validation). A step that is not `finite` changed nothing.
    """

    logits: np.ndarray  # (B, T) float32
    loss: float
    rows_per_task: np.ndarray  # (T,) int64, rows whose label the step learned
    finite: bool
    wide: np.ndarray | None = None  # (B, T) float32, a student's linear part by itself, where it has one
