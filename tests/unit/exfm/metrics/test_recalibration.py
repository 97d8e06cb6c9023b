"""NE without its calibration part: what a map of the logits can mend costs nothing, what it cannot costs all."""

from __future__ import annotations

import numpy as np
import pytest

from exfm.metrics.classification import normalised_entropy, sigmoid
from exfm.metrics.recalibration import BLOCK_ROWS, HALF_LIFE_ROWS, recalibrated

ROWS, JUDGED = 60_000, slice(20_000, None)


@pytest.fixture(scope="module")
def stream():
    """Logits of a calibrated model, labels, and the vertical of every row; 4 % positives."""
    generator = np.random.default_rng(7)
    z = generator.normal(-3.7, 1.1, ROWS)
    return z, (generator.random(ROWS) < sigmoid(z)).astype(np.float64), generator.integers(0, 3, ROWS)


def ne(logits, labels):
    return normalised_entropy(logits[JUDGED], labels[JUDGED])


def test_a_miscalibrated_copy_is_much_worse_by_ne_and_the_same_without_calibration(stream):
    z, y, vertical = stream
    own, copy = (recalibrated(of, y, vertical) for of in (z, 1.5 * z - 1))
    assert ne(1.5 * z - 1, y) > 1.1 * ne(z, y)
    assert ne(copy, y) == pytest.approx(ne(own, y), rel=1e-3)
    assert ne(own, y) == pytest.approx(ne(z, y), rel=2e-3)  # a map where none is needed


def test_each_vertical_has_a_map_of_its_own(stream):
    z, y, vertical = stream
    off = z + np.array([-1.0, 0.0, 1.0])[vertical]
    assert ne(recalibrated(off, y, vertical), y) < ne(recalibrated(off, y), y) * 0.98


def test_a_shift_that_drifts_slowly_costs_next_to_nothing(stream):
    z, y, _ = stream
    drifting = z + 0.1 * np.arange(ROWS) / HALF_LIFE_ROWS
    assert ne(drifting, y) > 1.015 * ne(z, y)
    assert ne(recalibrated(drifting, y), y) < 1.003 * ne(z, y)


@pytest.mark.parametrize("wrong", [lambda z: -z, lambda z: np.random.default_rng(1).permutation(z)])
def test_a_ranking_that_is_wrong_is_not_repaired(stream, wrong):
    z, y, vertical = stream
    assert ne(recalibrated(wrong(z), y, vertical), y) > 0.998
    assert ne(z, y) < 0.9


def test_no_row_is_mapped_by_what_its_own_block_says(stream):
    z, y, vertical = stream
    own = np.flatnonzero(vertical == 1)
    other = y.copy()
    other[own[4 * BLOCK_ROWS :]] = 1 - other[own[4 * BLOCK_ROWS :]]
    before, after = (recalibrated(z, labels, vertical) for labels in (y, other))
    assert np.array_equal(before[own[: 5 * BLOCK_ROWS]], after[own[: 5 * BLOCK_ROWS]])
    assert not (before == after)[own[5 * BLOCK_ROWS :]].any()
    assert np.array_equal(before[vertical != 1], after[vertical != 1])


def test_rows_without_a_logit_are_left_as_they_are(stream):
    z, y, vertical = stream
    missing = z.copy()
    missing[:1000] = np.nan
    mapped = recalibrated(missing, y, vertical)
    assert np.isnan(mapped[:1000]).all()
    assert np.array_equal(mapped[1000:], recalibrated(z[1000:], y[1000:], vertical[1000:]))


def test_an_untrained_model_s_first_rows_are_soon_forgotten(stream):
    z, y, vertical = stream
    cold = z.copy()
    cold[: ROWS // 10] = 0.0
    assert ne(recalibrated(cold, y, vertical), y) == pytest.approx(ne(z, y), rel=3e-3)
