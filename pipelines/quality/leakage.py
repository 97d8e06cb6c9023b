"""Features that know the label: judged one by one, in order of time, as a model would meet them.

A value's label rate so far, in the first half of the rows, predicts the label in the second half:

    q_v = (positives of v + s·ȳ) / (rows of v + s)            ȳ the rate of the first half, s = 20 rows

    AUC          of q_v on the second half's labels
    gain         what q_v takes off the log-loss of the time alone, in %: of the label rate by stretches of the stream

An id whose rate differs from the others' gains some per cent. A feature that knows the label gains most of what there
is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exfm.metrics import auc, cross_entropy
from pipelines.quality.columns import LABEL, codes_of, feature_names
from pipelines.quality.finding import Finding, stop, warn

PRIOR_ROWS = 20
STRETCHES = 20
FEWEST = 50
"""Positives, and negatives, in each half."""

KNOWS_AUC, KNOWS_GAIN = 0.95, 40.0
ODD_AUC, ODD_GAIN = 0.8, 20.0
AHEAD = 2.0
"""A gain of more than this many times the next feature's is odd."""


class Known(NamedTuple):
    """`gain` in % of the log-loss of time alone."""

    task: str
    feature: str
    auc: float
    gain: float


def what_features_know(table: pa.Table, tasks: Sequence[str]) -> list[Known]:
    """Of rows in order of time; the one that knows most first. Tasks of too few labels are left out.

    >>> y = np.arange(400) % 3 == 0
    >>> rows = pa.table({"label_ctr": y.astype("int8"), "clicked": y, "parity": np.arange(400) % 2})
    >>> [(k.feature, k.auc, round(k.gain)) for k in what_features_know(rows, ["ctr"])]
    [('clicked', 1.0, 87), ('parity', 0.4943889574682976, -1)]
    """
    codes = {name: codes_of(table[name]) for name in feature_names(table)}
    found = []
    for task in tasks:
        column = table[LABEL + task].combine_chunks()
        at = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        y = column.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
        half = len(y) // 2
        if min(y[:half].sum(), (1 - y[:half]).sum(), y[half:].sum(), (1 - y[half:]).sum()) < FEWEST:
            continue
        alone = _loss_of_time(y, half)
        for name, code in codes.items():
            z = _rates(code[at], y, half)
            area = auc(z, y[half:])
            assert area is not None
            found.append(Known(task, name, area, 100 * (1 - float(cross_entropy(z, y[half:]).mean()) / alone)))
    return sorted(found, key=lambda known: -max(known.gain, 200 * (known.auc - 0.5)))


def leaks(known: Sequence[Known]) -> Iterator[Finding]:
    """What is too good to be true; the worst first."""
    for one in known:
        others = [k.gain for k in known if k.task == one.task and k.feature != one.feature]
        next_best = max([gain for gain in others if gain <= one.gain], default=0.0)
        what = (
            f"`{one.feature}` alone predicts {one.task} with an AUC of {one.auc:.3f} and takes {one.gain:.0f} % off "
            f"the log-loss that time leaves (the next feature: {max(next_best, 0.0):.0f} %)"
        )
        remedy = "see when its value is known: what is filled in after the click is not there when an ad is served"
        if one.auc >= KNOWS_AUC or one.gain >= KNOWS_GAIN:
            yield stop(f"leakage: {one.feature}", f"{what}: it knows the label", remedy)
        elif one.auc >= ODD_AUC and one.gain >= ODD_GAIN and one.gain > AHEAD * max(next_best, 0.0):
            yield warn(f"leakage: {one.feature}", f"{what}: it may know the label", remedy)


def _rates(codes: np.ndarray, y: np.ndarray, half: int) -> np.ndarray:
    """Logits of the second half's rows by the first half's rates."""
    size = int(codes.max(initial=0)) + 1
    rate = float(y[:half].mean())
    positives, rows = np.bincount(codes[:half], y[:half], size), np.bincount(codes[:half], minlength=size)
    q = (positives + PRIOR_ROWS * rate) / (rows + PRIOR_ROWS)
    q = np.clip(q[codes[half:]], 1e-6, 1 - 1e-6)
    return np.asarray(np.log(q) - np.log1p(-q))


def _loss_of_time(y: np.ndarray, half: int) -> float:
    """Log-loss of the second half by the label rate of each of its stretches, seen beforehand."""
    later = y[half:]
    stretch = np.arange(len(later)) * STRETCHES // len(later)
    rates = np.bincount(stretch, later, STRETCHES) / np.bincount(stretch, minlength=STRETCHES)
    q = np.clip(rates, 1e-6, 1 - 1e-6)[stretch]
    return float(-(later * np.log(q) + (1 - later) * np.log1p(-q)).mean())
