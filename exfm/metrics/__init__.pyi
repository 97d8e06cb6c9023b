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
from .decisions import Kept, at_thresholds, expected_utility, top_shares
from .discoveries import e_bh
from .estimates import Estimate, average_estimates, estimate_ratio, mean_of_seeds, mean_of_shared, remainder
from .limits import MIN_CLUSTERS, MIN_POSITIVES, too_few
from .paired import PairedGain, consecutive_blocks, paired_gain
from .policy import MeanReward, PolicyValue, best_of_request, policy_value
from .power import rows_needed, rows_to_stop
from .progressive import Progressive
from .ranking import auc, gauc
from .recalibration import recalibrated
from .reliability import Bin, ClippedLoss, brier, clipped_log_loss, expected_calibration_error, reliability_bins, wilson
from .sequential import Evidence, PairedEvidence, log_e_values, path, reach
from .watching import BLOCK_ROWS, Watched, watch

__all__ = [
    "BLOCK_ROWS",
    "MIN_CLUSTERS",
    "MIN_POSITIVES",
    "Bin",
    "ClippedLoss",
    "Clusters",
    "Estimate",
    "Evidence",
    "Kept",
    "MeanReward",
    "PairedEvidence",
    "PairedGain",
    "PolicyValue",
    "Progressive",
    "Sums",
    "Variance",
    "Watched",
    "at_thresholds",
    "auc",
    "average_estimates",
    "best_of_request",
    "brier",
    "calibration",
    "clipped_log_loss",
    "consecutive_blocks",
    "cross_entropy",
    "e_bh",
    "estimate_ratio",
    "expected_calibration_error",
    "expected_utility",
    "gauc",
    "log_e_values",
    "mean_of_seeds",
    "mean_of_shared",
    "metrics_of",
    "normalise_loss",
    "normalised_entropy",
    "paired_gain",
    "path",
    "policy_value",
    "reach",
    "recalibrated",
    "reliability_bins",
    "remainder",
    "rows_needed",
    "rows_to_stop",
    "sigmoid",
    "too_few",
    "top_shares",
    "transfer_ratio",
    "variance_of",
    "watch",
    "wilson",
]
