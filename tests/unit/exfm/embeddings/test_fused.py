"""Tables that learn in one process are FBGEMM's, whatever bags hold: to the bit where FBGEMM adds squares in the order
that ours has (x86-64, one key a table or element-wise; `-m slow` compares bits), elsewhere to rounding."""

from __future__ import annotations

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.fused import FusedTables
from exfm.embeddings.table import Lookup, Table
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from tests.support.models import collections

ROWS = {"few": 7, "some": 50, "more": 1000, "many": 100_000}
LR, EPS = 0.24, 1e-8


KEYS = {"few": 1, "some": 3, "more": 1, "many": 2}
"""How many keys are looked up in a table."""
FBGEMM = {"row_wise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "adagrad": EmbOptimType.EXACT_ADAGRAD}


def bags(keys: dict[str, int], most: int, B: int, generator: torch.Generator) -> KeyedJaggedTensor:
    """Of one id each where `most` is 1, else of 0 to `most`."""
    rows = {f"{name}{n}": ROWS[name] for name, count in keys.items() for n in range(count)}
    shape = (len(rows), B)
    lengths = torch.ones(shape, dtype=torch.int64)
    if most > 1:
        lengths = torch.randint(0, most + 1, shape, generator=generator)
    ids = [
        torch.randint(0, n, (int(of.sum()),), generator=generator) for n, of in zip(rows.values(), lengths, strict=True)
    ]
    return KeyedJaggedTensor(list(rows), torch.cat(ids), lengths=lengths.view(-1))


def weights_of(tables: FusedTables, what: str = "weight") -> dict[str, Tensor]:
    return {name.split("/")[0]: held for name, held in tables.tensors().items() if name.endswith(what)}


def look_up(tables: FusedTables, sparse: KeyedJaggedTensor) -> Lookup:
    return tables.lookup(tables.rows(sparse))


def alike(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def to_the_bit(found: Tensor, wanted: Tensor) -> None:
    assert torch.equal(found.contiguous().view(torch.int32), wanted.contiguous().view(torch.int32))


@pytest.mark.parametrize("width", [4, 8, 12, 16, 20, 64])
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("optimizer", FBGEMM)
@pytest.mark.parametrize("compare", [alike, pytest.param(to_the_bit, marks=pytest.mark.slow)])
def test_what_is_learned_is_what_fbgemm_learns(width, most, optimizer, compare):
    keys = dict.fromkeys(KEYS, 1) if compare is to_the_bit and optimizer == "row_wise_adagrad" else KEYS
    sizes = [Table(name, rows, width, tuple(f"{name}{n}" for n in range(keys[name]))) for name, rows in ROWS.items()]
    ours = FusedTables(sizes, lr=LR, eps=EPS, optimizer=optimizer)
    theirs = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in ROWS.values()],
        feature_table_map=[n for n, count in enumerate(keys.values()) for _ in range(count)],
        optimizer=FBGEMM[optimizer],
        learning_rate=LR,
        eps=EPS,
    )
    random = torch.Generator().manual_seed(width)
    for weight, of in zip(theirs.split_embedding_weights(), weights_of(ours).values(), strict=True):
        weight.copy_(of.uniform_(-0.1, 0.1, generator=random))
    for step, B in enumerate((1, 7, 512, 2048, 64, 1, 300)):
        ours.lr = LR / (1 + step)
        theirs.set_learning_rate(ours.lr)
        sparse = bags(keys, most, B, random)
        lookup = look_up(ours, sparse)
        pooled = theirs(sparse.values(), sparse.offsets())
        compare(lookup.pooled, pooled.detach())
        gradient = torch.randn(pooled.shape, generator=random) * 10.0 ** (step - 3)
        pooled.backward(gradient)
        ours.learn(lookup, gradient)
    found = zip(theirs.split_embedding_weights(), theirs.split_optimizer_states(), strict=True)
    for (weight, (m,)), (name, of) in zip(found, weights_of(ours).items(), strict=True):
        compare(of, weight)
        compare(ours.tensors()[f"{name}/accumulator"], m)


def test_tables_of_several_widths_and_sequences_learn_as_each_by_itself():
    ad, user = SparseFeature(name="ad", rows=30, width=8), SparseFeature(name="user", rows=40)
    seen = SequenceFeature(name="seen", rows=20, length=3)
    together = FeatureSet(sparse=(user, ad), sequence=(seen,))
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 2, (5, 16), generator=random)
    ids = torch.randint(0, 20, (int(lengths.sum()),), generator=random)
    sparse = KeyedJaggedTensor(list(together.keys), ids, lengths=lengths.view(-1))
    tables = collections.fused(together, 4, seed=1, lr=LR, eps=EPS)
    gradient = torch.randn(16, 4 + 8 + 3 * 4, generator=random)
    lookup = look_up(tables, sparse)
    tables.learn(lookup, gradient)
    columns = {"user": (0, 4, 0, 1), "ad": (4, 12, 1, 2)}
    for feature in (user, ad):
        first, last, key, end = columns[feature.name]
        alone = collections.fused(FeatureSet(sparse=(feature,)), 4, seed=1, lr=LR, eps=EPS)
        own = look_up(alone, KeyedJaggedTensor([feature.name], *_of(sparse, key, end)))
        assert torch.equal(own.pooled, lookup.pooled[:, first:last])
        alone.learn(own, gradient[:, first:last])
        assert torch.equal(weights_of(alone)[feature.name], weights_of(tables)[feature.name])
    assert tables.tensors()["seen/accumulator"].nonzero().view(-1).tolist() == sorted(
        set(_of(sparse, 2, 5)[0].tolist())
    )


def _of(sparse: KeyedJaggedTensor, key: int, end: int) -> tuple[torch.Tensor, None, torch.Tensor]:
    B, offsets = sparse.stride(), sparse.offsets()
    return sparse.values()[offsets[key * B] : offsets[end * B]], None, sparse.lengths()[key * B : end * B]


def test_a_batch_without_any_id_changes_nothing():
    features = FeatureSet(sparse=(SparseFeature(name="ad", rows=5),))
    tables = collections.fused(features, 4, seed=0, lr=LR, eps=EPS)
    before = tables.tensors()["ad/weight"].clone()
    none = KeyedJaggedTensor(["ad"], torch.empty(0, dtype=torch.int64), lengths=torch.zeros(3, dtype=torch.int64))
    lookup = look_up(tables, none)
    tables.learn(lookup, torch.ones(3, 4))
    assert torch.equal(lookup.pooled, torch.zeros(3, 4))
    assert torch.equal(tables.tensors()["ad/weight"], before)


@pytest.mark.parametrize("rows", [1, 40, 5_000_000])
@pytest.mark.parametrize("keys", [("one",), ("one", "two")])
def test_the_first_id_of_each_row_is_found(rows, keys):
    random = torch.Generator().manual_seed(0)
    sizes = [Table("small", 3, 1, ("first",)), Table("large", rows, 1, keys)]
    lengths = torch.randint(0, 3, ((1 + len(keys)) * 300,), generator=random)
    count, of_small = int(lengths.sum()), int(lengths[:300].sum())
    ids = torch.randint(0, min(rows, 2**20), (count,), generator=random)
    ids[of_small::2] = ids[of_small::2] % 40
    ids[:of_small] %= 3
    sparse = KeyedJaggedTensor(["first", *keys], ids, lengths=lengths)
    (indices,) = FusedTables(sizes, lr=LR, eps=EPS).rows(sparse)
    wanted = {row: n for n, row in reversed(list(enumerate(indices.rows.tolist())))}
    assert indices.first.tolist() == [wanted[row] for row in indices.rows.tolist()]
    assert indices.rows[:of_small].max() < 3 <= indices.rows[of_small:].min()


def test_a_row_begins_where_a_line_of_the_cache_does():
    tables = FusedTables([Table("large", 100_000, 16, ("large",))], lr=LR, eps=EPS)
    assert (
        tables.tensors()["large/weight"].data_ptr() % 64 == tables.tensors()["large/accumulator"].data_ptr() % 64 == 0
    )


def test_a_weight_of_minus_zero_is_looked_up_as_zero():
    tables = FusedTables([Table("ad", 2, 12, ("ad",))], lr=LR, eps=EPS)
    tables.tensors()["ad/weight"].fill_(-0.0)
    ids = KeyedJaggedTensor(["ad"], torch.tensor([1]), lengths=torch.tensor([1]))
    (lookup,) = look_up(tables, ids).pooled
    to_the_bit(lookup, torch.zeros(12))
