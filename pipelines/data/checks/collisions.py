"""Ids that are hashed into one row of a table. Without torch: a look at a file needs it, too."""

from __future__ import annotations


def shared(ids: int, rows: int) -> float:
    """The expected share of ids whose row of a hash table is another's too.

    >>> round(shared(1000, 1000), 2), round(shared(2, 10**9), 2)
    (0.63, 0.0)
    """
    return float(1 - (1 - 1 / rows) ** (ids - 1)) if ids else 0.0
