"""Ids are hashed the same everywhere, today and tomorrow."""

import numpy as np
import pyarrow as pa
import pytest

from streaming.hashing import hash64


def test_integers_never_collide():
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 100_000)
    assert len(np.unique(hash64(pa.array(ids)))) == len(np.unique(ids))


def test_hashes_are_fixed_for_ever():
    assert hash64(pa.array([0, 1, -1])).tolist() == [0, 6238072747940578789, 13029008266876403067]
    assert hash64(pa.array(["a", ""])).tolist() == hash64(pa.array(["a", ""]).dictionary_encode()).tolist()


def test_strings_hash_by_value_not_by_place():
    one, two = hash64(pa.array(["x", "y", "x"])), hash64(pa.array(["y", "x"]))
    assert one[0] == one[2] == two[1]
    assert one[1] == two[0]


def test_bits_are_spread():
    low = hash64(pa.array(np.arange(64_000))) % 64
    counts = np.bincount(low.astype(int), minlength=64)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_nulls_are_refused():
    with pytest.raises(ValueError, match="1 of 2"):
        hash64(pa.array([1, None]))
