"""The calendar of an event time: which hour it was, of the day or of the week, and which day.

    t' = t + offset      hour of day = ⌊t' / hour⌋ mod 24      day of week = ⌊t' / day + 3⌋ mod 7, Monday is 0
    hour of week = 24 · day of week + hour of day

`offset` is a fixed distance from UTC: there is no daylight saving, under which one hour of the year would have two
meanings and the same rows other ids when a time zone's rules change.
"""

from __future__ import annotations

import numpy as np

EVENT_TIME = "event_time_ms"
"""The column that calendar features read unless another is named."""

PLACES: dict[str, int] = {"hour_of_day": 24, "day_of_week": 7, "hour_of_week": 168}
"""How many values each has."""

OFFSET = r"^[+-]\d{2}:[0-5]\d$"
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
MONDAY_MS = 3 * DAY_MS
"""1970 began on a Thursday: so long after the begin of its week."""


def offset_ms(text: str) -> int:
    """
    >>> offset_ms("+05:30") // HOUR_MS, offset_ms("-08:00") // HOUR_MS
    (5, -8)
    """
    sign = -1 if text.startswith("-") else 1
    return sign * (int(text[1:3]) * HOUR_MS + int(text[4:]) * 60_000)


def place_of(kind: str, time_ms: np.ndarray, offset: str) -> np.ndarray:
    """(B,) int64 milliseconds since 1970 -> (B,) int64.

    >>> time_ms = np.array([1_700_000_000_000])  # Tuesday, 14 November 2023, 22:13 UTC
    >>> [place_of(kind, time_ms, "+02:00").item() for kind in PLACES]
    [0, 2, 48]
    """
    local = time_ms + offset_ms(offset)
    if kind == "hour_of_day":
        return local // HOUR_MS % 24
    if kind == "day_of_week":
        return (local + MONDAY_MS) // DAY_MS % 7
    return (local + MONDAY_MS) // HOUR_MS % 168


def angles_of(kind: str, time_ms: np.ndarray, offset: str) -> np.ndarray:
    """Sine and cosine of the time's position in its day or week, to the minute: (B,) int64 -> (B, 2) float64."""
    cycle = DAY_MS if kind == "hour_of_day" else 7 * DAY_MS
    local = time_ms + offset_ms(offset) + (0 if kind == "hour_of_day" else MONDAY_MS)
    angle = local % cycle * (2 * np.pi / cycle)
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)
