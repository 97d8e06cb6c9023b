"""The interval around a paired difference covers the truth as often as it says, if clusters are told."""

import numpy as np
import pytest

from exfm.metrics import consecutive_blocks, normalised_entropy, paired_ne_difference, sigmoid


def simulated(rng, users=60, each=60):
    """Two models that err by user: rows of one user are far from independent."""
    user = np.repeat(np.arange(users), each)
    truth = rng.normal(-1, 1, users)[user] + rng.normal(0, 0.5, users * each)
    y = (rng.random(len(user)) < sigmoid(truth)).astype(np.int8)
    return truth + rng.normal(0, 0.6, users)[user], truth + rng.normal(0, 0.8, users)[user], y, user


def test_the_difference_is_that_of_the_two_normalised_entropies():
    rng = np.random.default_rng(0)
    a, b, y, user = simulated(rng)
    w = rng.uniform(0.2, 2, len(y))
    result = paired_ne_difference(a, b, y, user, w)
    assert result.difference == pytest.approx(normalised_entropy(a, y, w) - normalised_entropy(b, y, w), abs=1e-12)
    assert result.low < result.difference < result.high
    assert (result.clusters, result.rows) == (60, 3600)


def test_intervals_cover_the_truth_about_95_times_in_100_and_far_less_when_clusters_are_ignored():
    rng = np.random.default_rng(1)
    many = simulated(rng, users=30_000)
    truth = paired_ne_difference(*many).difference
    clustered = independent = 0
    for _ in range(400):
        a, b, y, user = simulated(rng)
        for ids, told in ((user, True), (np.arange(len(y)), False)):
            result = paired_ne_difference(a, b, y, ids)
            hit = result.low <= truth <= result.high
            clustered += hit and told
            independent += hit and not told
    assert 0.91 <= clustered / 400 <= 0.98
    assert independent / 400 < 0.85


def test_the_standard_error_is_that_of_leaving_out_one_cluster_after_another():
    """At a low base rate and a large difference, the error of the entropy below the line matters as well."""
    rng = np.random.default_rng(4)
    user = rng.integers(0, 120, 6_000)
    z = rng.normal(-4, 1, 6_000) + rng.normal(0, 1, 120)[user]
    y = (rng.random(6_000) < sigmoid(z)).astype(np.int8)
    w = rng.uniform(0.5, 2, 6_000)
    other = z - 1.5
    without = []
    for u in range(120):
        rest = user != u
        without.append(
            normalised_entropy(z[rest], y[rest], w[rest]) - normalised_entropy(other[rest], y[rest], w[rest])
        )
    jackknife = np.sqrt(119 / 120 * ((without - np.mean(without)) ** 2).sum())
    assert paired_ne_difference(z, other, y, user, w).standard_error == pytest.approx(jackknife, rel=0.05)


def test_the_interval_does_not_depend_on_row_order_or_the_kind_of_ids():
    rng = np.random.default_rng(2)
    a, b, y, user = simulated(rng)
    shuffled = rng.permutation(len(y))
    names = np.array([f"u{i}" for i in user])
    one = paired_ne_difference(a, b, y, user)
    other = paired_ne_difference(a[shuffled], b[shuffled], y[shuffled], names[shuffled])
    assert other == pytest.approx(one, rel=1e-9)


def test_the_sign_says_that_the_first_model_is_better_below_zero():
    rng = np.random.default_rng(3)
    z = rng.normal(-1, 2, 20_000)
    y = (rng.random(20_000) < sigmoid(z)).astype(np.int8)
    result = paired_ne_difference(z, 0.2 * z, y, consecutive_blocks(20_000, 500))
    assert result.high < 0


@pytest.mark.parametrize("y", [[], [0, 0, 0], [1, 1]])
def test_an_undefined_difference_is_none(y):
    n = len(y)
    result = paired_ne_difference(np.zeros(n), np.ones(n), np.array(y), np.zeros(n))
    assert result[:4] == (None, None, None, None)
    assert result.rows == n


def test_one_cluster_has_a_difference_and_no_interval():
    result = paired_ne_difference(np.zeros(4), np.ones(4), np.array([0, 1, 0, 0]), np.zeros(4))
    assert result.difference < 0
    assert (result.low, result.high, result.standard_error) == (None, None, None)
