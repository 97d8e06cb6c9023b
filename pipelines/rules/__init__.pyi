from .causes import FULL, Died, Gone, cause_of
from .kinds import Kind
from .policies import (
    Cause,
    Death,
    GiveUp,
    Patience,
    Score,
    Wait,
    WithoutTeacher,
    lockstep_version,
    snapshot_for,
    still_counting,
    verdict,
)
from .states import RUN_TRANSITIONS, WORKER_TRANSITIONS, RunState, WorkerState, moved

__all__ = [
    "FULL",
    "RUN_TRANSITIONS",
    "WORKER_TRANSITIONS",
    "Cause",
    "Death",
    "Died",
    "GiveUp",
    "Gone",
    "Kind",
    "Patience",
    "RunState",
    "Score",
    "Wait",
    "WithoutTeacher",
    "WorkerState",
    "cause_of",
    "lockstep_version",
    "moved",
    "snapshot_for",
    "still_counting",
    "verdict",
]
