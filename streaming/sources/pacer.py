"""Pacing of a played stream: at full speed, at rows per second, or at a multiple of event time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from streaming.errors import BadInput

_RATE = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<times>x?)")


class Pacer:
    """Computes how long to wait before a chunk of the stream is due. It never sleeps.

    rate: "full"; "5000" rows per second; "60x" times event time. clock: seconds.
    A sender that fell behind is not held back until it has caught up.
    Raises BadInput for another rate.

    >>> now = [100.0]
    >>> pacer = Pacer("1000", clock=lambda: now[0])
    >>> pacer.wait_s(rows_sent=0, event_time_ms=0)
    0.0
    >>> now[0] = 100.5
    >>> pacer.wait_s(rows_sent=2000, event_time_ms=0), pacer.seconds_of(rows=500)
    (1.5, 0.5)
    """

    def __init__(self, rate: str = "full", clock: Callable[[], float] = time.monotonic) -> None:
        match = _RATE.fullmatch(rate.strip())
        if rate != "full" and (match is None or float(match["number"]) == 0):
            raise BadInput(
                f'rate {rate!r} is unknown; use "full", rows per second ("5000") or times event time ("60x")'
            )
        number = float(match["number"]) if match else 0.0
        self._rows_per_s = number if match and not match["times"] else None
        self._times = number if match and match["times"] else None
        self._clock = clock
        self._started_s: float | None = None
        self._first_rows = 0
        self._first_event_ms: int | None = None

    def wait_s(self, rows_sent: int, event_time_ms: int) -> float:
        """Seconds until the row after `rows_sent` rows, with `event_time_ms`, may be sent.

        Pace is kept from the first question on: a sender that resumes asks first with the rows it has sent already.
        """
        elapsed_s = self._elapsed_s(rows_sent)
        if self._times is not None:
            if self._first_event_ms is None:
                self._first_event_ms = event_time_ms
            return max(0.0, (event_time_ms - self._first_event_ms) / 1000 / self._times - elapsed_s)
        if self._rows_per_s is not None:
            return max(0.0, (rows_sent - self._first_rows) / self._rows_per_s - elapsed_s)
        return 0.0

    def seconds_of(self, rows: int) -> float:
        """Duration of this many rows; 0 if the rate is not in rows."""
        return 0.0 if self._rows_per_s is None else rows / self._rows_per_s

    def _elapsed_s(self, rows_sent: int) -> float:
        now_s = self._clock()
        if self._started_s is None:
            self._started_s, self._first_rows = now_s, rows_sent
        return now_s - self._started_s
