"""A finished comparison, looked at as if it had been watched; many of them at once; and the rows that one needs."""

from __future__ import annotations

import numpy as np
import pytest

from exfm.errors import ConfigError
from exfm.metrics.discoveries import e_bh
from exfm.metrics.power import rows_needed, rows_to_stop
from exfm.metrics.sequential import PairedEvidence
from exfm.metrics.watching import watch
from tests.support.models.model_pairs import World, differences


def test_it_is_the_evidence_that_watching_row_by_row_gives():
    d = np.random.default_rng(0).normal(0.004, 0.1, 20_000)
    evidence = PairedEvidence(block_rows=64, pilot_blocks=64)
    evidence.add(d)
    row_by_row = evidence.look(alpha=0.05)
    found = watch([d[4096:]], before=[d[:4096]])
    assert (found.difference[-1], found.low[-1], found.high[-1]) == pytest.approx(
        (row_by_row.difference, row_by_row.low, row_by_row.high), rel=1e-9
    )
    both = np.logaddexp(row_by_row.log_e_better, row_by_row.log_e_worse) - np.log(2)
    assert found.log_e == pytest.approx(float(both), rel=1e-9)
    assert (found.blocks, found.scale) == (row_by_row.blocks, pytest.approx(row_by_row.scale))


def test_one_could_have_stopped_where_the_sequence_first_excludes_zero():
    d = np.random.default_rng(1).normal(0.01, 0.1, 64_000)
    found = watch([d], before=[d[:4096]])
    assert found.sign == 1
    earlier = watch([d[: found.stopped_at - 64]], before=[d[:4096]])
    then = watch([d[: found.stopped_at]], before=[d[:4096]])
    assert earlier.stopped_at is None
    assert earlier.low[-1] <= 0 <= earlier.high[-1]
    assert then.stopped_at == found.stopped_at
    assert then.low[-1] > 0


def test_a_worse_model_is_stopped_with_the_other_sign():
    found = watch([np.random.default_rng(2).normal(-0.02, 0.1, 30_000)])
    assert (found.sign, bool(found.high[-1] < 0)) == (-1, True)


def test_seeds_of_one_stream_are_averaged_and_shorten_the_wait():
    rng = np.random.default_rng(3)
    seeds = [rng.normal(0.005, 0.2, 60_000) for _ in range(5)]
    assert watch(seeds).stopped_at < watch(seeds[:1]).stopped_at
    assert watch([seeds[0]] * 3).difference == pytest.approx(watch(seeds[:1]).difference)


def test_the_scale_comes_from_earlier_rows_and_without_them_from_the_first_blocks():
    d = np.random.default_rng(4).normal(0, 0.1, 6400)
    assert watch([d], before=[d]).blocks == 100
    alone = watch([d])
    assert alone.blocks == 100 - 12  # an eighth, 8 blocks at least
    assert watch([d[:500]]) is None
    twins_at_first = watch([d], before=[np.zeros(6400)])
    assert (twins_at_first.blocks, twins_at_first.clipped) == (alone.blocks, 0)


def test_models_that_never_differ_are_no_evidence():
    found = watch([np.zeros(10_000)])
    assert (found.log_e, found.stopped_at, found.low[-1], found.high[-1]) == (0.0, None, 0.0, 0.0)


def test_equal_models_watched_at_every_block_are_stopped_in_at_most_5_of_100():
    world = World("shared", 0.05, True)
    stopped = [
        watch([differences(np.random.default_rng(seed), world, 40_000, 0.0)]).stopped_at is not None
        for seed in range(60)
    ]
    assert np.mean(stopped) <= 0.05


def test_discoveries_are_what_the_definition_says():
    rng = np.random.default_rng(5)
    for _ in range(200):
        log_e, alpha = rng.normal(1.5, 2.0, rng.integers(1, 30)), float(rng.uniform(0.01, 0.3))
        e, K = np.sort(np.exp(log_e))[::-1], len(log_e)
        fits = [k for k in range(1, K + 1) if e[k - 1] >= K / (alpha * k)]
        expected = np.exp(log_e) >= K / (alpha * max(fits)) * (1 - 1e-12) if fits else np.zeros(K, bool)
        assert e_bh(log_e, alpha).tolist() == expected.tolist()
    assert e_bh(np.empty(0)).tolist() == []
    with pytest.raises(ConfigError):
        e_bh(np.zeros(3), alpha=1.5)


def test_false_discoveries_among_many_segments_are_rare():
    """E-values of 100 comparisons, 10 of which gain: those without gain are lognormal of mean 1."""
    rng, false, found = np.random.default_rng(6), [], []
    for _ in range(400):
        log_e = rng.normal(-2.0, 2.0, 100)
        log_e[:10] += 12
        mask = e_bh(log_e)
        false.append(mask[10:].sum() / max(1, mask.sum()))
        found.append(mask[:10].mean())
    assert np.mean(false) <= 0.05
    assert np.mean(found) > 0.8


def test_so_many_rows_show_the_difference_in_80_of_100():
    rng, sd, effect = np.random.default_rng(7), 1.0, 0.1
    n = rows_needed(sd / 1000**0.5, 1000, effect)
    seen = [abs(rng.normal(effect, sd / n**0.5)) > 1.96 * sd / n**0.5 for _ in range(4000)]
    assert 0.77 <= np.mean(seen) <= 0.83
    with pytest.raises(ConfigError, match="never shows"):
        rows_needed(1.0, 10, 0.0)


def test_whoever_watches_stops_at_about_the_rows_foretold():
    foretold = rows_to_stop(0.1**2 / 64, 6 * 0.1 / 8, 0.004, block_rows=64)
    stops = []
    for seed in range(40):
        d = np.random.default_rng(seed).normal(0.004, 0.1, 4 * foretold)
        stops.append(watch([d[4096:]], before=[d[:4096]]).stopped_at)
    assert 0.5 <= np.median(stops) / foretold <= 2
