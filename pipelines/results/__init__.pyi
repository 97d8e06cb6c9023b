from .picture import draw
from .summary import CLUSTER_ROWS, MODELS, PACKAGES, Summary, counts_hold, rows_hold, summarise
from .verdict import Outcome, outcome_of

__all__ = [
    "CLUSTER_ROWS",
    "MODELS",
    "PACKAGES",
    "Outcome",
    "Summary",
    "counts_hold",
    "draw",
    "outcome_of",
    "rows_hold",
    "summarise",
]
