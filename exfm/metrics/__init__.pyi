from .classification import (
    calibration,
    cross_entropy,
    metrics_of,
    normalise_loss,
    normalised_entropy,
    sigmoid,
    transfer_ratio,
)
from .estimates import Estimate, average_estimates, estimate_ratio, mean_of_seeds
from .paired import consecutive_blocks, paired_ne_difference
from .progressive import Progressive
from .ranking import auc, gauc

__all__ = [
    "Estimate",
    "Progressive",
    "auc",
    "average_estimates",
    "calibration",
    "consecutive_blocks",
    "cross_entropy",
    "estimate_ratio",
    "gauc",
    "mean_of_seeds",
    "metrics_of",
    "normalise_loss",
    "normalised_entropy",
    "paired_ne_difference",
    "sigmoid",
    "transfer_ratio",
]
