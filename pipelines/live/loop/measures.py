"""Measures of a run for its status: files and bytes of the lake, and the disk use of everything that grows."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.status import RunStatus, TrackingHealth
from pipelines.track.mlflow import Tracker
from streaming.errors import StreamingError
from streaming.lake.delta.files import TableFiles
from streaming.store.working_copy import copy_of

DISK_INTERVAL_S = 60.0
PARTS = {
    "lake": ("lake",),
    "checkpoints": ("checkpoints",),
    "snapshots": ("snapshots",),
    "predictions": ("predictions",),
    "logs": ("logs",),
    "broker": ("broker",),
    "tracking": ("mlflow.db", "mlartifacts"),
}


class Measures:
    """Fills in `lake`, `disk` and `tracking` of a status; the whole disk use is measured every `DISK_INTERVAL_S`."""

    def __init__(self, run_dir: RunDir, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._clock = run_dir, clock
        self._next_at = float("-inf")
        self._lake: TableFiles | None = None

    def fill_in(self, status: RunStatus, tracker: Tracker | None) -> None:
        sizes = self._lake_sizes()
        status.lake.files, status.lake.bytes = len(sizes), sum(sizes)
        if status.over or self._clock() >= self._next_at:
            self._next_at = self._clock() + DISK_INTERVAL_S
            status.disk = disk_use(self._run_dir.root)
            status.disk_free_bytes = shutil.disk_usage(self._run_dir.root).free
        if tracker is not None:
            status.tracking = TrackingHealth(tracker.dropped, tracker.problem)

    def _lake_sizes(self) -> list[int]:
        """Bytes of the lake's files; as its log has them where they are on other machines."""
        if (copy := copy_of(self._run_dir.root)) is None or copy.share is None:
            return list(_sizes(self._run_dir.lake.glob("*/*/*.parquet")))
        with suppress(StreamingError):  # whoever works with it says what is wrong
            if self._lake is None:
                self._lake = TableFiles(self._run_dir.lake)
            self._lake.refresh()
        sizes: list[int] = [] if self._lake is None else self._lake.actions["size_bytes"].to_pylist()
        return sizes


def disk_use(root: Path) -> dict[str, int]:
    """Bytes of the files below a run directory, by part; files deleted meanwhile count as 0.

    >>> disk_use(Path("no-such-run"))["lake"]
    0
    """
    return {part: sum(sum(_sizes(_files(root / name))) for name in names) for part, names in PARTS.items()}


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, _, names in os.walk(path):
        yield from (Path(folder) / name for name in names)


def _sizes(files: Iterator[Path]) -> Iterator[int]:
    for file in files:
        try:
            yield file.stat().st_size
        except OSError:  # deleted meanwhile
            continue
