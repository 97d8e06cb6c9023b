"""Reliability: equal to scikit-learn's where it has it, and bands that hold."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from exfm.errors import ConfigError
from exfm.metrics.classification import sigmoid
from exfm.metrics.clusters import Clusters
from exfm.metrics.ranking import auc
from exfm.metrics.reliability import brier, clipped_log_loss, expected_calibration_error, reliability_bins, wilson


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    z = rng.normal(-1.5, 1.2, 5000).round(3)
    y = (rng.random(5000) < sigmoid(z + rng.normal(0, 0.4, 5000))).astype(int)
    return z, y, rng.uniform(0, 3, 5000)


def test_figures_equal_those_of_scikit_learn(rows):
    z, y, w = rows
    p = sigmoid(z)
    assert brier(z, y) == pytest.approx(brier_score_loss(y, p), abs=1e-9)
    assert brier(z, y, w) == pytest.approx(brier_score_loss(y, p, sample_weight=w), abs=1e-9)
    assert clipped_log_loss(z, y, w).value == pytest.approx(log_loss(y, p, sample_weight=w), abs=1e-9)
    assert auc(z, y, w) == pytest.approx(roc_auc_score(y, p, sample_weight=w), abs=1e-9)


def test_clipping_is_scikit_learns_at_the_same_limit_and_says_what_it_cut(rows):
    z, y, w = rows
    z = z.copy()
    z[:50] = 30.0  # p of about 1
    limit = np.log((1 - 1e-3) / 1e-3)
    found = clipped_log_loss(z, y, w, limit)
    assert found.value == pytest.approx(log_loss(y, np.clip(sigmoid(z), 1e-3, 1 - 1e-3), sample_weight=w), abs=1e-9)
    beyond = np.abs(z) > limit
    assert found.share == pytest.approx(w[beyond].sum() / w.sum())
    assert found.value + found.cut == pytest.approx(float((np.logaddexp(0, z) - z * y) @ w / w.sum()))


@pytest.mark.parametrize(("by", "strategy"), [("quantile", "quantile"), ("width", "uniform")])
def test_bins_equal_the_calibration_curve_of_scikit_learn(rows, by, strategy):
    z, y, _ = rows
    observed, predicted = calibration_curve(y, sigmoid(z), n_bins=10, strategy=strategy)
    bins = reliability_bins(z, y, by=by)
    assert [each.observed for each in bins] == pytest.approx(observed, abs=1e-9)
    assert [each.predicted for each in bins] == pytest.approx(predicted, abs=1e-9)
    assert sum(each.rows for each in bins) == len(y)


def test_a_row_of_weight_two_counts_as_two_rows(rows):
    z, y, _ = rows
    twice = np.where(np.arange(len(z)) % 3 == 0, 2, 1)
    weighted = reliability_bins(z, y, twice, by="width")
    repeated = reliability_bins(z.repeat(twice), y.repeat(twice), by="width")
    for one, other in zip(weighted, repeated, strict=True):
        assert (one.observed, one.predicted, one.weight) == pytest.approx(
            (other.observed, other.predicted, other.weight)
        )
    of_none = reliability_bins(z, y, np.where(np.arange(len(z)) % 2, 0, 1), by="width")
    assert of_none == reliability_bins(z[::2], y[::2], by="width")


def test_bands_of_wilson_hold_the_rate_in_95_of_100():
    rng = np.random.default_rng(1)
    held = [low <= 0.05 <= high for low, high in (wilson(rng.binomial(200, 0.05) / 200, 200) for _ in range(4000))]
    assert 0.93 <= np.mean(held) <= 0.98


def test_bands_by_cluster_hold_where_rows_of_a_user_go_together_and_wilsons_do_not():
    """200 users of 25 rows, each with a mood of its own that predictions do not know."""
    held, plain = [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        user = np.arange(200).repeat(25)
        mood = rng.choice([-1.2, 1.2], 200)[user]
        p = np.full(5000, 0.2)
        truth = (sigmoid(-1.386 + 1.2) + sigmoid(-1.386 - 1.2)) / 2
        y = (rng.random(5000) < sigmoid(-1.386 + mood)).astype(int)
        z = np.log(p / (1 - p))
        (by_user,) = reliability_bins(z, y, bins=1, clusters=Clusters.of(user))
        (alone,) = reliability_bins(z, y, bins=1)
        held.append(by_user.low <= truth <= by_user.high)
        plain.append(alone.low <= truth <= alone.high)
    assert 0.91 <= np.mean(held) <= 0.98
    assert np.mean(plain) < 0.85


def test_the_error_of_a_calibrated_model_is_small_and_that_of_a_bold_one_is_not(rows):
    rng = np.random.default_rng(2)
    z = rng.normal(-1, 1, 20_000)
    y = (rng.random(20_000) < sigmoid(z)).astype(int)
    assert expected_calibration_error(reliability_bins(z, y)) < 0.012
    assert expected_calibration_error(reliability_bins(2.5 * z, y)) > 0.05


def test_nothing_to_judge_is_none_and_no_bins():
    none = np.empty(0)
    assert brier(none, none) is None
    assert clipped_log_loss(none, none).value is None
    assert reliability_bins(none, none) == []
    assert expected_calibration_error([]) is None
    with pytest.raises(ConfigError, match="0 bins"):
        reliability_bins(none, none, bins=0)
