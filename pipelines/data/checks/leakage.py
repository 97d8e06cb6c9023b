"""Label leaks: features judged one by one, in order of time, as a model would meet them.

A value's label rate so far, in the first half of the rows, predicts the label in the second half:

    q_v = (positives of v + s·ȳ) / (rows of v + s)            ȳ the rate of the first half, s = 20 rows

    AUC          of q_v on the second half's labels
    gain         what q_v takes off the log-loss of the time alone, in %: of the label rate by stretches of the stream

An id whose rate differs from the others' gains some per cent. A feature that knows the label gains most of what there
is. Where it has many values, and neither its most frequent one nor its nulls say as much by themselves, the rates that
its values had in earlier rows are what predicts: they were known by then, so it is named and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exfm.metrics.classification import cross_entropy
from exfm.metrics.ranking import auc
from pipelines.data.findings import Finding, Rules, Severity
from pipelines.data.profile.codes import LABEL, codes_of, feature_names

RULES = Rules("""
warn|stop  leak.value  leakage: {feature}
    `{feature}` alone predicts {task} with an AUC of {auc:.3f} and takes {gain:.0f} % off the log-loss that time leaves
    (the next feature: {next_best:.0f} %){verdict}
    -> {remedy}
stop  leak.filled  leakage: {feature}
    `{feature}` is filled in {of_positives:,} of {positives:,} rows that are positive for {task}, and in
    {of_negatives:,} of {negatives:,} others: it knows the label
    -> {remedy}
warn  leak.not-judged  leakage of {task}
    {positives:,} of {rows:,} rows are positive: whether a feature knows the label was not judged, for {fewest} of each
    kind are needed in each half of the rows{unsure}
    -> see of each feature when its value is known, or give more rows
""")
REMEDY = "see when its value is known: what is filled in after the click is not there when an ad is served"

PRIOR_ROWS = 20
STRETCHES = 20
FEWEST = 50
"""Positives, and negatives, in each half."""

KNOWS_AUC, KNOWS_GAIN = 0.95, 40.0
ODD_AUC, ODD_GAIN = 0.8, 20.0
AHEAD = 2.0
"""A gain of more than this many times the next feature's is odd."""


MANY = 8
"""Values of which each has a rate of its own in earlier rows; of numbers that are cut into bins there are none."""

SURE_FILLED = 8
"""Filled or not, and positive or not: fewer rows of the rarer kind say nothing."""


class Knowledge(NamedTuple):
    """Predictive power of one feature; `gain` in % of the log-loss of time by itself. `by_rates`: earlier rows'
    rates of `values` many values explain it."""

    task: str
    feature: str
    auc: float
    gain: float
    values: int = 0
    by_rates: bool = False

    @property
    def knows(self) -> bool:
        return self.auc >= KNOWS_AUC or self.gain >= KNOWS_GAIN


def what_features_know(table: pa.Table, tasks: Sequence[str]) -> list[Knowledge]:
    """Predictive power of each feature by itself for each label, of rows in order of time; the best first. Tasks of too
    few labels are left out.

    >>> y = np.arange(400) % 3 == 0
    >>> rows = pa.table({"label_ctr": y.astype("int8"), "clicked": y, "parity": np.arange(400) % 2})
    >>> [(k.feature, k.auc, round(k.gain)) for k in what_features_know(rows, ["ctr"])]
    [('clicked', 1.0, 87), ('parity', 0.4943889574682976, -1)]
    """
    codes = {name: codes_of(table[name]) for name in feature_names(table)}
    knowledge = []
    for task in tasks:
        column = table[LABEL + task].combine_chunks()
        at = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        y = column.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
        half = len(y) // 2
        if min(y[:half].sum(), (1 - y[:half]).sum(), y[half:].sum(), (1 - y[half:]).sum()) < FEWEST:
            continue
        alone = _loss_of_time(y, half)
        for name, code in codes.items():
            known = _known(task, name, code[at], y, half, alone)
            values = int(code.max(initial=0)) + 1
            if known.knows and values > MANY and not pa.types.is_floating(table[name].type):
                marks = [code[at] == np.bincount(code[at]).argmax(), table[name].is_valid().to_numpy()[at]]
                told = (_known(task, name, mark.astype(np.int64), y, half, alone).knows for mark in marks)
                known = known._replace(values=values, by_rates=not any(told))
            knowledge.append(known)
    return sorted(knowledge, key=lambda known: -max(known.gain, 200 * (known.auc - 0.5)))


def _known(task: str, name: str, code: np.ndarray, y: np.ndarray, half: int, alone: float) -> Knowledge:
    z = _rates(code, y, half)
    area = auc(z, y[half:])
    assert area is not None
    return Knowledge(task, name, area, 100 * (1 - float(cross_entropy(z, y[half:]).mean()) / alone))


def filled_by_label(table: pa.Table, tasks: Sequence[str]) -> Iterator[Finding]:
    """Features that are filled just where a label is positive, or just where it is not, however few rows say so; and
    tasks of which the features cannot be judged.

    >>> rows = pa.table({"label_ctr": [1] * 9 + [0] * 90, "paid": [1.5] * 9 + [None] * 90})
    >>> [finding.where for finding in filled_by_label(rows, ["ctr"])]
    ['leakage: paid', 'leakage of ctr']
    """
    for task in tasks:
        column = table[LABEL + task].combine_chunks()
        known = column.is_valid().to_numpy(zero_copy_only=False)
        y = column.fill_null(0).to_numpy(zero_copy_only=False)[known] > 0
        positives, negatives, half = int(y.sum()), int((~y).sum()), len(y) // 2
        unsure = []
        for name in feature_names(table):
            filled = ~table[name].is_null(nan_is_null=True).to_numpy()[known]
            if filled.all() or not filled.any() or not positives or not negatives:
                continue
            of_positives, of_negatives = int(filled[y].sum()), int(filled[~y].sum())
            if abs(of_positives / positives - of_negatives / negatives) < 2 * KNOWS_AUC - 1:
                continue
            if min(positives, negatives, int(filled.sum()), int((~filled).sum())) < SURE_FILLED:
                unsure.append(name)
                continue
            counts = {"of_positives": of_positives, "positives": positives, "negatives": negatives}
            yield RULES("leak.filled", feature=name, task=task, **counts, of_negatives=of_negatives, remedy=REMEDY)
        if y.size and min(y[:half].sum(), (~y[:half]).sum(), y[half:].sum(), (~y[half:]).sum()) < FEWEST:
            names = f"; filled or not goes with the label: {', '.join(unsure)}" * bool(unsure)
            yield RULES("leak.not-judged", task=task, positives=positives, rows=len(y), fewest=FEWEST, unsure=names)


def leaks(known: Sequence[Knowledge]) -> Iterator[Finding]:
    """Findings of features that are too good to be true; the worst first."""
    for one in known:
        others = [k.gain for k in known if k.task == one.task and k.feature != one.feature]
        next_best = max([gain for gain in others if gain <= one.gain], default=0.0)
        about = {"feature": one.feature, "task": one.task, "auc": one.auc, "gain": one.gain}
        about["next_best"] = max(next_best, 0.0)
        if one.knows and one.by_rates:
            words = f", by the label rates that its {one.values:,} values had in earlier rows"
            kept = f"it is kept, for these rates were known by then; {REMEDY}"
            yield RULES("leak.value", Severity.WARN, **about, verdict=words, remedy=kept)
        elif one.knows:
            yield RULES("leak.value", Severity.STOP, **about, verdict=": it knows the label", remedy=REMEDY)
        elif one.auc >= ODD_AUC and one.gain >= ODD_GAIN and one.gain > AHEAD * max(next_best, 0.0):
            yield RULES("leak.value", Severity.WARN, **about, verdict=": it may know the label", remedy=REMEDY)


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
