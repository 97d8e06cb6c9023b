"""Shares of rows, as far as few rows can show them."""

from __future__ import annotations

from math import sqrt


def sure_share(part: int, whole: int) -> float:
    """The lower end of the 95 % interval (Wilson) of a share: what is lost for certain, however few rows there are.

    >>> [round(sure_share(*rows), 2) for rows in ((3, 3), (12, 12), (928, 942), (0, 0))]
    [0.44, 0.76, 0.98, 0.0]
    """
    if not whole:
        return 0.0
    z2, p = 1.96**2, part / whole
    middle, spread = p + z2 / (2 * whole), sqrt(z2 * (p * (1 - p) / whole + z2 / (4 * whole**2)))
    return max(0.0, (middle - spread) / (1 + z2 / whole))
