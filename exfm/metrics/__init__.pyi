from .classification import (
    calibration,
    cross_entropy,
    metrics_of,
    normalise_loss,
    normalised_entropy,
    sigmoid,
    transfer_ratio,
)
from .clusters import Clusters, Sums, Variance, variance_of
from .estimates import Estimate, average_estimates, estimate_ratio, mean_of_seeds
from .limits import MIN_CLUSTERS, MIN_POSITIVES, too_few
from .paired import PairedGain, consecutive_blocks, paired_gain
from .progressive import Progressive
from .ranking import auc, gauc
from .sequential import Evidence, PairedEvidence, log_e_values, path, reach

__all__ = [
    "MIN_CLUSTERS",
    "MIN_POSITIVES",
    "Clusters",
    "Estimate",
    "Evidence",
    "PairedEvidence",
    "PairedGain",
    "Progressive",
    "Sums",
    "Variance",
    "auc",
    "average_estimates",
    "calibration",
    "consecutive_blocks",
    "cross_entropy",
    "estimate_ratio",
    "gauc",
    "log_e_values",
    "mean_of_seeds",
    "metrics_of",
    "normalise_loss",
    "normalised_entropy",
    "paired_gain",
    "path",
    "reach",
    "sigmoid",
    "too_few",
    "transfer_ratio",
    "variance_of",
]
