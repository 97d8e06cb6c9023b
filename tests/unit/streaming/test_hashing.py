"""Ids are hashed the same everywhere, today and tomorrow."""

import numpy as np
import pyarrow as pa
import pytest

from exfm.features.transforms import hash64 as feature_hash64
from streaming.hashing import hash64


def test_integers_never_collide():
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 100_000)
    assert len(np.unique(hash64(pa.array(ids)))) == len(np.unique(ids))


def test_hashes_are_fixed_for_ever():
    assert hash64(pa.array([0, 1, -1])).tolist() == [0, 6238072747940578789, 13029008266876403067]
    assert hash64(pa.array(["id 7", "ä"])).tolist() == [14164053695867880010, 169404545344139998]
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


@pytest.mark.parametrize("hashed", [hash64, feature_hash64])
@pytest.mark.parametrize("values", [[1, None], ["a", None]])
def test_nulls_are_refused(hashed, values):
    with pytest.raises(ValueError, match="ids must not be null: 1 of 2 are"):
        hashed(pa.array(values))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, 1, -1, 2**63 - 1, -(2**63)]),
        pa.array([7, 8], pa.int32()),
        pa.array(["x", "", "\u00e9", "x"]),
        pa.array(["x", "y"], pa.large_string()),
        pa.array(["x", "y", "z"]).slice(1),
        pa.array([], pa.string()),
    ],
)
def test_ids_and_features_hash_alike(values):
    assert hash64(values).tolist() == feature_hash64(values).tolist()
