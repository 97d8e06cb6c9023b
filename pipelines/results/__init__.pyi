from .counts import counts_hold, counts_of
from .losses import Losses, Severity, losses_in, losses_now, losses_of, sure_share
from .picture import draw
from .summary import CLUSTER_ROWS, MODELS, PACKAGES, Summary, rows_hold, summarise
from .verdict import Outcome, outcome_of

__all__ = [
    "CLUSTER_ROWS",
    "MODELS",
    "PACKAGES",
    "Losses",
    "Outcome",
    "Severity",
    "Summary",
    "counts_hold",
    "counts_of",
    "draw",
    "losses_in",
    "losses_now",
    "losses_of",
    "outcome_of",
    "rows_hold",
    "summarise",
    "sure_share",
]
