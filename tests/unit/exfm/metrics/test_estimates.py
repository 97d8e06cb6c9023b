"""Estimates over rows and seeds: what their intervals hold, and what their pieces add up to."""

import numpy as np
import pytest

from exfm.metrics.clusters import Clusters
from exfm.metrics.estimates import Estimate, average_estimates, estimate_ratio, mean_of_shared, remainder

G = 300
CLUSTERS = Clusters.of(np.arange(G))


def estimates(times, seeds, *, rows=0.0, seed=0.0, both=1.0):
    """Means over seeds whose truth is 0: errors of a cluster's draw, of a seed as a whole, and of one seed on one
    cluster, with these standard deviations of the mean over clusters (of one seed)."""
    rng = np.random.default_rng(seeds)
    for _ in range(times):
        of_rows = rng.normal(0, rows * G**0.5, G)
        of_both = rng.normal(0, both * G**0.5, (seeds, G))
        found = of_rows + of_both + rng.normal(0, seed, (seeds, 1))
        values = found.mean(1)
        yield mean_of_shared(values, [(x - v) / G for x, v in zip(found, values, strict=True)], CLUSTERS)


def held(found):
    return sum(abs(e.value) <= e.summary()["high"] - e.value for e in found) / len(found)


@pytest.mark.parametrize("errors", [{}, {"rows": 1.0}, {"seed": 1.0}, {"rows": 0.5, "seed": 3.0}, {"seed": 0.3}])
def test_intervals_over_rows_and_seeds_hold_the_truth_as_often_as_they_say(errors):
    assert 0.93 <= held(list(estimates(2000, 5, **errors))) <= 0.975


def test_what_is_of_one_seed_on_one_row_is_not_counted_twice():
    found = list(estimates(1000, 5))
    added = [e._replace(crossed=()) for e in found]
    assert held(added) > 0.98
    variances = [e.of_rows()["se"] ** 2 for e in found], [e.of_seeds()["se"] ** 2 for e in found]
    assert np.mean(variances, axis=1) == pytest.approx([1 / 5, 1 / 5], rel=0.05)  # the same error, seen twice


def test_rows_that_all_seeds_share_are_no_part_of_what_both_count():
    (only_rows,) = estimates(1, 3, rows=1.0, both=0.0)
    assert abs(only_rows.crossed[0]).max() < 1e-12
    assert only_rows.summary()["se"] == pytest.approx(only_rows.of_rows()["se"])


def test_seeds_that_differ_as_a_whole_have_the_freedom_of_their_number():
    (apart,) = estimates(1, 4, seed=10.0, both=0.01)
    summary, seeds = apart.summary(), apart.of_seeds()
    assert summary["se"] == pytest.approx(seeds["se"], rel=1e-3)
    assert summary["high"] == pytest.approx(seeds["high"], rel=1e-3)


def test_every_seed_counts_alike_in_what_both_count():
    psi = np.zeros((3, G))
    found = []
    for s in range(3):
        one = psi.copy()
        one[s, 0], one[s, 1] = 1.0, -1.0
        crossed = mean_of_shared([0.0] * 3, list(one), CLUSTERS).crossed[0]
        found.append(float((abs(crossed) ** 2).sum()))
    assert found == pytest.approx([2 / 3] * 3)


def test_means_and_ratios_of_estimates_carry_all_their_pieces():
    one, other = estimates(2, 5, rows=0.5, seed=0.5)
    shifted = other._replace(value=10.0)
    assert average_estimates([one, one]).summary() == pytest.approx(one.summary())
    twice = Estimate(20.0, *(tuple(2 * way for way in shifted.clusters), 2 * shifted.seeds, (2 * shifted.crossed[0],)))
    half = estimate_ratio(shifted, twice)
    assert half.value == pytest.approx(0.5)
    assert half.summary()["se"] == pytest.approx(0.0, abs=1e-9)
    assert remainder(shifted).value == -9.0
    assert remainder(shifted).summary()["se"] == pytest.approx(shifted.summary()["se"])


def test_one_seed_has_the_error_of_its_rows_alone():
    (one,) = estimates(1, 1)
    assert one.crossed == ()
    assert one.summary() == one.of_rows()
    assert one.of_seeds()["se"] is None
