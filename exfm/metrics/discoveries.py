"""Multiple comparisons: significant ones at a given false discovery rate.

e-BH (Wang & Ramdas, arXiv 2009.02824): of K e-values, with e_(1) ≥ e_(2) ≥ …,

    k* = max { k : e_(k) ≥ K / (α k) }          found: all with e ≥ K / (α k*)

The expected share of false ones among those found is α at most, however the K depend on each other: arms share rows,
and segments share users.
"""

from __future__ import annotations

import numpy as np

from exfm.errors import ConfigError


def e_bh(log_e: np.ndarray, alpha: float = 0.05) -> np.ndarray:
    """Mask (K,) bool of discoveries among K logs of e-values. Raises ConfigError for an α outside (0, 1).

    >>> e_bh(np.log([100.0, 50.0, 25.0, 2.0]), alpha=0.1).tolist()  # thresholds 40, 20, 13.3, 10
    [True, True, True, False]
    >>> e_bh(np.log([30.0, 5.0, 1.0, 1.0]), alpha=0.1).tolist()
    [False, False, False, False]
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"a share of false discoveries of {alpha:g}; give one between 0 and 1, as 0.05")
    values = np.asarray(log_e, dtype=np.float64)
    K = len(values)
    if not K:
        return np.zeros(0, dtype=bool)
    ranked = np.sort(values)[::-1]
    thresholds = np.log(K) - np.log(alpha) - np.log(np.arange(1, K + 1))
    enough = np.flatnonzero(ranked >= thresholds)
    return np.asarray(values >= thresholds[enough[-1]]) if len(enough) else np.zeros(K, dtype=bool)
