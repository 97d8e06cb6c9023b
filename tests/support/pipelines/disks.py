"""Disks that are full, and who waits for one."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.live.workers.stopwatch import Stopwatch


class DiskFull(OSError):
    pass


@contextmanager
def disk_of_its_own(place: Path) -> Iterator[Path]:
    """A disk of one MiB at `place`."""
    place.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> Path:
    """Write a file until the disk takes nothing more; returns the file."""
    with (ballast := place / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        file.writelines(itertools.repeat(b"0" * 4096))
    return ballast


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
