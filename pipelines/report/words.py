"""Numbers as text, the same on every screen, table and page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from pipelines.report.table import Entry, Toned

DAY_MS = 86_400_000


def interval(
    value: float | None,
    low: float | None,
    high: float | None,
    *,
    digits: int = 2,
    sign: str = "+",
    percent: bool = False,
) -> Entry:
    """A value with its 95 % interval; good above 0, bad below.

    >>> interval(0.5, 0.25, 0.75)
    Toned(text='+0.50 [+0.25, +0.75]', tone='good')
    >>> interval(-0.5, -1.5, 0.5), interval(1.0, None, None), interval(None, None, None)
    ('-0.50 [-1.50, +0.50]', '+1.00', None)
    """
    if value is None:
        return None
    form = f"{sign}.{digits}{'%' if percent else 'f'}"
    if low is None or high is None:
        return f"{value:{form}}"
    text = f"{value:{form}} [{low:{form}}, {high:{form}}]"
    if not sign or low <= 0 <= high:
        return text
    return Toned(text, "good" if low > 0 else "bad")


def fixed(value: float | None, digits: int = 4) -> str | None:
    """A value with so many digits; None where there is none."""
    return None if value is None else f"{value:.{digits}f}"


def count(value: float | None) -> str | None:
    """A whole number with its thousands apart.

    >>> count(12_000.4), count(None)
    ('12,000', None)
    """
    return None if value is None else f"{value:,.0f}"


def counts(values: Sequence[float]) -> str:
    """The range of several counts.

    >>> counts([1200, 9, 30]), counts([77, 77])
    ('9 to 1,200', '77')
    """
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def billions(value: float | None) -> str | None:
    """A large number in billions, with three digits.

    >>> billions(426_300_000_000), billions(32_150_000), billions(5e12), billions(None)
    ('426', '0.0321', '5,000', None)
    """
    if value is None:
        return None
    digits = max(0, 2 - math.floor(math.log10(value / 1e9))) if value > 0 else 0
    return f"{value / 1e9:,.{digits}f}"


def p_value(p: float | None) -> str | None:
    """
    >>> p_value(0.0123), p_value(2e-7), p_value(None)
    ('0.012', '2e-07', None)
    """
    if p is None:
        return None
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def when(ms: float, span_ms: float = 0) -> str:
    """An event time, UTC; its hour too where a picture spans few days.

    >>> when(1_704_067_200_000), when(1_704_067_200_000, 10 * DAY_MS)
    ('01-01 00:00', '2024-01-01')
    """
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return at.strftime("%Y-%m-%d") if span_ms > 3 * DAY_MS else at.strftime("%m-%d %H:%M")


def moment(ms: float) -> str:
    """An event time to the millisecond, UTC.

    >>> moment(1_704_080_659_546)
    '2024-01-01 03:44:19.546'
    """
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
