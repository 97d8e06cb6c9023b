"""Waiting for what another thread writes, and a disk that is full."""

from __future__ import annotations

import time

PATIENCE_S = 20


def eventually(holds) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class DiskFull(OSError):
    pass
