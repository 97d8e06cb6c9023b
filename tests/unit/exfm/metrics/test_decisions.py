"""Thresholds, tops, bids, and the worth of choices that the log did not make."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import gamma

from exfm.errors import ConfigError
from exfm.metrics.classification import sigmoid
from exfm.metrics.decisions import at_thresholds, expected_utility, top_shares
from exfm.metrics.policy import policy_value
from tests.support.models.bandits import Bandit


def test_what_a_share_keeps_is_what_its_threshold_keeps():
    rng = np.random.default_rng(0)
    p, y = rng.permutation(1000) / 1000, rng.integers(0, 2, 1000)
    for by_share in top_shares(p, y, [0.01, 0.25, 1.0], values=rng.random(1000)):
        (by_threshold,) = at_thresholds(p, y, [by_share.threshold])
        assert by_threshold._replace(value=None) == by_share._replace(value=None)


def test_weights_count_rows_that_many_times():
    p, y, w = np.array([0.9, 0.5, 0.1]), np.array([1, 0, 1]), np.array([1.0, 3.0, 4.0])
    (half,) = top_shares(p, y, [0.5], weights=w)
    assert (half.shown, half.clicks, half.recall, half.rate) == (4.0, 1.0, 0.2, 0.25)


def test_a_share_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="share above 0"):
        top_shares(np.ones(2), np.ones(2), [0.0])


@pytest.mark.parametrize(("p", "y", "v", "c", "beta"), [(0.3, 1, 4.0, 1.0, 2.0), (0.1, 0, 5.0, 0.2, 10.0)])
def test_expected_utility_is_the_integral_that_defines_it(p, y, v, c, beta):
    def integrand(x):
        return (y * v - x) * gamma.pdf(x, beta * c + 1, scale=1 / beta)

    (found,) = expected_utility(*(np.array([float(x)]) for x in (p, y, v, c)), beta=beta)
    assert found == pytest.approx(quad(integrand, 0, p * v)[0], abs=1e-8)


def test_the_truth_bids_better_than_what_is_too_bold_or_too_shy():
    rng = np.random.default_rng(1)
    z, v = rng.normal(-2, 1, 200_000), rng.uniform(0.5, 2, 200_000)
    y, c = rng.random(200_000) < sigmoid(z), rng.exponential(0.15, 200_000)
    true, bold, shy = (expected_utility(sigmoid(z + shift), y, v, c).mean() for shift in (0.0, 1.0, -1.0))
    assert true > bold
    assert true > shy


def test_intervals_hold_what_the_policy_is_worth_in_93_of_100_and_dr_is_the_narrowest():
    held, widths = [], []
    for seed in range(300):
        bandit = Bandit(seed)
        found = bandit.judged()
        ways = (found.ips, found.snips, found.dr)
        held.append([way.low <= bandit.value <= way.high for way in ways])
        widths.append([way.width for way in ways])
    ips, snips, dr = np.mean(held, axis=0)
    assert min(ips, snips, dr) >= 0.93
    wide, _, narrow = np.mean(widths, axis=0)
    assert narrow < 0.95 * wide


def test_a_prediction_that_knows_nothing_costs_width_and_no_truth():
    bandit = Bandit(0)
    wrong = bandit.judged(predicted=np.full(len(bandit.requests), 0.9))
    right = bandit.judged()
    assert wrong.dr.low <= bandit.value <= wrong.dr.high
    assert wrong.dr.width > right.dr.width


def test_requests_of_a_user_are_one_piece_of_evidence():
    bandit = Bandit(1)
    by_user = bandit.judged(clusters=bandit.requests // 100)
    assert by_user.dr.value == bandit.judged().dr.value
    assert by_user.dr.se != bandit.judged().dr.se


def test_without_support_there_is_no_estimate_and_it_is_said_why():
    bandit = Bandit(2)
    never = np.where((bandit.target > 0) & (np.arange(len(bandit.target)) % 3 == 0) & ~bandit.chosen, 0.0, 1.0)
    assert "has propensity 0" in bandit.judged(propensities=bandit.propensity * never).refused
    assert "where full support gives 1" in bandit.judged(propensities=np.minimum(1, 2 * bandit.propensity)).refused
    shown = bandit.chosen
    alone = policy_value(
        bandit.requests[shown], bandit.propensity[shown], shown[shown], bandit.reward[shown], np.ones(shown.sum())
    )
    assert "single candidate" in alone.refused
    assert "no choice or several" in bandit.judged(chosen=np.ones(len(shown), bool)).refused
    few = Bandit(3, requests=60)
    assert "effective requests" in few.judged().refused
    for refused in (alone, few.judged()):
        assert (refused.ips, refused.snips, refused.dr) == (None, None, None)
    with pytest.raises(ConfigError, match=r"are no probabilities, as 1\.5"):
        bandit.judged(propensities=np.full(len(shown), 1.5))
