from .alarms import Alarm, Raised, Refused, Sight, alarms_of, words_of
from .causes import FULL, Died, Gone, cause_of
from .idleness import Idleness
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
from .promoting import Decision, Keep, Promote, Refuse, Standards, TaskSeen, promotion
from .shares import sure_share
from .states import RUN_TRANSITIONS, WORKER_TRANSITIONS, RunState, WorkerState, moved

__all__ = [
    "FULL",
    "RUN_TRANSITIONS",
    "WORKER_TRANSITIONS",
    "Alarm",
    "Cause",
    "Death",
    "Decision",
    "Died",
    "GiveUp",
    "Gone",
    "Idleness",
    "Keep",
    "Kind",
    "Patience",
    "Promote",
    "Raised",
    "Refuse",
    "Refused",
    "RunState",
    "Score",
    "Sight",
    "Standards",
    "TaskSeen",
    "Wait",
    "WithoutTeacher",
    "WorkerState",
    "alarms_of",
    "cause_of",
    "lockstep_version",
    "moved",
    "promotion",
    "snapshot_for",
    "still_counting",
    "sure_share",
    "verdict",
    "words_of",
]
