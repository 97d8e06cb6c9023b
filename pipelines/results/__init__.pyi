from .picture import draw
from .summary import CLUSTER_ROWS, MODELS, PACKAGES, Summary, counts_hold, rows_hold, summarise

__all__ = [
    "CLUSTER_ROWS",
    "MODELS",
    "PACKAGES",
    "Summary",
    "counts_hold",
    "draw",
    "rows_hold",
    "summarise",
]
