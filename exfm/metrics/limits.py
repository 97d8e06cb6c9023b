"""Counts below which a figure is not worth printing, and a 95 % interval does not hold its 95 %.

In simulations (`python -m tests.benchmarks.interval_coverage`) 95 % intervals of a gain held the truth in 80 to 92 of
100 cases with 5 to 15 positives, and in 93 to 95 with 50; with positives in fewer than 10 clusters, in 78 to 90.
"""

from __future__ import annotations

MIN_POSITIVES = 50
"""Rows of the rarer label. The AUC of 50 positives still has a standard error of about .04."""

MIN_CLUSTERS = 10
"""Clusters that hold a row of the rarer label: rows of one cluster are one piece of evidence, however many they are."""


def too_few(positives: int, negatives: int, clusters: int | None = None) -> str | None:
    """Name and number of the scarce rows, to go between `too few` and `to tell`; None if there are enough.

    clusters  those that hold a row of the rarer label; None where no interval is asked for

    >>> too_few(9, 13_297), too_few(5_000, 3), too_few(60, 5_000, 4), too_few(60, 5_000, 12)
    ('positives (9)', 'negatives (3)', 'clusters with positives (4)', None)
    """
    rarer, count = ("positives", positives) if positives <= negatives else ("negatives", negatives)
    if count < MIN_POSITIVES:
        return f"{rarer} ({count})"
    if clusters is not None and clusters < MIN_CLUSTERS:
        return f"clusters with {rarer} ({clusters})"
    return None
