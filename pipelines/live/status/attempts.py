"""Earlier attempts of a resumed run, one for each start of its coordinator. A leg is one start of its coordinator, up
to its end, whatever that was.

status.json is rewritten every second and never in half, so it says what the legs before took, also after kill -9.
Rows are not added up here: every worker counts its own since the run began, with the positions that it commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.live.status.stored import read_status
from streaming.errors import StreamingError


@dataclass(frozen=True)
class EarlierWork:
    """One worker's work, summed over earlier attempts; memory is the maximum."""

    rows: int = 0
    restarts: int = 0
    busy_s: float = 0.0
    peak_rss_bytes: int = 0
    phases_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EarlierAttempts:
    """Totals of earlier attempts; `started_at`: of the first one, None without any."""

    attempts: int = 0
    wall_s: float = 0.0
    started_at: str | None = None
    workers: Mapping[str, EarlierWork] = field(default_factory=dict)

    def of(self, worker: str) -> EarlierWork:
        return self.workers.get(worker, EarlierWork())


def earlier_attempts(root: Path) -> EarlierAttempts:
    """Earlier attempts of the run in `root`; empty if it is new, or its status is damaged."""
    try:
        value = read_status(root)
    except StreamingError:
        return EarlierAttempts()
    return EarlierAttempts(
        value["legs"],
        value["wall_s"],
        value["started_at"],
        {name: _work(worker) for name, worker in value["workers"].items()},
    )


def _work(worker: Mapping[str, Any]) -> EarlierWork:
    return EarlierWork(
        worker["rows"],
        worker["restarts"],
        worker["busy_s"],
        worker["peak_rss_bytes"],
        worker["phases_s"],
    )
