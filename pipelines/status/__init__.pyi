from .disk import disk_use
from .file import StatusFile
from .heartbeat import Heartbeat
from .legs import EarlierLegs, EarlierWork, earlier_legs
from .status import RunStatus, WorkerStatus
from .stored import ENDED, alive, last_status, read_status, stop_run

__all__ = [
    "ENDED",
    "EarlierLegs",
    "EarlierWork",
    "Heartbeat",
    "RunStatus",
    "StatusFile",
    "WorkerStatus",
    "alive",
    "disk_use",
    "earlier_legs",
    "last_status",
    "read_status",
    "stop_run",
]
