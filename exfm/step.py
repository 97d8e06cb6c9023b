"""The result of one training step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LARGEST = 1e15
"""A loss, logit or norm of gradients from here on counts as not finite. AdaGrad adds up squares without end: a gradient
of 1e19 would fill its accumulator, and that row would never learn again."""


class StepResult(NamedTuple):
    """One training step.

    `logits` are those the step itself made before its update: a row is judged before it is learned
    (progressive validation). A step that is not `finite` changed nothing.
    """

    logits: np.ndarray  # (B, T) float32
    loss: float
    rows_per_task: np.ndarray  # (T,) int64, rows whose label the step learned
    finite: bool
