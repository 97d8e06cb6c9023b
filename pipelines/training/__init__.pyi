from .account import Account
from .ahead import Ahead
from .learned import Learned, LeftOutBySampling
from .live_metrics import TaskMetrics
from .predictions import CLUSTER, PredictionLog, count_predictions, predictions_of, read_predictions
from .quarantine import Left, Quarantine, places_of
from .resume import Found, last_checkpoint, needed_after, upgraded
from .score_before_learn import not_yet_learned
from .writer import Watch, Writer

__all__ = [
    "CLUSTER",
    "Account",
    "Ahead",
    "Found",
    "Learned",
    "Left",
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
    "places_of",
    "predictions_of",
    "read_predictions",
    "upgraded",
]
