"""The loop over hashed features has the bits of NumPy's remainder, whatever the hash and the size of the table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exfm.features.transforms import GOLDEN, mixed
from exfm.kernels.hashing import LARGEST, Hashes

NO_INTEGERS = np.empty(0, np.int64)


def row_of(h: int, rows: int) -> int:
    """The row of a text with this hash."""
    ids = np.empty((1, 1), np.int64)
    Hashes([[0]], [rows], [0])(NO_INTEGERS, np.array([[h]], np.uint64), ids)
    return ids.item()


@given(st.integers(1, LARGEST - 1), st.integers(0, 2**64 - 1), st.integers(-1, 1))
def test_a_remainder_is_exact_next_to_every_multiple_of_the_rows(rows: int, h: int, beside: int) -> None:
    assert row_of(h, rows) == h % rows
    near = h // rows * rows + beside
    if 0 <= near < 2**64:
        assert row_of(near, rows) == near % rows


@pytest.mark.parametrize("rows", [1, 2, 3, 2**31 - 1, 2**32, 2**32 + 1, 2**62 + 1, LARGEST - 1])
def test_the_largest_hashes_are_within_their_table(rows: int) -> None:
    for h in range(2**64 - 5, 2**64):
        assert row_of(h, rows) == h % rows


def test_columns_and_crosses_of_two_and_three_are_hashed_as_by_numpy() -> None:
    drawn = np.random.default_rng(1)
    integers = drawn.integers(0, 2**64, (2, 1000), np.uint64)
    places = integers.ctypes.data + np.arange(2) * integers.strides[0]
    texts = drawn.integers(0, 2**64, (1, 1000), np.uint64)
    ids = np.full((4, 1000), -1, np.int64)
    Hashes([[1], [2, 0], [0, 2, 1]], [97, 2**20, 2**40], keys=[3, 0, 2])(places, texts, ids)
    a, b, text = mixed(integers[0]), mixed(integers[1]), texts[0]
    two, three = mixed(text * GOLDEN + a), mixed(mixed(a * GOLDEN + text) * GOLDEN + b)
    for key, h, rows in ((3, b, 97), (0, two, 2**20), (2, three, 2**40)):
        assert np.array_equal(ids[key], (h % np.uint64(rows)).astype(np.int64))
    assert (ids[1] == -1).all()
