"""Log-loss, normalised entropy, calibration: exact, from logits, on whole columns.

    h(z, y) = max(z, 0) − z·y + log(1 + e^−|z|)
    NE = mean h / H(ȳ),   H(p) = −p log p − (1−p) log(1−p)        (ExFM, arXiv 2502.17494)
    calibration = Σ σ(z) / Σ y

Sums are numpy's own, never BLAS's, whose last bit depends on its number of threads.

Columns are numpy, of one length N: logits z, labels y in {0, 1}, weights ≥ 0 (1 each where left out). Nats throughout.
A figure that is not defined (no rows, one class only) is None, never NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from exfm.metrics.ranking import auc


class Metrics(NamedTuple):
    """The figures of one model on one set of rows. `positives` is the number of rows with y = 1, unweighted."""

    rows: int
    positives: int
    ne: float | None
    auc: float | None
    log_loss: float | None
    calibration: float | None


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """h(z, y) of every row, (N,) float64; stable for logits of any size.

    >>> cross_entropy(np.array([0.0, 1000.0, -1000.0]), np.array([1, 1, 1])).round(3).tolist()
    [0.693, 0.0, 1000.0]
    """
    z = np.asarray(logits, dtype=np.float64)
    return np.maximum(z, 0) - z * labels + np.log1p(np.exp(-np.abs(z)))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """σ(z) of every row, (N,) float64, without overflow."""
    z = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, small) / (1.0 + small)


def base_rate_entropy(rate: float) -> float | None:
    """H(p) in nats; None at 0 and 1, where nothing remains to be predicted."""
    if not 0.0 < rate < 1.0:
        return None
    return float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))


def log_loss(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Weighted mean of h(z, y); None without weight."""
    return _ratio(*_sums(cross_entropy(logits, labels), weights))


def normalised_entropy(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Log-loss over the entropy of the base rate of the same rows: 1 for a constant prediction of it, lower is better.

    >>> y = np.array([0, 0, 0, 1])
    >>> float(round(normalised_entropy(np.full(4, np.log(1 / 3)), y), 6))
    1.0
    >>> normalised_entropy(np.zeros(2), np.zeros(2)) is None
    True
    """
    labels = np.asarray(labels, dtype=np.float64)
    rate = _ratio(*_sums(labels, weights))
    return normalise_loss(log_loss(logits, labels, weights), rate)


def normalise_loss(mean_loss: float | None, rate: float | None) -> float | None:
    """NE from a given log-loss and base rate."""
    entropy = None if rate is None else base_rate_entropy(rate)
    return None if mean_loss is None or entropy is None else mean_loss / entropy


def calibration(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Σ predicted / Σ observed; None where nothing was observed.

    >>> calibration(np.zeros(4), np.array([0, 0, 0, 1]))
    2.0
    """
    predicted, _ = _sums(sigmoid(logits), weights)
    observed, _ = _sums(np.asarray(labels, dtype=np.float64), weights)
    return _ratio(predicted, observed)


def transfer_ratio(ne_without: float, ne_with: float, ne_teacher: float) -> float | None:
    """TR = (NE_no_KD − NE_KD) / (NE_no_KD − NE_teacher): how much of the teacher's lead the student got.

    None where the teacher does not lead.

    >>> transfer_ratio(1.0, 0.75, 0.5)
    0.5
    """
    return (ne_without - ne_with) / (ne_without - ne_teacher) if ne_teacher < ne_without else None


def metrics_of(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, *, order: np.ndarray | None = None
) -> Metrics:
    """All figures at once. `order`: of the logits, as `auc` takes it."""
    return Metrics(
        rows=len(labels),
        positives=int(np.count_nonzero(labels)),
        ne=normalised_entropy(logits, labels, weights),
        auc=auc(logits, labels, weights, order=order),
        log_loss=log_loss(logits, labels, weights),
        calibration=calibration(logits, labels, weights),
    )


def _sums(values: np.ndarray, weights: np.ndarray | None) -> tuple[float, float]:
    if weights is None:
        return float(values.sum()), float(len(values))
    weights = np.asarray(weights, dtype=np.float64)
    return float((values * weights).sum()), float(weights.sum())


def _ratio(total: float, weight: float) -> float | None:
    return total / weight if weight > 0 else None
