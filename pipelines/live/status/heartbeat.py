"""status.json is rewritten every second from a run's start to its end, whatever the run is busy with."""

from __future__ import annotations

import threading
from types import TracebackType

from pipelines.live.rules.states import RunState
from pipelines.live.status.file import StatusFile
from pipelines.live.status.status import ENDS, RunStatus

INTERVAL_S = 1.0


class Heartbeat:
    """A context: writes `status` to `file` until it is left. Left by an error, the status says so."""

    def __init__(self, file: StatusFile, status: RunStatus) -> None:
        self._file, self._status = file, status
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def _beat(self) -> None:
        while not self._over.wait(INTERVAL_S):
            self._file.write(self._status.as_json())

    def __enter__(self) -> Heartbeat:
        self._file.write(self._status.as_json())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is not None and self._status.state not in ENDS:
            interrupted = isinstance(error, KeyboardInterrupt)
            self._status.state = RunState.STOPPED if interrupted else RunState.FAILED
            self._status.reason = "interrupted" if interrupted else str(error) or type(error).__name__
        self._file.write(self._status.as_json())
