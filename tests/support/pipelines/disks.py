"""A disk that is full, and who waits for one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipelines.live.workers.stopwatch import Stopwatch


class DiskFull(OSError):
    pass


def waits_for_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a worker waits for its disk, from when its stopwatch counts that."""
    waits, plain = threading.Event(), Stopwatch.__call__

    @contextmanager
    def told(self: Stopwatch, phase: str) -> Iterator[None]:
        with plain(self, phase):
            if phase == "wait for disk":
                waits.set()
            yield

    monkeypatch.setattr(Stopwatch, "__call__", told)
    return waits
