"""status.json: always whole, rewritten every second whatever the run is busy with, and on a full disk too."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from pipelines.live.rules.causes import FULL
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from streaming.store.files import link_beside, move

ROOM = 16 * 1024
"""Bytes that the file always occupies: as long as the text fits, rewriting it needs no further room."""
INTERVAL_S = 1.0

log = logging.getLogger(__name__)


class StatusFile:
    """A JSON file that is always whole, and is rewritten on a full disk.

    Each text is a new file, moved into place, so a reader that has opened the one before reads that to its end. A spare
    file keeps as much room: on a full disk the text is written over it, and the two are swapped. Blanks fill the rest.

    >>> import tempfile
    >>> file = StatusFile(Path(tempfile.mkdtemp()) / "status.json")
    >>> file.write(lambda: {"state": "running"}); file.write(lambda: {"state": "done"})
    >>> json.loads(file.path.read_text())
    {'state': 'done'}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._new, self._spare, self._old = (path.with_name(f".{path.name}.{kind}") for kind in ("new", "spare", "old"))
        self._lock = threading.Lock()

    def write(self, make: Callable[[], Any]) -> None:
        """Write what `make` makes now: of two threads that write, the later has the newer. On a full or read-only disk
        the earlier text stays, and the log says so."""
        with self._lock:
            text = json.dumps(make(), indent=2, allow_nan=False).encode()
            try:
                self._write(text)
            except OSError as error:
                if error.errno not in (*FULL, errno.EROFS):
                    raise
                log.warning("%s stays as it is: %s", self.path, error)

    def _write(self, text: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        room = -(-(len(text) + 1) // ROOM) * ROOM
        text = text.ljust(room - 1) + b"\n"
        self._old.unlink(missing_ok=True)  # of a writer that was killed
        try:
            if not self._spare.exists() or self._spare.stat().st_size != room:
                _over(self._spare, text)
            self._new.write_bytes(text)
        except OSError as error:
            self._new.unlink(missing_ok=True)
            if error.errno not in FULL:
                raise
            self._swap(text)
        else:
            move(self._new, self.path)

    def _swap(self, text: bytes) -> None:
        """Write over the spare, which becomes the file, and the file the spare."""
        _over(self._spare, text)
        if self.path.exists():
            link_beside(self.path, self._old)  # otherwise the move would free its blocks
        move(self._spare, self.path)
        if self._old.exists():
            move(self._old, self._spare)


class Heartbeat:
    """A context: writes `status` to `file` until it is left. Left by an error, the status says so."""

    def __init__(self, file: StatusFile, status: RunStatus) -> None:
        self._file, self._status = file, status
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def _beat(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self._file.write(self._status.as_json)

    def __enter__(self) -> Heartbeat:
        self._file.write(self._status.as_json)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is not None and not self._status.over:
            interrupted = isinstance(error, KeyboardInterrupt)
            self._status.state = RunState.STOPPED if interrupted else RunState.FAILED
            self._status.reason = "interrupted" if interrupted else str(error) or type(error).__name__
        self._file.write(self._status.as_json)


def _over(path: Path, text: bytes) -> None:
    """Write over what is there, which keeps its blocks."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as out:
        out.write(text)
        out.truncate()
