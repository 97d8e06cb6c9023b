"""Leases: a file that a consumer touches periodically, whose age tells the producer whether it is still needed."""

from __future__ import annotations

import os
import time
from pathlib import Path

LEASE_S = 60.0
"""So long after the last touch it is wanted still: a reader that restarts finds what it wants."""
RENEW_S = 10.0


class Lease:
    """The file at `path`. `now`: seconds since 1970, by the clock of this machine.

    >>> import tempfile
    >>> lease = Lease(Path(tempfile.mkdtemp()) / "live" / "wanted")
    >>> lease.still(), lease.renew(), lease.still(), lease.still(time.time() + 61)
    (False, None, True, False)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._renewed = float("-inf")

    def renew(self) -> None:
        """Touch the file; every ten seconds is enough. Raises OSError where the file cannot be written."""
        if time.monotonic() - self._renewed < RENEW_S:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        os.utime(self._path)
        self._renewed = time.monotonic()

    def still(self, now: float | None = None) -> bool:
        try:
            touched = self._path.stat().st_mtime
        except OSError:
            return False
        return (time.time() if now is None else now) - touched < LEASE_S
