"""A gain is in % of the other's NE; its interval covers the truth as often as it says, if clusters are known, and there
is none where there is too little to tell."""

import numpy as np
import pytest

from exfm.metrics.classification import normalised_entropy, sigmoid
from exfm.metrics.limits import MIN_CLUSTERS, MIN_POSITIVES
from exfm.metrics.paired import consecutive_blocks, paired_gain


def simulated(rng, users=60, each=60):
    """Two models that err by user: rows of one user are far from independent."""
    user = np.repeat(np.arange(users), each)
    truth = rng.normal(-1, 1, users)[user] + rng.normal(0, 0.5, users * each)
    y = (rng.random(len(user)) < sigmoid(truth)).astype(np.int8)
    return truth + rng.normal(0, 0.6, users)[user], truth + rng.normal(0, 0.8, users)[user], y, user


def rows_with(positives, rows=13_306, seed=0):
    """Two models on rows of which so many are positive, spread evenly."""
    rng = np.random.default_rng(seed)
    y = np.zeros(rows, np.int8)
    y[np.linspace(0, rows - 1, positives).astype(int)] = 1
    z = rng.normal(-6, 1, rows) + 2 * y
    return z, z + rng.normal(0.2, 0.5, rows), y


def test_a_gain_is_the_share_of_the_others_normalised_entropy_that_is_saved():
    rng = np.random.default_rng(0)
    a, b, y, user = simulated(rng)
    w = rng.uniform(0.2, 2, len(y))
    result = paired_gain(a, b, y, user, w)
    ne, other = normalised_entropy(a, y, w), normalised_entropy(b, y, w)
    assert result.difference == pytest.approx(100 * (other - ne) / other, abs=1e-10)
    assert result.low < result.difference < result.high
    assert (result.clusters, result.rows, result.positives) == (60, 3600, y.sum())


def test_intervals_cover_the_truth_about_95_times_in_100_and_far_less_when_clusters_are_ignored():
    rng = np.random.default_rng(1)
    many = simulated(rng, users=30_000)
    truth = paired_gain(*many).difference
    clustered = independent = 0
    for _ in range(400):
        a, b, y, user = simulated(rng)
        for ids, told in ((user, True), (np.arange(len(y)), False)):
            result = paired_gain(a, b, y, ids)
            hit = result.low <= truth <= result.high
            clustered += hit and told
            independent += hit and not told
    assert 0.91 <= clustered / 400 <= 0.98
    assert independent / 400 < 0.85


def test_the_interval_is_that_of_drawing_clusters_again_and_again():
    """The bootstrap knows nothing of influences."""
    rng = np.random.default_rng(5)
    a, b, y, user = simulated(rng, users=150, each=40)
    result = paired_gain(a, b, y, user)
    gains = []
    for _ in range(600):
        drawn = (rng.integers(0, 150, 150)[:, None] * 40 + np.arange(40)).reshape(-1)
        ne, other = normalised_entropy(a[drawn], y[drawn]), normalised_entropy(b[drawn], y[drawn])
        gains.append(100 * (other - ne) / other)
    assert np.std(gains) == pytest.approx(result.standard_error, rel=0.1)
    assert np.percentile(gains, [2.5, 97.5]) == pytest.approx(
        [result.low, result.high], abs=0.4 * result.standard_error
    )


def test_the_standard_error_is_that_of_leaving_out_one_cluster_after_another():
    rng = np.random.default_rng(4)
    user = rng.integers(0, 120, 6_000)
    z = rng.normal(-4, 1, 6_000) + rng.normal(0, 1, 120)[user]
    y = (rng.random(6_000) < sigmoid(z)).astype(np.int8)
    w = rng.uniform(0.5, 2, 6_000)
    other = z - 1.5
    without = [paired_gain(*(x[user != u] for x in (z, other, y, user, w))).difference for u in range(120)]
    jackknife = np.sqrt(119 / 120 * ((without - np.mean(without)) ** 2).sum())
    assert paired_gain(z, other, y, user, w).standard_error == pytest.approx(jackknife, rel=0.05)


def test_the_interval_does_not_depend_on_row_order_or_the_kind_of_ids():
    rng = np.random.default_rng(2)
    a, b, y, user = simulated(rng)
    shuffled = rng.permutation(len(y))
    names = np.array([f"u{i}" for i in user])
    one = paired_gain(a, b, y, user)
    other = paired_gain(a[shuffled], b[shuffled], y[shuffled], names[shuffled])
    assert other[:-1] == pytest.approx(one[:-1], rel=1e-9)


def test_above_zero_the_first_model_is_better():
    rng = np.random.default_rng(3)
    z = rng.normal(-1, 2, 20_000)
    y = (rng.random(20_000) < sigmoid(z)).astype(np.int8)
    clusters = consecutive_blocks(20_000, 500)
    assert paired_gain(z, 0.2 * z, y, clusters).low > 0
    assert paired_gain(0.2 * z, z, y, clusters).high < 0


# --- too little to tell ---------------------------------------------------------------------------------------------


def test_nine_positives_have_no_interval():
    """13,306 rows with 9 positives had one: [.92, 6.58]."""
    z, other, y = rows_with(9)
    result = paired_gain(z, other, y, consecutive_blocks(len(y), 512))
    assert result.difference is not None
    assert (result.low, result.high, result.standard_error) == (None, None, None)
    assert result.too_few == "positives (9)"


def test_few_negatives_are_as_bad_as_few_positives():
    z, other, y = rows_with(12)
    result = paired_gain(-z, -other, 1 - y, consecutive_blocks(len(y), 512))
    assert (result.low, result.too_few) == (None, "negatives (12)")


@pytest.mark.parametrize(("positives", "told"), [(MIN_POSITIVES - 1, False), (MIN_POSITIVES, True)])
def test_the_least_number_of_positives_is_the_one_that_is_stated(positives, told):
    z, other, y = rows_with(positives)
    assert (paired_gain(z, other, y, consecutive_blocks(len(y), 100)).low is not None) is told


@pytest.mark.parametrize(("clusters", "told"), [(MIN_CLUSTERS - 1, False), (MIN_CLUSTERS, True)])
def test_only_clusters_that_hold_a_positive_count(clusters, told):
    """Positives of few users, or of few minutes, are few pieces of evidence, however many clusters there are."""
    z, other, y = rows_with(0)
    cluster = consecutive_blocks(len(y), 100)
    y[np.isin(cluster, np.arange(clusters)) & (np.arange(len(y)) % 5 == 0)] = 1
    result = paired_gain(z, other, y, cluster)
    assert result.clusters == 134
    assert (result.low is not None) is told
    assert result.too_few == (None if told else f"clusters with positives ({clusters})")


@pytest.mark.parametrize("y", [[], [0, 0, 0], [1, 1]])
def test_an_undefined_gain_is_none(y):
    n = len(y)
    result = paired_gain(np.zeros(n), np.ones(n), np.array(y), np.zeros(n))
    assert result[:4] == (None, None, None, None)
    assert result.rows == n
    assert result.too_few in ("positives (0)", "negatives (0)")
