"""Windows of rows that a model, its twin and its champion predicted before they learned them: NE, calibration, label
rate."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from exfm.metrics.classification import base_rate_entropy, cross_entropy, sigmoid

TWIN = "no_teacher"
"""As in exfm/models/engine.py, which takes torch; who reads a status has none."""
WINDOW_ROWS = 20_000
WINDOWS_BEFORE = 20
"""A share of positives is compared with that of so many windows before: an older one is of another season."""


@dataclass(frozen=True)
class JudgedWindow:
    """Rows of a task that several models predicted before they learned them: the last complete window of WINDOW_ROWS
    since the process began, and before the first one is complete the rows so far.

    number       which complete window this is; 0: the first one is not complete
    rate         share of positives; `rate_before`: of the windows before, WINDOWS_BEFORE at most, None of the first
    ne           by model; None where undefined, and of a model that did not predict every row
    calibration  by model: predicted over actual positives; None without any
    gain         how much lower the first model's NE is than its twin's, as a share; None without one
    """

    number: int
    rows: int
    positives: int
    rate: float
    rate_before: float | None
    ne: dict[str, float | None]
    calibration: dict[str, float | None]
    gain: float | None


class JudgedWindows:
    """Consecutive windows of a task, whose models are judged on the same rows; cut by rows, never by batches.

    >>> windows, labels = JudgedWindows(rows=2), np.array([1, 0, 1])
    >>> windows.add({"student": np.array([9.0, -9.0, 0.0]), "no_teacher": np.zeros(3)}, labels, np.ones(3))
    >>> window = windows.last()
    >>> window.number, window.rows, window.rate, window.ne["no_teacher"], window.gain > 0.9
    (1, 2, 0.5, 1.0, True)
    """

    def __init__(self, rows: int = WINDOW_ROWS) -> None:
        self._rows = rows
        self._number = 0
        self._positives_before: deque[int] = deque(maxlen=WINDOWS_BEFORE)  # each of `rows`
        self._open, self._closed = _WindowSums(), _WindowSums()

    def add(self, logits: Mapping[str, np.ndarray], labels: np.ndarray, weights: np.ndarray) -> None:
        """Count N rows, all arrays (N,), predicted by these models."""
        start = 0
        while start < len(labels):
            part = slice(start, start + self._rows - self._open.rows)
            self._open.add({model: z[part] for model, z in logits.items()}, labels[part], weights[part])
            start = part.stop
            if self._open.rows == self._rows:
                if self._number:
                    self._positives_before.append(self._closed.positives)
                self._number, self._closed, self._open = self._number + 1, self._open, _WindowSums()

    def last(self) -> JudgedWindow:
        """The last complete window, or the rows so far."""
        sums, before = self._closed if self._number else self._open, self._positives_before
        rate = sums.weight_positive / sums.weight if sums.weight else 0.0
        entropy = base_rate_entropy(rate)
        of_base = None if entropy is None else entropy * sums.weight
        whole = {model for model, rows in sums.scored.items() if rows == sums.rows}
        ne = {m: loss / of_base if of_base is not None and m in whole else None for m, loss in sums.loss.items()}
        own, twin = next(iter(ne.values()), None), ne.get(TWIN)
        return JudgedWindow(
            number=self._number,
            rows=sums.rows,
            positives=sums.positives,
            rate=sums.positives / sums.rows if sums.rows else 0.0,
            rate_before=sum(before) / (len(before) * self._rows) if before else None,
            ne=ne,
            calibration={
                model: predicted / sums.weight_positive if sums.weight_positive and model in whole else None
                for model, predicted in sums.predicted.items()
            },
            gain=None if own is None or not twin else 1 - own / twin,
        )


class _WindowSums:
    """Sums over the rows of one window."""

    def __init__(self) -> None:
        self.rows = self.positives = 0
        self.weight = self.weight_positive = 0.0
        self.scored: Counter[str] = Counter()  # rows with a logit, by model
        self.loss: dict[str, float] = {}
        self.predicted: dict[str, float] = {}

    def add(self, logits: Mapping[str, np.ndarray], labels: np.ndarray, weights: np.ndarray) -> None:
        self.rows += len(labels)
        self.positives += int(np.count_nonzero(labels))
        self.weight += float(weights.sum(dtype=np.float64))
        self.weight_positive += float((weights * labels).sum(dtype=np.float64))
        for model, z in logits.items():
            self.scored[model] += int(np.count_nonzero(np.isfinite(z)))
            self.loss[model] = self.loss.get(model, 0.0) + float((weights * cross_entropy(z, labels)).sum())
            self.predicted[model] = self.predicted.get(model, 0.0) + float((weights * sigmoid(z)).sum())
