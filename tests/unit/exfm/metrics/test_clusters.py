"""Two-way clustered variance: a slow loop over pairs of rows, special cases whose answer is known, simulated truth."""

import numpy as np
import pytest

from exfm.errors import ConfigError
from exfm.metrics.classification import sigmoid
from exfm.metrics.clusters import Clusters, variance_of
from exfm.metrics.paired import paired_gain


def drawn(rng, users=60, items=25, rows=2_000):
    return rng.integers(0, users, rows), rng.integers(0, items, rows), rng.normal(size=rows)


def naive_one_way(psi, cluster):
    G = len(set(cluster))
    total = sum(psi[i] * psi[j] for i in range(len(psi)) for j in range(len(psi)) if cluster[i] == cluster[j])
    return G / (G - 1) * total


def test_two_way_variance_is_a_sum_over_pairs_of_rows_that_share_a_user_or_an_item():
    u, v, psi = drawn(np.random.default_rng(0), users=20, items=12, rows=150)
    of_user, of_item, of_pair = (naive_one_way(psi, list(c)) for c in (u, v, zip(u, v, strict=True)))
    found = variance_of(Clusters.of(u, v).sums(psi))
    assert found.value == pytest.approx(max(of_user + of_item - of_pair, of_user, of_item), rel=1e-12)
    assert found.freedom == min(len(set(u)), len(set(v))) - 1
    assert variance_of(Clusters.of(u).sums(psi)).value == pytest.approx(of_user, rel=1e-12)


def test_an_item_that_differs_in_every_row_leaves_the_variance_by_user():
    u, _, psi = drawn(np.random.default_rng(1))
    psi += np.random.default_rng(2).normal(size=60)[u]
    both, one = (variance_of(Clusters.of(*columns).sums(psi)) for columns in ((u, np.arange(len(u))), (u,)))
    assert both == pytest.approx(one)


def test_the_same_column_twice_and_an_item_that_names_its_user_are_the_one_way_variance():
    u, _, psi = drawn(np.random.default_rng(3))
    for other in (u, u + 1000):
        assert variance_of(Clusters.of(u, other).sums(psi)) == pytest.approx(variance_of(Clusters.of(u).sums(psi)))


def test_two_way_variance_is_never_below_the_larger_one_way_variance():
    """Rows of one user that cancel each other, and so do those of one item: the difference would be negative."""
    u, v = np.repeat(np.arange(2), 2), np.tile(np.arange(2), 2)
    psi = np.array([1.0, -1.0, -1.0, 1.0])
    assert variance_of(Clusters.of(u, v).sums(psi)).value == 0
    for seed in range(50):
        u, v, psi = drawn(np.random.default_rng(seed), users=8, items=8, rows=60)
        both, of_user, of_item = (variance_of(Clusters.of(*c).sums(psi)).value for c in ((u, v), (u,), (v,)))
        assert both >= max(of_user, of_item)


def test_ids_of_any_type_and_order_are_the_same_clusters():
    rng = np.random.default_rng(4)
    u, v, psi = drawn(rng)
    names, order = np.array([f"user {i}" for i in u]), rng.permutation(len(u))
    one = variance_of(Clusters.of(u, v).sums(psi))
    assert variance_of(Clusters.of(names[order], v[order] * 10**15).sums(psi[order])) == pytest.approx(one)


def test_rows_are_clustered_by_one_column_or_by_two():
    with pytest.raises(ConfigError, match="by one column or by two, not by 3"):
        Clusters.of(*np.zeros((3, 4)))


def test_too_few_ads_with_positives_are_too_few_however_many_users_there_are():
    rng = np.random.default_rng(5)
    user, ad = rng.integers(0, 500, 5_000), rng.integers(0, 5, 5_000)
    z, y = rng.normal(size=5_000), rng.random(5_000) < 0.3
    found = paired_gain(z, 0.9 * z, y, Clusters.of(user, ad))
    assert (found.low, found.too_few, found.clusters) == (None, "clusters with positives (5)", 5)


def two_way(rng, users=150, items=40, rows=3_000):
    """Two models that err by user and by item."""
    u, v = rng.integers(0, users, rows), rng.integers(0, items, rows)
    z = -1 + rng.normal(0, 0.7, users)[u] + rng.normal(0, 0.7, items)[v]
    y = rng.random(rows) < sigmoid(z)
    student, twin = (z + rng.normal(0, e / 3, users)[u] + rng.normal(0, e, items)[v] for e in (0.5, 0.6))
    return student, twin, y, u, v


def test_intervals_by_user_alone_miss_the_truth_where_items_are_of_one_piece_and_two_way_ones_hold_it():
    rng = np.random.default_rng(6)
    truth = paired_gain(*(big := two_way(rng, 20_000, 20_000, 400_000))[:3], big[3]).difference
    held = np.zeros(2)
    for _ in range(200):
        a, b, y, u, v = two_way(rng)
        for at, clusters in enumerate((Clusters.of(u), Clusters.of(u, v))):
            found = paired_gain(a, b, y, clusters)
            held[at] += found.low <= truth <= found.high
    assert held[0] / 200 < 0.85
    assert 0.90 <= held[1] / 200 <= 0.99
