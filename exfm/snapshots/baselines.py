"""Baselines of deltas: when a state is written whole again (Check-N-Run, arXiv 2010.08679).

one-shot        a whole state first, then the rows that changed since it: two files restore
consecutive     a whole state first, then the rows that changed since the delta before: all files restore
intermittent    one-shot, and a whole state again where the sizes so far say that this costs less
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Policy = Literal["one-shot", "consecutive", "intermittent"]


def whole_due(policy: Policy, sizes: Sequence[int], whole: int) -> bool:
    """True if the next is to be a whole state of `whole` bytes. `sizes`: bytes of the deltas since the last one.

    Intermittent: another len(sizes) + 1 intervals begun with a whole state are taken to cost what those since the last
    did; as many more deltas from the old one at least what the newest did each.

    >>> whole_due("intermittent", [34, 50], 100), whole_due("intermittent", [34, 50, 60, 67, 72], 100)
    (False, True)
    """
    return policy == "intermittent" and bool(sizes) and whole + sum(sizes) <= (len(sizes) + 1) * sizes[-1]
