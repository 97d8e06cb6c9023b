"""Scales, ticks and marks of the pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from pipelines.lab.page.markup import Html, el

COLOURS = 8
DAY_MS = 86_400_000


def colour(arm: int) -> str:
    return f"var(--a{arm % COLOURS})"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`.

    >>> ticks(-0.3, 1.2), ticks(0, 0.07), ticks(3, 3)
    ([0.0, 0.5, 1.0], [0.0, 0.02, 0.04, 0.06], [3])
    """
    if not high > low:
        return [low]
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * (1 - 1e-9))
    digits = max(0, -math.floor(math.log10(step)))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, digits) + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """
    >>> [number(x) for x in (0.5, 2.0, 12000, -0.25, 0.0)]
    ['0.5', '2', '12,000', '−0.25', '0']
    """
    text = f"{abs(value):,.4g}" if abs(value) < 1000 else f"{abs(value):,.0f}"
    return f"−{text}" if value < 0 else text


def signed(value: float) -> str:
    """
    >>> signed(0.5), signed(-0.126), signed(0.0)
    ('+0.50', '−0.13', '0.00')
    """
    text = f"{abs(value):.2f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else '−'}{text}"


def when(ms: float, span_ms: float = 0) -> str:
    """An event time, UTC: with its hour where a picture spans few days.

    >>> when(1_704_067_200_000), when(1_704_067_200_000, 10 * DAY_MS)
    ('01-01 00:00', '2024-01-01')
    """
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return at.strftime("%Y-%m-%d") if span_ms > 3 * DAY_MS else at.strftime("%m-%d %H:%M")


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """From values to places; values outside are held at the ends.

    >>> place = scale(0, 10, 100, 200)
    >>> place(5), place(-3)
    (150.0, 100.0)
    """
    span = (high - low) or 1.0

    def place(value: float) -> float:
        share = min(1.0, max(0.0, (value - low) / span))
        return round(start + share * (end - start), 2)

    return place


def marker(x: float, y: float, arm: int, size: float = 4.0) -> Html:
    """A circle, square, diamond or triangle: arms are distinct without colour, too."""
    s, fill = size, colour(arm)
    match arm % 4:
        case 0:
            return el("circle", cx=x, cy=y, r=s, fill=fill)
        case 1:
            return el("rect", x=x - s, y=y - s, width=2 * s, height=2 * s, fill=fill)
        case 2:
            points = f"{x},{y - s - 1} {x + s + 1},{y} {x},{y + s + 1} {x - s - 1},{y}"
        case _:
            points = f"{x},{y - s - 1} {x + s},{y + s} {x - s},{y + s}"
    return el("polygon", points=points, fill=fill)


def path(points: Sequence[tuple[float, float]]) -> str:
    """
    >>> path([(1, 2), (3, 4)])
    'M1,2L3,4'
    """
    return "M" + "L".join(f"{x},{y}" for x, y in points)
