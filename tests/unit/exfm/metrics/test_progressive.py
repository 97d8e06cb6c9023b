"""Running sums give what the exact figures give on the same rows."""

import numpy as np
import pytest

from exfm.errors import ConfigError, ModelError
from exfm.metrics.classification import metrics_of
from exfm.metrics.progressive import Progressive, Tally
from exfm.metrics.ranking import auc


def stream(rows, spread=1.0, base=-2.0, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(base, spread, rows).astype(np.float32)
    y = (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(np.float32)
    return z, y, rng.uniform(0.5, 2, rows).astype(np.float32)


def in_batches(progressive, z, y, w, size):
    closed = []
    for start in range(0, len(z), size):
        closed += progressive.update(*(c[start : start + size] for c in (z, y, w)))
    return closed


def test_sums_are_exact_and_the_histogram_auc_is_close():
    z, y, w = stream(20_000)
    progressive = Progressive(window_rows=6_000)
    in_batches(progressive, z, y, w, 512)
    running, exact = progressive.lifetime(), metrics_of(z, y, w)
    assert running[:2] == exact[:2]
    assert running.ne == pytest.approx(exact.ne, rel=1e-12)
    assert running.log_loss == pytest.approx(exact.log_loss, rel=1e-12)
    assert running.calibration == pytest.approx(exact.calibration, rel=1e-12)
    assert running.auc == pytest.approx(exact.auc, abs=1e-4)


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0, 4.0])
def test_the_histogram_auc_is_within_its_stated_error(spread):
    for seed in range(3):
        z, y, _ = stream(100_000, spread, seed=seed)
        tally = Tally()
        tally.add(z, y)
        error = abs(tally.metrics().auc - auc(z, y))
        assert error <= 1e-4
        assert error <= tally.auc_error_bound


def test_the_error_bound_holds_for_the_worst_arrangement_inside_bins():
    z, y = np.array([0.0, 0.001, 3.0, 3.001]), np.array([1, 0, 1, 0])  # each pair in one bin, wrongly ordered
    tally = Tally()
    tally.add(z, y)
    assert tally.metrics().auc - auc(z, y) == pytest.approx(tally.auc_error_bound)


def test_windows_do_not_depend_on_how_rows_were_batched():
    z, y, w = stream(5_000)
    results = []
    for size in (7, 512, 5_000):
        progressive = Progressive(window_rows=1_500)
        results.append((in_batches(progressive, z, y, w, size), progressive.window()))
    for closed, last in results:
        assert [window.rows for window in closed] == [1_500] * 3
        assert last == closed[-1]
        assert closed[1] == pytest.approx(metrics_of(z[1500:3000], y[1500:3000], w[1500:3000]), abs=1e-4)
        assert closed[1].ne == pytest.approx(results[0][0][1].ne, rel=1e-12)


def test_metrics_go_on_after_a_restart_as_if_nothing_had_happened():
    z, y, w = stream(4_000)
    whole, first, second = (Progressive(window_rows=700) for _ in range(3))
    in_batches(whole, z, y, w, 100)
    in_batches(first, z[:1_900], y[:1_900], w[:1_900], 100)
    second.load(first.state())
    in_batches(second, z[1_900:], y[1_900:], w[1_900:], 100)
    assert second.lifetime() == whole.lifetime()
    assert second.window() == whole.window()


def test_state_of_other_windows_is_refused_with_both_numbers():
    with pytest.raises(ModelError, match=r"700.*900"):
        Progressive(900).load(Progressive(700).state())
    with pytest.raises(ConfigError, match="0 rows"):
        Progressive(0)


def test_tallies_of_disjoint_rows_merge_into_that_of_all():
    z, y, w = stream(3_000)
    whole, left, right = Tally(), Tally(), Tally()
    whole.add(z, y, w)
    left.add(z[:1_000], y[:1_000], w[:1_000])
    right.add(z[1_000:], y[1_000:], w[1_000:])
    left.merge(right)
    assert left.metrics() == pytest.approx(whole.metrics(), rel=1e-12)


def test_a_row_without_a_finite_logit_is_counted_and_judged_nowhere():
    z, y, w = stream(1_000)
    z[[3, 500]] = np.nan, np.inf
    tally = Tally()
    tally.add(z, y, w)
    kept = np.isfinite(z)
    assert tally.unscored == 2
    assert tally.metrics().rows == 998
    assert tally.metrics().ne == pytest.approx(metrics_of(z[kept], y[kept], w[kept]).ne, rel=1e-12)


def test_logits_beyond_the_histogram_still_count():
    tally = Tally()
    tally.add(np.array([-40.0, 40.0]), np.array([0, 1]))
    assert tally.metrics().auc == 1.0


def test_before_any_row_all_figures_are_none():
    progressive = Progressive(window_rows=10)
    progressive.update(np.zeros(0), np.zeros(0))
    assert progressive.lifetime() == progressive.window() == (0, 0, None, None, None, None)
