from .account import Account
from .ahead import Ahead
from .learned import Learned, LeftOutBySampling
from .live_metrics import HEAVY, HEAVY_ROWS, TaskMetrics
from .machine import code, differing, software
from .predictions import (
    CLUSTER,
    Predicted,
    PredictionLog,
    count_predictions,
    logged_columns,
    parts_of,
    predictions_of,
    read_predictions,
)
from .quarantine import Left, Quarantine, places_of
from .resume import Found, last_checkpoint, needed_after, upgraded
from .score_before_learn import not_yet_learned
from .writer import Watch, Writer

__all__ = [
    "CLUSTER",
    "HEAVY",
    "HEAVY_ROWS",
    "Account",
    "Ahead",
    "Found",
    "Learned",
    "Left",
    "LeftOutBySampling",
    "Predicted",
    "PredictionLog",
    "Quarantine",
    "TaskMetrics",
    "Watch",
    "Writer",
    "code",
    "count_predictions",
    "differing",
    "last_checkpoint",
    "logged_columns",
    "needed_after",
    "not_yet_learned",
    "parts_of",
    "places_of",
    "predictions_of",
    "read_predictions",
    "software",
    "upgraded",
]
