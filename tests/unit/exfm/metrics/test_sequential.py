"""Evidence that may be looked at after every row: its level, its power, its sums, and how it goes on from a state."""

from __future__ import annotations

import math

import numpy as np
import pytest

from exfm.errors import ConfigError, ModelError
from exfm.metrics.sequential import PairedEvidence, log_e_values, path, reach
from tests.support.models.model_pairs import World, differences, watched

LAMBDAS = [0.9 * 2.0 ** (-j / 2) for j in range(20)]


def by_hand(differences: list[float], block_rows: int, pilot_blocks: int, clip_sd: float) -> dict[str, float]:
    """The docstring's equations, one block after the other, one λ after the other."""
    blocks = [
        sum(differences[at : at + block_rows]) / block_rows
        for at in range(0, len(differences) - block_rows + 1, block_rows)
    ]
    pilot, blocks = blocks[:pilot_blocks], blocks[pilot_blocks:]
    c = clip_sd * math.sqrt(sum(mean**2 for mean in pilot) / len(pilot))
    S = V = 0.0
    for T, mean in enumerate(blocks):
        D = min(max(mean, -c), c)
        gamma = min(max(S / T if T else 0.0, -c / 8), c / 8)
        S, V = S + D, V + (D - gamma) ** 2
    s = 9 * c / 8

    def log_e(total: float) -> float:
        lambdas = [share / s for share in LAMBDAS]
        terms = [math.exp(λ * total - (-math.log(1 - s * λ) - s * λ) / s**2 * V) for λ in lambdas]
        return math.log(sum(terms) / len(terms))

    return {"better": log_e(S), "worse": log_e(-S), "mean": S / len(blocks), "raw": sum(blocks) / len(blocks)}


@pytest.mark.parametrize("shift", [0.0, 0.004, -0.02])
def test_evidence_is_what_its_equations_say(shift):
    differences = np.random.default_rng(3).standard_t(3, 4000) * 0.05 + shift
    evidence = PairedEvidence(block_rows=16, pilot_blocks=10, clip_sd=3.0)
    evidence.add(differences)
    found, slow = evidence.look(), by_hand(differences.tolist(), 16, 10, 3.0)
    assert found.clipped > 0
    assert found.clipped_mass > 0
    assert found.log_e_better == pytest.approx(slow["better"], rel=1e-9)
    assert found.log_e_worse == pytest.approx(slow["worse"], rel=1e-9)
    assert (found.difference, found.raw) == pytest.approx((slow["mean"], slow["raw"]), rel=1e-9)


def test_the_interval_ends_where_the_evidence_reaches_its_level():
    """low > 0 exactly where the e-value of one side has reached 2/α."""
    for S in (-3.0, 0.5, 2.0, 9.0):
        u = float(reach(0.7, 0.4, 0.025))
        assert (u < S) == (float(log_e_values(np.array(S), np.array(0.7), 0.4)) > math.log(40))


def test_rows_may_come_in_any_pieces_and_through_any_number_of_states():
    rng = np.random.default_rng(5)
    differences, weights = rng.normal(0.003, 0.1, 5000), rng.choice([0.0, 1.0, 4.0], 5000)
    whole = PairedEvidence(block_rows=32, pilot_blocks=20)
    whole.add(differences, weights)
    pieces = PairedEvidence(block_rows=32, pilot_blocks=20)
    for at in range(0, 5000, 37):
        later = PairedEvidence(block_rows=32, pilot_blocks=20)
        later.load(pieces.state())
        later.add(differences[at : at + 37], weights[at : at + 37])
        pieces = later
    assert pieces.look() == whole.look()
    assert all(np.array_equal(a, b) for a, b in zip(pieces.state().values(), whole.state().values(), strict=True))


def test_paths_are_the_sums_of_every_look():
    blocks = np.random.default_rng(6).normal(0.01, 0.1, (3, 50)).clip(-0.2, 0.2)
    whole = path(blocks, 0.2)
    for pair in range(3):
        half = path(blocks[pair, :20], 0.2)
        rest = path(blocks[pair, 20:], 0.2, float(half.total[-1]), float(half.variance[-1]), before=20)
        assert np.array_equal(np.concatenate([half.total, rest.total]), whole.total[pair])
        assert np.array_equal(np.concatenate([half.variance, rest.variance]), whole.variance[pair])


def test_models_that_never_differ_are_no_evidence():
    evidence = PairedEvidence(block_rows=4, pilot_blocks=2)
    evidence.add(np.zeros(100))
    found = evidence.look()
    assert (found.log_e_better, found.log_e_worse, found.low, found.high) == (0.0, 0.0, 0.0, 0.0)


def test_a_logit_that_is_not_finite_is_counted_and_in_no_block():
    evidence = PairedEvidence(block_rows=2, pilot_blocks=1)
    evidence.add(np.array([0.1, np.nan, 0.1, np.inf, 0.2, 0.2]))
    found = evidence.look()
    assert (found.unscored, found.rows, found.raw) == (2, 4, pytest.approx(0.2))


def test_what_clipping_hides_shows_in_the_mean_without_it():
    """A candidate that is a little better on most rows and a disaster on few: better when clipped, worse without."""
    differences = np.full(20_000, 0.01) + np.random.default_rng(0).normal(0, 0.01, 20_000)
    differences[4200::640] = -10.0
    evidence = PairedEvidence()
    evidence.add(differences)
    found = evidence.look()
    assert found.difference is not None
    assert found.raw is not None
    assert found.difference > 0 > found.raw
    assert found.clipped > 10


@pytest.mark.parametrize("cut", [{"block_rows": 0}, {"pilot_blocks": 0}, {"clip_sd": 0.0}])
def test_a_cut_that_gives_no_evidence_is_refused(cut):
    with pytest.raises(ConfigError, match="above 0"):
        PairedEvidence(**cut)


def test_a_level_that_is_no_probability_is_refused():
    with pytest.raises(ConfigError, match="between 0 and 1"):
        reach(1.0, 1.0, 1.5)


def test_evidence_that_was_cut_otherwise_is_not_taken_up():
    with pytest.raises(ModelError, match="afresh"):
        PairedEvidence(block_rows=32).load(PairedEvidence(block_rows=64).state())


# --- what it is for: who looks again and again is not fooled ---------------------------------------------------


def promoted(world: World, pairs: int, rows: int, gain: float) -> np.ndarray:
    """(pairs, 3): whether each was ever promoted by e-process, by a plain interval again and again, and at the end."""
    found = [watched(differences(np.random.default_rng(seed), world, rows, gain)) for seed in range(pairs)]
    return ~np.isnan(np.array(found))


def test_equal_models_are_not_promoted_however_often_one_looks():
    """Of 120 equal pairs at most 5 % by their level; by plain intervals many more are."""
    anytime, plain, _ = promoted(World("shared", 0.1, True), 120, 40_000, gain=0.0).mean(0)
    assert anytime <= 0.05
    assert plain > 0.1


def test_a_gain_of_one_per_cent_is_found():
    anytime = promoted(World("shared", 0.1, True), 30, 120_000, gain=0.01).mean(0)[0]
    assert anytime >= 0.8
