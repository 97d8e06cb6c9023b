"""Shares of rows, with the confidence that few rows allow."""

from __future__ import annotations

from exfm.metrics.reliability import wilson


def sure_share(part: int, whole: int) -> float:
    """Lower end of the 95 % interval (Wilson) of a share: the certain loss, however few the rows.

    >>> [round(sure_share(*rows), 2) for rows in ((3, 3), (12, 12), (928, 942), (0, 0))]
    [0.44, 0.76, 0.98, 0.0]
    """
    return wilson(part / whole, whole)[0] if whole else 0.0
