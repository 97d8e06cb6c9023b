import pyarrow as pa
import pytest
import torch

from exfm.embeddings.fused import FusedTables
from exfm.embeddings.tables import embedding_bags
from exfm.embeddings.weights import load_table_weights, table_weights
from exfm.errors import ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.snapshots.named import copy_tensors

AD = SparseFeature(name="ad", rows=50, transform="index")
USER = SparseFeature(name="user", rows=80, transform="index")
HISTORY = SparseFeature(name="history", rows=20, transform="index")
FEATURES = FeatureSet(sparse=[AD, USER, HISTORY])
LR, EPS = 0.1, 1e-8


def batch(seed, rows=64):
    g = torch.Generator().manual_seed(seed)
    ad, user, first = (torch.randint(high, (rows,), generator=g).tolist() for high in (50, 80, 100))
    history = [[i % 20, (3 * i) % 20] if i % 3 else [] for i in first]
    ids = {"ad": pa.array(ad, pa.int64()), "user": pa.array(user, pa.int64())}
    table = ids | {"history": pa.array(history, pa.list_(pa.int64()))}
    return BatchBuilder(FEATURES, [])(pa.table(table))


def fused(seed=0):
    return FusedTables.drawn(FEATURES, 4, seed, lr=LR, eps=EPS)


def learn(tables, seed):
    lookup = tables(batch(seed).sparse)
    tables.learn(lookup, torch.randn(lookup.pooled.shape, generator=torch.Generator().manual_seed(seed)))
    return lookup.pooled


def test_weights_start_uniform_within_one_over_root_rows():
    weight = table_weights(embedding_bags(FEATURES, 64, seed=0))["ad"]
    bound = 50**-0.5
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    assert abs(weight.mean()) < 0.05 * bound


def test_a_table_starts_the_same_whatever_else_there_is_and_in_whatever_order():
    torch.manual_seed(1)
    one = table_weights(embedding_bags(FEATURES, 4, seed=3))
    torch.manual_seed(2)
    other = table_weights(embedding_bags(FeatureSet(sparse=[USER, AD]), 4, seed=3))
    assert torch.equal(one["ad"], other["ad"])
    assert not torch.equal(one["ad"], table_weights(embedding_bags(FEATURES, 4, seed=4))["ad"])


def test_fused_and_plain_tables_agree():
    plain, trained = embedding_bags(FEATURES, 4, seed=0), fused()
    torch.testing.assert_close(trained(batch(0).sparse).pooled, plain(batch(0).sparse).values(), rtol=0, atol=1e-7)
    learn(trained, 1)
    load_table_weights(plain, trained.weights)
    torch.testing.assert_close(trained(batch(0).sparse).pooled, plain(batch(0).sparse).values(), rtol=0, atol=1e-6)


def test_a_fused_step_is_row_wise_adagrad_on_coalesced_gradients():
    tables, reference = fused(), embedding_bags(FEATURES, 4, seed=0)
    m = {name: torch.zeros(len(w)) for name, w in table_weights(reference).items()}
    for step in range(3):
        learn(tables, step)
        reference.zero_grad()
        pooled = reference(batch(step).sparse).values()
        pooled.backward(torch.randn(pooled.shape, generator=torch.Generator().manual_seed(step)))
        for name, bag in reference.embedding_bags.items():
            g = bag.weight.grad
            m[name] += g.square().mean(1)
            bag.weight.data -= LR * g / (m[name].sqrt() + EPS).unsqueeze(1)
    for name, weight in tables.weights.items():
        torch.testing.assert_close(tables.accumulators[name], m[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(weight, table_weights(reference)[name], rtol=1e-5, atol=1e-6)


def test_going_on_from_saved_weights_and_accumulators_gives_the_same_bits():
    straight, resumed = fused(), fused(seed=9)
    for step in range(3):
        learn(straight, step)
    copy_tensors(resumed.weights, straight.weights)
    copy_tensors(resumed.accumulators, straight.accumulators)
    for step in range(3, 6):
        assert torch.equal(learn(straight, step), learn(resumed, step))
    for mine, theirs in zip(straight.weights.values(), resumed.weights.values(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_learning_rate_can_be_changed():
    tables = fused()
    before = {k: v.clone() for k, v in tables.weights.items()}
    tables.lr = 0.0
    learn(tables, 0)
    assert all(torch.equal(before[k], v) for k, v in tables.weights.items())


def test_a_state_of_other_tables_is_refused_before_anything_is_written():
    tables = embedding_bags(FEATURES, 4, seed=0)
    state = {k: torch.zeros_like(v) for k, v in table_weights(tables).items()}
    state["user"] = torch.zeros(81, 4)
    with pytest.raises(ModelError, match=r"`user`, is \(81, 4\) in the state and \(80, 4\) in the model"):
        load_table_weights(tables, state)
    with pytest.raises(ModelError, match="`user`, is absent in the state"):
        load_table_weights(tables, {k: v for k, v in state.items() if k != "user"})
    assert table_weights(tables)["ad"].abs().max() > 0
