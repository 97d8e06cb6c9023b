from .picture import draw
from .summary import CLUSTER_ROWS, MODELS, PACKAGES, Summary, Truth, counts_hold, load_truth, rows_hold, summarise

__all__ = [
    "CLUSTER_ROWS",
    "MODELS",
    "PACKAGES",
    "Summary",
    "Truth",
    "counts_hold",
    "draw",
    "load_truth",
    "rows_hold",
    "summarise",
]
