"""The exact figures, against slow definitions written out here."""

import numpy as np
import pytest

from exfm.metrics.classification import (
    calibration,
    cross_entropy,
    log_loss,
    metrics_of,
    normalised_entropy,
    transfer_ratio,
)
from exfm.metrics.ranking import auc, gauc


@pytest.fixture
def rows():
    rng = np.random.default_rng(7)
    z = rng.normal(-1, 1, 400).round(1)  # rounded, so that there are ties
    return z, (rng.random(400) < 1 / (1 + np.exp(-z))).astype(np.int8), rng.uniform(0.1, 3, 400)


def auc_by_pairs(z, y, w):
    won = (z[y == 1][:, None] > z[y == 0]) + 0.5 * (z[y == 1][:, None] == z[y == 0])
    pairs = w[y == 1][:, None] * w[y == 0]
    return (won * pairs).sum() / pairs.sum()


def test_log_loss_is_the_mean_negative_log_likelihood(rows):
    z, y, w = rows
    p = 1 / (1 + np.exp(-z))
    each = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    assert log_loss(z, y) == pytest.approx(each.mean(), rel=1e-12)
    assert log_loss(z, y, w) == pytest.approx((each * w).sum() / w.sum(), rel=1e-12)


def test_log_loss_stays_finite_at_extreme_logits():
    z = np.array([1e4, -1e4, 700.0], dtype=np.float32)
    assert cross_entropy(z, np.array([1, 1, 0])).tolist() == [0.0, 1e4, 700.0]


def test_predicting_the_base_rate_has_an_ne_of_one(rows):
    _, y, w = rows
    for weights in (None, w):
        rate = np.average(y, weights=weights)
        assert normalised_entropy(np.full(len(y), np.log(rate / (1 - rate))), y, weights) == pytest.approx(1, rel=1e-12)


def test_calibration_is_predicted_over_observed(rows):
    z, y, w = rows
    assert calibration(z, y, w) == pytest.approx((w / (1 + np.exp(-z))).sum() / (w * y).sum(), rel=1e-12)


def test_auc_counts_pairs_and_half_of_ties(rows):
    z, y, w = rows
    assert auc(z, y) == pytest.approx(auc_by_pairs(z, y, np.ones(400)), rel=1e-12)
    assert auc(z, y, w) == pytest.approx(auc_by_pairs(z, y, w), rel=1e-12)


def test_a_whole_weight_is_as_good_as_repeated_rows(rows):
    z, y, _ = rows
    times = np.arange(400) % 3 + 1
    whole, repeated = metrics_of(z, y, times), metrics_of(*(np.repeat(c, times) for c in (z, y)))
    assert whole[2:] == pytest.approx(repeated[2:], rel=1e-12)


def test_gauc_averages_the_groups_that_have_both_classes_by_impressions(rows):
    z, y, w = rows
    users = np.random.default_rng(1).integers(0, 80, 400)
    areas, mass, used = [], [], 0
    for user in range(80):
        mine = users == user
        if 0 < y[mine].sum() < mine.sum():
            areas.append(auc_by_pairs(z[mine], y[mine], w[mine]))
            mass.append(w[mine].sum())
            used += mine.sum()
    result = gauc(z, y, users, w)
    assert result.value == pytest.approx(np.average(areas, weights=mass), rel=1e-12)
    assert (result.groups, result.rows) == (len(areas), used)
    assert 0 < len(areas) < 80


def test_gauc_of_string_groups_does_not_depend_on_row_order(rows):
    z, y, _ = rows
    users = np.array([f"user-{i % 37}" for i in range(400)])
    shuffled = np.random.default_rng(2).permutation(400)
    assert gauc(z, y, users) == gauc(z[shuffled], y[shuffled], users[shuffled])


@pytest.mark.parametrize("y", [[], [0, 0], [1, 1]])
def test_what_is_undefined_is_none_and_never_nan(y):
    y = np.array(y, dtype=np.int8)
    figures = metrics_of(np.zeros(len(y)), y)
    assert figures.ne is None
    assert figures.auc is None
    assert all(v is None or np.isfinite(v) for v in figures)
    assert (figures.log_loss is None) == (len(y) == 0)
    assert (figures.calibration is None) == (y.sum() == 0)
    assert transfer_ratio(0.8, 0.7, 0.9) is None
