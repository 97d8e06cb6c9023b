from .file import StatusFile
from .heartbeat import Heartbeat
from .status import RunStatus, WorkerStatus
from .stored import ENDED, alive, read_status, stop_run

__all__ = [
    "ENDED",
    "Heartbeat",
    "RunStatus",
    "StatusFile",
    "WorkerStatus",
    "alive",
    "read_status",
    "stop_run",
]
