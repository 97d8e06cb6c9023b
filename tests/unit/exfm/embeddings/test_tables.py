import pyarrow as pa
import pytest
import torch

from exfm.embeddings.kinds.registry import tables_of
from exfm.embeddings.served import ServedTables
from exfm.embeddings.table import Tables
from exfm.errors import ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from tests.support.models import collections
from tests.support.models.collections import embedding_bags
from tests.support.models.states import same

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
    return collections.fused(FEATURES, 4, seed, lr=LR, eps=EPS)


def drawn(features, width, seed):
    tables = ServedTables(tables_of(features, width, {}))
    tables.draw(seed)
    return tables.tensors()


def pooled_of(tables: Tables, seed):
    return tables.lookup(tables.send(batch(seed))).pooled


def learn(tables, seed):
    lookup = tables.lookup(tables.send(batch(seed)))
    tables.learn(lookup, torch.randn(lookup.pooled.shape, generator=torch.Generator().manual_seed(seed)))
    return lookup.pooled


def test_weights_start_uniform_within_one_over_root_rows():
    weight = drawn(FEATURES, 64, 0)["ad/weight"]
    bound = 50**-0.5
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    assert abs(weight.mean()) < 0.05 * bound


def test_a_table_starts_the_same_whatever_else_there_is_and_in_whatever_order():
    torch.manual_seed(1)
    one = drawn(FEATURES, 4, 3)
    torch.manual_seed(2)
    other = drawn(FeatureSet(sparse=[USER, AD]), 4, 3)
    assert torch.equal(one["ad/weight"], other["ad/weight"])
    assert not torch.equal(one["ad/weight"], drawn(FEATURES, 4, 4)["ad/weight"])


def test_fused_and_plain_tables_agree():
    plain, trained = embedding_bags(FEATURES, 4, seed=0), fused()
    torch.testing.assert_close(pooled_of(trained, 0), plain(batch(0).sparse).values(), rtol=0, atol=1e-7)
    learn(trained, 1)
    with torch.no_grad():
        for name, bag in plain.embedding_bags.items():
            bag.weight.copy_(trained.tensors()[f"{name}/weight"])
    torch.testing.assert_close(pooled_of(trained, 0), plain(batch(0).sparse).values(), rtol=0, atol=1e-6)


def test_a_fused_step_is_row_wise_adagrad_on_coalesced_gradients():
    tables, reference = fused(), embedding_bags(FEATURES, 4, seed=0)
    m = {name: torch.zeros(len(bag.weight)) for name, bag in reference.embedding_bags.items()}
    for step in range(3):
        learn(tables, step)
        reference.zero_grad()
        pooled = reference(batch(step).sparse).values()
        pooled.backward(torch.randn(pooled.shape, generator=torch.Generator().manual_seed(step)))
        for name, bag in reference.embedding_bags.items():
            g = bag.weight.grad
            m[name] += g.square().mean(1)
            bag.weight.data -= LR * g / (m[name].sqrt() + EPS).unsqueeze(1)
    for name, bag in reference.embedding_bags.items():
        torch.testing.assert_close(tables.tensors()[f"{name}/accumulator"], m[name], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(tables.tensors()[f"{name}/weight"], bag.weight.detach(), rtol=1e-5, atol=1e-6)


def test_going_on_from_saved_weights_and_accumulators_gives_the_same_bits():
    straight, resumed = fused(), fused(seed=9)
    for step in range(3):
        learn(straight, step)
    resumed.load(straight.copies())
    for step in range(3, 6):
        assert torch.equal(learn(straight, step), learn(resumed, step))
    assert same(straight.tensors(), resumed.tensors())


def test_the_learning_rate_can_be_changed():
    tables = fused()
    before = tables.copies("/weight")
    tables.lr = 0.0
    learn(tables, 0)
    assert same(before, tables.copies("/weight"))


def test_a_state_of_other_tables_is_refused_before_anything_is_written():
    tables = fused()
    state = {name: torch.zeros_like(tensor) for name, tensor in tables.tensors().items()}
    state["user/weight"] = torch.zeros(81, 4)
    with pytest.raises(ModelError, match=r"`user/weight`, is \(81, 4\) in the state and \(80, 4\) in the model"):
        tables.load(state)
    with pytest.raises(ModelError, match="`user/weight`, is absent in the state"):
        tables.load({name: tensor for name, tensor in state.items() if name != "user/weight"})
    assert tables.tensors()["ad/weight"].abs().max() > 0
