"""Monotonic wall clock for bounding event times, unaffected when the machine's clock is set back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

JUMP_MS = 1_000
"""A smaller step back is none: clocks that are kept are slowed, not set back."""
CORRECTION_MS = 86_400_000
"""A clock that goes back by more was wrong before, and is followed."""


class SteadyClock:
    """Milliseconds since 1970 that never go back with the machine's clock, since correct producers' rows would then lie
    in the future. `warnings` names the first time that it did.

    >>> wall, passed = [1_700_000_600_000], [0.0]
    >>> clock = SteadyClock(lambda: wall[0], lambda: passed[0])
    >>> wall[0], passed[0] = 1_700_000_002_000, 2.0
    >>> clock(), clock.warnings["clock"][:63]
    (1700000602000, "this machine's clock went back by 600 s, to 2023-11-14 22:13:22")
    """

    def __init__(self, wall_ms: Callable[[], int], passed_s: Callable[[], float]) -> None:
        """`wall_ms`: the machine's clock; `passed_s`: one that never jumps."""
        self._wall_ms, self._passed_s = wall_ms, passed_s
        self._begin_ms, self._begin_s = wall_ms(), passed_s()
        self.warnings: dict[str, str] = {}

    def restore(self, shown_ms: int) -> None:
        """Continue after a process whose clock was at `shown_ms`."""
        self._begin_ms = max(self(), shown_ms)
        self._begin_s = self._passed_s()

    def __call__(self) -> int:
        wall_ms, now_s = self._wall_ms(), self._passed_s()
        shown_ms = self._begin_ms + round(1000 * (now_s - self._begin_s))
        back_ms = shown_ms - wall_ms
        if back_ms > JUMP_MS and "clock" not in self.warnings:
            now = datetime.fromtimestamp(wall_ms / 1000, UTC)
            self.warnings["clock"] = (
                f"this machine's clock went back by {back_ms / 1000:,.0f} s, to {now:%Y-%m-%d %H:%M:%S} UTC. No row is "
                "refused for that; see that its time service (NTP) runs"
            )
        if 0 <= back_ms <= CORRECTION_MS:
            return shown_ms
        self._begin_ms, self._begin_s = wall_ms, now_s
        return wall_ms
