"""Shares of rows, as far as few rows can show them."""

from __future__ import annotations

from exfm.metrics.reliability import wilson


def sure_share(part: int, whole: int) -> float:
    """The lower end of the 95 % interval (Wilson) of a share: what is lost for certain, however few rows there are.

    >>> [round(sure_share(*rows), 2) for rows in ((3, 3), (12, 12), (928, 942), (0, 0))]
    [0.44, 0.76, 0.98, 0.0]
    """
    return wilson(part / whole, whole)[0] if whole else 0.0
