"""One training step: how far it moves, and its result."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LARGEST = 1e15
"""A loss, logit or norm of gradients from here on counts as not finite. AdaGrad adds up squares without end: a gradient
of 1e19 would fill its accumulator, and that row would never learn again."""


LEARNED, INPUT, LOGIT, LOSS, GRADIENT = range(5)
REASONS = (
    "",
    "an input is too large",
    "a logit is not finite",
    "the loss is not finite",
    "a gradient is not finite",
)
"""Why a row was left out of a step, by number; the first that holds. 0: it was learned."""


def share_of_full(rows: int, full_batch: int | None) -> float:
    """A step's share of a full batch; 1 without a full batch size.

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
    (progressive validation). A step that is not `finite` changed nothing. Rows that were left out of one that is
    have the logit NaN.
    """

    logits: np.ndarray  # (B, T) float32
    loss: float
    rows_per_task: np.ndarray  # (T,) int64, rows whose label the step learned
    finite: bool
    wide: np.ndarray | None = None  # (B, T) float32, a student's linear part by itself, where it has one
    left_out: np.ndarray | None = None  # (B,) int8, of each row of the batch, why it was left out; None: none was
    left_out_rows: int = 0  # how many those are, on all ranks

    @property
    def finite_rows(self) -> int:
        """Rows scored and learned, those with a logit; 0 if the step was not finite."""
        return int(np.isfinite(self.logits).all(1).sum()) if self.finite else 0


def reason_of(failed: StepResult) -> int:
    """Reason why a step was not finite, as an index into REASONS; may differ between ranks."""
    if failed.left_out is not None and failed.left_out.all() and len(failed.left_out):
        return int(failed.left_out[0])
    judged = failed.logits
    if failed.left_out is not None and len(failed.left_out) == len(judged):
        judged = judged[failed.left_out == LEARNED]
    if not np.isfinite(judged).all():
        return LOGIT
    return GRADIENT if np.isfinite(failed.loss) else LOSS
