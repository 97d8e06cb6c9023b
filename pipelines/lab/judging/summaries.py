"""Estimates as plain numbers, and counts as text, for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exfm.metrics.estimates import Estimate


def limited(estimate: Estimate | None, lacking: str | None) -> dict[str, Any] | None:
    """An estimate as plain numbers; without an error where there is too little to tell, and `too_few` says of what.

    >>> import numpy as np
    >>> limited(Estimate(1.0, (), np.array([0.5, -0.5])), "positives (9)")["too_few"]
    'positives (9)'
    """
    if estimate is None:
        return None
    nothing = {"low": None, "high": None}
    unknown = dict.fromkeys(("se", "low", "high", "p")) | {"of_rows": nothing, "of_seeds": nothing}
    unknown = unknown if lacking is not None else {}
    return plain(estimate) | unknown | {"too_few": lacking}


def plain(item: Any) -> Any:
    """Estimates, wherever they are in a value, as plain numbers: `seed_sd` is the standard deviation over seeds;
    `of_rows` says what other rows alone would give, `of_seeds` what other seeds alone would.

    >>> import numpy as np
    >>> plain({"a": [Estimate(1.0, (), np.array([0.5, -0.5]))]})["a"][0]["se"]
    1.0
    """
    if isinstance(item, Estimate):
        bounds = {
            name: {"low": of["low"], "high": of["high"]}
            for name, of in {"of_rows": item.of_rows(), "of_seeds": item.of_seeds()}.items()
        }
        return item.summary() | {"seed_sd": item.seed_sd} | bounds
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    return [plain(value) for value in item] if isinstance(item, list) else item


def counted(counts: Sequence[int]) -> str:
    """Counts of several seeds or students.

    >>> counted([1200, 9, 30]), counted([77, 77])
    ('9 to 1,200', '77')
    """
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def own_counts(seen: Mapping[str, Any], arm: str) -> tuple[Sequence[int], Sequence[int]]:
    """Rows and positives, by seed, that an arm is judged on: its own, where it does not judge all of the baseline's.

    >>> seen = {"rows": [90], "positives": [9], "arms": {"none": {}, "late": {"rows": [40], "positives": [3]}}}
    >>> own_counts(seen, "none"), own_counts(seen, "late")
    (([90], [9]), ([40], [3]))
    """
    of = seen["arms"].get(arm, {})
    return of.get("rows", seen["rows"]), of.get("positives", seen["positives"])


LABELS = ("condition", "task", "positives logged", "learned", "labels logged", "unknown")
"""What `labels_learned` tells."""


def labels_learned(found: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[list[str]]:
    """A report's labels, by condition and task, as text.

    >>> labels_learned({"short": {"ctr": {"positives": 1200, "learned": 900, "labels": 9000, "unknown": 0}}})
    [['short', 'ctr', '1,200', '900 (75%)', '9,000', '0']]
    """
    rows = []
    for condition, tasks in found.items():
        for task, of in tasks.items():
            share = f" ({of['learned'] / of['positives']:.0%})" if of["positives"] else ""
            counts = f"{of['positives']:,}", f"{of['learned']:,}{share}", f"{of['labels']:,}", f"{of['unknown']:,}"
            rows.append([condition, task, *counts])
    return rows
