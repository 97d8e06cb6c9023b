from .classification import (
    calibration,
    cross_entropy,
    metrics_of,
    normalised,
    normalised_entropy,
    sigmoid,
    transfer_ratio,
)
from .estimates import Estimate, average, mean_of_seeds, quotient
from .paired import consecutive_blocks, paired_ne_difference
from .progressive import Progressive
from .ranking import auc, gauc

__all__ = [
    "Estimate",
    "Progressive",
    "auc",
    "average",
    "calibration",
    "consecutive_blocks",
    "cross_entropy",
    "gauc",
    "mean_of_seeds",
    "metrics_of",
    "normalised",
    "normalised_entropy",
    "paired_ne_difference",
    "quotient",
    "sigmoid",
    "transfer_ratio",
]
