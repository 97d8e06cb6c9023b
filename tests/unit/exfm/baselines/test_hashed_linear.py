"""The coordinates of a linear part: the loop that works them out, and the operators that are exported."""

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.baselines.hashed_linear import HashedLinear
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature

FEATURES = FeatureSet(
    sparse=[
        *(SparseFeature(name=f"id_{n}", rows=10 ** (n + 1)) for n in range(7)),
        SparseFeature(name="hour", rows=24, transform="index"),
    ],
    dense=[DenseFeature(name="bid"), DenseFeature(name="age", transform="quantiles")],
)
ODD = [0.0, -0.0, 0.24, -0.25, 1e30, -1e30, float("inf"), float("-inf"), float("nan")]


def rows_of(B: int, *, most: int = 1) -> tuple[KeyedJaggedTensor, torch.Tensor]:
    random = torch.Generator().manual_seed(B)
    keys = list(FEATURES.keys)
    lengths = torch.randint(0 if most > 1 else 1, most + 1, (len(keys), B), generator=random)
    ids = [torch.randint(0, f.rows, (int(of.sum()),), generator=random)
           for f, of in zip(FEATURES.sparse, lengths, strict=True)]  # fmt: skip
    dense = torch.randn(B, len(FEATURES.dense_labels), generator=random)
    dense[: len(ODD), 0] = torch.tensor(ODD)[:B]
    return KeyedJaggedTensor(keys, torch.cat(ids), lengths=lengths.view(-1), stride=B), dense


@pytest.mark.parametrize("B", [1, 9, 300])
def test_the_loop_has_the_slots_and_the_exported_operators_its_logits(B):
    linear = HashedLinear(FEATURES, tasks=2)
    linear.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    sparse, dense = rows_of(B)
    ids = sparse.values().view(-1, B)
    slots = linear.hashing.single(ids, dense).view(-1, B).T.numpy()
    assert np.array_equal(linear.hashing(sparse, dense).slots.reshape(B, -1), slots)
    torch.testing.assert_close(linear(sparse, dense), linear.single(ids, dense))


def test_bags_have_a_coordinate_for_each_id_and_one_for_each_cross_of_their_sums():
    linear, (sparse, dense) = HashedLinear(FEATURES, tasks=1), rows_of(50, most=3)
    at = linear.hashing(sparse, dense)
    fixed = linear.hashing.count - len(FEATURES.keys)
    lengths = sparse.lengths().view(-1, 50)
    assert np.array_equal(np.diff(at.starts), lengths.sum(0).numpy() + fixed)
    for b in np.flatnonzero((lengths == 1).all(0).numpy()):  # alone they are what they are among others
        values = [
            bag[int(lengths[k, :b].sum())] for k, bag in enumerate(sparse.values().split(lengths.sum(1).tolist()))
        ]
        alone = linear.hashing.single(torch.stack(values).unsqueeze(1), dense[b : b + 1])
        assert np.array_equal(at.slots[at.starts[b] : at.starts[b + 1]], alone.numpy())


def test_a_row_without_an_id_has_what_all_rows_share():
    linear = HashedLinear(FEATURES, tasks=1)
    keys = list(FEATURES.keys)
    nothing = KeyedJaggedTensor(
        keys, torch.zeros(0, dtype=torch.int64), lengths=torch.zeros(len(keys), dtype=torch.int64)
    )
    found = linear.hashing(nothing, torch.zeros(1, len(FEATURES.dense_labels)))
    assert len(found.slots) == linear.hashing.count - len(keys)
    assert found.slots[-1] == 0
