from .account import Account
from .ahead import Ahead
from .learned import Learned, LeftOutBySampling
from .live_metrics import TaskMetrics
from .predictions import CLUSTER, PredictionLog, count_predictions, predictions_of, read_predictions
from .quarantine import REASONS, Quarantine, reason_of
from .resume import Found, last_checkpoint, needed_after, upgraded
from .score_before_learn import not_yet_learned
from .writer import Watch, Writer

__all__ = [
    "CLUSTER",
    "REASONS",
    "Account",
    "Ahead",
    "Found",
    "Learned",
    "LeftOutBySampling",
    "PredictionLog",
    "Quarantine",
    "TaskMetrics",
    "Watch",
    "Writer",
    "count_predictions",
    "last_checkpoint",
    "needed_after",
    "not_yet_learned",
    "predictions_of",
    "read_predictions",
    "reason_of",
    "upgraded",
]
