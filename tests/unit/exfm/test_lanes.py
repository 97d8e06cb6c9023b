"""Lanes have the bits that their numbers have by themselves, of any width, and touch nothing beside a row."""

from __future__ import annotations

import numpy as np
import pytest

from exfm.lanes import LANES, by_width, load, load_some, row, same, store, total
from exfm.loops import inlined, loop


@by_width
def _less(D, to, x, of):
    whole = D - D % LANES
    for d in range(0, whole, LANES):
        store(to, d, load(to, d) - same(x) * load(of, d))
    for d in range(whole, D):
        to[d] -= x * of[d]


@inlined
def _sum(D, of):
    lanes = same(np.float32(0))
    for d in range(0, D, LANES):
        lanes = lanes + load_some(of, d, D - d)
    return total(lanes)


@loop("void(f4[:, ::1], f4, f4[:, ::1], i8)")
def less(to, x, of, r):
    _less(to.shape[1], row(to, r), x, row(of, r))


@loop("f4(f4[:, ::1], i8)")
def summed(of, r):
    return _sum(of.shape[1], row(of, r))


@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 20, 64])
def test_a_row_is_computed_as_its_numbers_are_and_no_other_is_touched(width):
    random = np.random.default_rng(width)
    to, of = random.normal(size=(2, 3, width)).astype(np.float32)
    wanted, x = to.copy(), np.float32(0.3)
    wanted[1] = wanted[1] - x * of[1]
    less(to, x, of, 1)
    assert (to.view(np.int32) == wanted.view(np.int32)).all()


@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 20, 64])
def test_lanes_are_added_in_pairs_and_what_lies_beyond_a_row_is_not_read(width):
    of = np.full((3, width), np.nan, np.float32)
    of[1] = np.random.default_rng(width).normal(size=width) * 10.0 ** np.arange(width).clip(max=7)
    lanes = np.zeros(LANES, np.float32)
    for d in range(width):
        lanes[d % LANES] += of[1, d]
    while len(lanes) > 1:
        lanes = lanes[::2] + lanes[1::2]
    assert summed(of, 1) == lanes[0]
