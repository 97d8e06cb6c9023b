"""Area under the ROC curve, exact, and its mean over groups (GAUC).

    AUC = P(z⁺ > z⁻) + ½ P(z⁺ = z⁻)          for a random positive and a random negative

Columns are numpy, of one length N. An area that is not defined (one class only) is None, never NaN. `order`: the places
of the logits in ascending order, where they are known; sorting takes most of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class GroupedAuc(NamedTuple):
    """Mean AUC over groups, each weighted by its impressions.

    Groups of one class have no AUC: they are left out, and `groups` and `rows` count what was not.
    """

    value: float | None
    groups: int
    rows: int


def auc(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, *, order: np.ndarray | None = None
) -> float | None:
    """AUC by ranks; ties count half.

    >>> auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    >>> auc(np.zeros(4), np.array([0, 1, 0, 1]))
    0.5
    """
    return gauc(logits, labels, np.zeros(len(labels), dtype=np.int8), weights, order=order).value


def gauc(
    logits: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    order: np.ndarray | None = None,
) -> GroupedAuc:
    """AUC within each group (a user, say), averaged with the groups' total weight.

    >>> gauc(np.array([1.0, 2.0, 5.0, 4.0, 3.0]), np.array([0, 1, 0, 1, 0]), np.array(["a", "a", "b", "b", "b"]))
    GroupedAuc(value=0.7, groups=2, rows=5)
    """
    if len(labels) == 0:
        return GroupedAuc(None, 0, 0)
    logits, codes = np.asarray(logits), _codes(groups)
    order = np.argsort(logits) if order is None else order
    if codes.any():  # by group, then by logit: a group and a place are one number, for those are sorted fastest
        bits = len(order).bit_length()
        keys = codes[order] << bits | np.arange(len(order))
        keys.sort()
        order = order[keys & ((1 << bits) - 1)]
    codes, scores = codes[order], logits[order]
    w = np.ones(len(order)) if weights is None else np.asarray(weights, dtype=np.float64)[order]
    y = np.asarray(labels)[order] > 0

    # One entry per run of equal scores inside a group, then one per group.
    changed = np.append(True, codes[1:] != codes[:-1])
    run = np.flatnonzero(changed | np.append(True, scores[1:] != scores[:-1]))
    positive, negative = np.add.reduceat(np.where(y, w, 0.0), run), np.add.reduceat(np.where(y, 0.0, w), run)
    group = np.flatnonzero(changed[run])
    below = np.cumsum(negative) - negative
    below -= np.repeat(below[group], np.diff(np.append(group, len(run))))
    won = np.add.reduceat(positive * (below + 0.5 * negative), group)
    positives, negatives = np.add.reduceat(positive, group), np.add.reduceat(negative, group)

    both = (positives > 0) & (negatives > 0)
    if not both.any():
        return GroupedAuc(None, 0, 0)
    areas, mass = won[both] / (positives[both] * negatives[both]), (positives + negatives)[both]
    rows = np.diff(np.append(np.flatnonzero(changed), len(order)))
    return GroupedAuc(float((areas * mass).sum() / mass.sum()), int(both.sum()), int(rows[both].sum()))


def _codes(groups: np.ndarray) -> np.ndarray:
    """Groups as small integers from 0, (N,): as they are where they are that already."""
    groups = np.asarray(groups)
    if groups.dtype.kind == "i" and groups.min() >= 0 and groups.max() < 1 << 31:
        return groups.astype(np.int64, copy=False)
    return np.unique(groups, return_inverse=True)[1].reshape(-1)
