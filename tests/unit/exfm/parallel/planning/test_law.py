import numpy as np
import pytest

from exfm.metrics.classification import normalised_entropy
from exfm.parallel.planning.law import LossBlocks, fit_scaling_law, loss_blocks

FLOPS = 1e5 * 2.0 ** np.arange(0, 12, 2)


def judged(ne_M, rng=None, common=0.0, own=0.0, blocks=60):
    """Blocks of 1,000 rows at a base rate of one half; noise that all models share, and noise of their own."""
    noise = 1 + (0 if rng is None else rng.normal(0, common, (1, blocks)) + rng.normal(0, own, (len(ne_M), blocks)))
    losses = np.outer(ne_M, np.full(blocks, 1000 * np.log(2))) * noise
    return LossBlocks(losses, np.full(blocks, 1000.0), np.full(blocks, 500.0))


def test_blocks_give_the_ne_of_all_rows():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2500)
    logits = rng.normal(size=(3, 2500))
    blocks = loss_blocks(logits, y, 400)
    assert len(blocks.rows) == 7
    assert blocks.ne(np.ones((1, 7)))[0] == pytest.approx([normalised_entropy(z, y) for z in logits])
    without_last = np.array([[1.0] * 6 + [0.0]])
    assert blocks.ne(without_last)[0] == pytest.approx([normalised_entropy(z[:2400], y[:2400]) for z in logits])


def test_a_power_law_is_found_with_an_interval_that_holds_it():
    rng = np.random.default_rng(1)
    law = fit_scaling_law(FLOPS, judged(0.7 + 0.1 * (FLOPS / FLOPS[0]) ** -0.4, rng, common=0.02, own=0.0005))
    assert law.reason is None
    assert law.power.alpha.low < 0.4 < law.power.alpha.high
    assert law.power.alpha.high - law.power.alpha.low < 0.5
    assert law.power.a == pytest.approx(0.7, abs=0.01)
    predicted = law.power.a + law.power.b * (FLOPS / law.power.scale) ** -law.power.alpha.value
    assert predicted == pytest.approx(0.7 + 0.1 * (FLOPS / FLOPS[0]) ** -0.4, abs=0.003)


def test_noise_that_all_models_share_does_not_blur_the_gain():
    """They are judged on the same rows: a hard block is hard for all of them."""
    ne = 0.8 - 0.001 * np.log2(FLOPS / FLOPS[0])
    shared = fit_scaling_law(FLOPS, judged(ne, np.random.default_rng(2), common=0.05)).gain_per_4x
    own = fit_scaling_law(FLOPS, judged(ne, np.random.default_rng(2), own=0.05)).gain_per_4x
    assert shared.value == pytest.approx(0.25, abs=0.01)
    assert shared.high - shared.low < 0.05 < own.high - own.low


def test_a_straight_line_has_a_gain_and_no_exponent():
    rng = np.random.default_rng(3)
    law = fit_scaling_law(FLOPS, judged(0.8 - 0.002 * np.log2(FLOPS / FLOPS[0]), rng, own=0.001))
    assert law.gain_per_4x.low < 100 * 0.004 / 0.79 < law.gain_per_4x.high
    assert law.power is None
    assert "reaches 0" in law.reason
    assert "6 sizes over a factor of 1.02e+03" in law.reason


def test_sizes_that_scatter_determine_nothing():
    rng = np.random.default_rng(4)
    law = fit_scaling_law(FLOPS, judged(0.8 + rng.normal(0, 0.01, len(FLOPS)), rng, own=0.001))
    assert law.power is None
    assert law.gain_per_4x.low < 0 < law.gain_per_4x.high


def test_a_fall_by_one_step_has_no_upper_end():
    law = fit_scaling_law(FLOPS, judged(np.array([0.8, 0.7, 0.7, 0.7, 0.7, 0.7]), np.random.default_rng(5), own=0.002))
    assert law.power is None
    assert "no upper end" in law.reason


def test_where_larger_is_worse_it_says_so():
    law = fit_scaling_law(FLOPS, judged(0.7 + 0.01 * np.log2(FLOPS / FLOPS[0])))
    assert law.power is None
    assert "larger is not better" in law.reason
    assert law.gain_per_4x.high < 0


def test_few_sizes_are_told_to_be_too_few():
    three, two = (fit_scaling_law(FLOPS[:n], judged(0.7 + 0.1 * (FLOPS[:n] / FLOPS[0]) ** -0.4)) for n in (3, 2))
    assert three.gain_per_4x is not None
    assert "3 sizes fix the three numbers" in three.reason
    assert (two.gain_per_4x, two.power) == (None, None)
    assert "2 sizes leave nothing over" in two.reason


def test_intervals_hold_what_they_are_of_nineteen_times_in_twenty():
    """Four sizes that stray from the curve by noise of their own, which their two degrees of freedom must tell."""
    held, runs = 0, 200
    C, rng = FLOPS[:4], np.random.default_rng(6)
    for run in range(runs):
        ne = 0.8 - 0.001 * np.log2(C / C[0]) + rng.normal(0, 0.0005, 4)
        gain = fit_scaling_law(C, judged(ne, rng, common=0.02, blocks=20), replicates=300, seed=run).gain_per_4x
        held += gain.low < 100 * 0.002 / ne.mean() < gain.high
    assert 0.9 < held / runs <= 1


def test_the_same_data_give_the_same_law():
    blocks = judged(0.7 + 0.1 * (FLOPS / FLOPS[0]) ** -0.4, np.random.default_rng(7), own=0.001)
    assert fit_scaling_law(FLOPS, blocks) == fit_scaling_law(FLOPS, blocks)
