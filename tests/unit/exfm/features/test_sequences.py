import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from exfm.embeddings.weights import initial_weights
from exfm.errors import ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.metrics.progressive import Tally
from exfm.models.served import check_parity, load_served, save_served
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.models.teacher_net import TeacherNet
from exfm.models.units import SequencePooling, Units
from exfm.parallel.group import RankGroup
from tests.support.models.collections import embedding_bags

AD = SparseFeature(name="ad", rows=10, transform="index")
SEEN = SequenceFeature(name="seen", rows=10, length=3, transform="index")
FEATURES = FeatureSet(sparse=[AD], sequence=[SEEN])
LISTS = pa.list_(pa.int64())


def rows(lists, kind=LISTS, **columns):
    return pa.table({"ad": [0] * len(lists), "seen": pa.array(lists, kind), **columns})


def places(lists, kind=LISTS, sequence=SEEN):
    """The ids by place, None where there is none, of every row."""
    batch = BatchBuilder(FeatureSet(sparse=[AD], sequence=[sequence]), ["ctr"])(rows(lists, kind))
    by_key = [batch.sparse[key].to_padded_dense(1, padding_value=-1)[:, 0].tolist() for key in sequence.keys]
    return [[None if i < 0 else int(i) for i in row] for row in zip(*by_key, strict=True)]


def pooling(length=3, width=4, units=2):
    return SequencePooling(length, width, units, torch.Generator().manual_seed(0))


def test_the_first_place_holds_the_most_recent_id_which_is_the_last_of_the_list():
    assert places([[1, 2, 3]]) == [[3, 2, 1]]


def test_a_list_longer_than_the_sequence_loses_its_oldest_and_a_shorter_one_leaves_places_empty():
    assert places([[1, 2, 3, 4, 5], [6, 7], [8]]) == [[5, 4, 3], [7, 6, None], [8, None, None]]


def test_null_lists_empty_lists_and_nulls_inside_are_as_if_not_there():
    assert places([None, [], [1, None, 2], [None]]) == [[None] * 3, [None] * 3, [2, 1, None], [None] * 3]


@pytest.mark.parametrize("kind", [pa.large_list(pa.int64()), pa.list_(pa.int32())])
def test_lists_of_other_types(kind):
    assert places([[1, 2], None], kind) == [[2, 1, None], [None] * 3]


def test_strings_are_hashed_and_an_id_has_one_row_whatever_its_place():
    hashed = SEEN.model_copy(update={"transform": "hash", "rows": 1000})
    (one, two) = places([["a", "b"], ["b", "c"]], pa.list_(pa.string()), hashed)
    assert one[0] == two[1]
    assert len({*one[:2], *two[:2]}) == 3


def test_slices_chunks_and_no_rows():
    build = BatchBuilder(FEATURES, ["ctr"])
    whole = rows([[1], [2, 3], [], [4, 5, 6, 7]])
    sliced = build(whole.combine_chunks().to_batches()[0].slice(1, 2))
    assert torch.equal(sliced.sparse.values(), build(rows([[2, 3], []])).sparse.values())
    assert torch.equal(build(pa.concat_tables([whole[:2], whole[2:]])).sparse.values(), build(whole).sparse.values())
    assert len(build(whole[:0]).sparse.lengths()) == 0


def test_a_column_without_lists_is_refused():
    with pytest.raises(ModelError, match="reads column `seen` of type int64; it needs a list per row"):
        BatchBuilder(FEATURES, ["ctr"])(pa.table({"ad": [1], "seen": [2]}))


def test_an_id_outside_of_the_table_is_refused():
    with pytest.raises(ModelError, match="value 10 of column `seen` is outside its table of 10 rows"):
        places([[10]])


def test_keys_follow_the_sparse_features_and_tables_are_one_per_sequence():
    assert FEATURES.keys == ("ad", "seen:0", "seen:1", "seen:2")
    assert FEATURES.table_names == ("ad", "seen")
    assert FEATURES.names == ("ad", "seen")
    assert FEATURES.needs_columns() == ("ad", "seen")
    assert FEATURES.select(["ad"]).sequence == ()


@pytest.mark.parametrize("sparse", ["seen", "seen:1"])
def test_a_sparse_feature_may_not_be_named_as_a_sequence_or_a_place_of_it(sparse):
    with pytest.raises(ValidationError, match=f"feature name `{sparse}` is"):
        FeatureSet(sparse=[SparseFeature(name=sparse, rows=2)], sequence=[SEEN])


def test_pooling_is_attention_over_those_that_are_there():
    pool, E = pooling(), torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(1))
    there = torch.tensor([[True, True, False]])
    S = (E + pool.P)[0, :2]
    A = torch.softmax(pool.Q @ (S @ pool.W_K).T / 2, dim=1)
    torch.testing.assert_close(pool(E, there)[0], A @ S @ pool.W_V)


def test_an_empty_sequence_pools_to_zeros_and_teaches_nothing():
    pool, E = pooling(), torch.randn(2, 3, 4)
    E.requires_grad_()
    there = torch.tensor([[False] * 3, [True] * 3])
    out = pool(E, there)
    assert not out[0].any()
    assert out[1].any()
    out[0].sum().backward()
    assert not E.grad.any()
    assert all(not p.grad.any() for p in pool.parameters())


def test_the_order_of_ids_matters():
    net = TeacherNet(TeacherConfig(width=4), FEATURES, ["ctr"], seed=0)
    batch = BatchBuilder(FEATURES, ["ctr"])(rows([[1, 2], [2, 1]]))
    X = net.units(embedding_bags(FEATURES, 4, seed=0)(batch.sparse).values(), batch.sparse)
    assert X.shape == (2, 2, 4)
    assert torch.equal(X[0, 0], X[1, 0])
    assert not torch.allclose(X[0, 1], X[1, 1])


def test_places_without_an_id_take_no_part_in_a_models_units():
    net = TeacherNet(TeacherConfig(width=4), FEATURES, ["ctr"], seed=0)
    batch = BatchBuilder(FEATURES, ["ctr"])(rows([[1, 2], []]))
    X = net.units(embedding_bags(FEATURES, 4, seed=0)(batch.sparse).values(), batch.sparse)
    E = torch.zeros(1, 3, 4)
    E[0, :2] = initial_weights("seen", 10, 4, seed=0)[[2, 1]]
    torch.testing.assert_close(X[:1, 1:], net.units.pooling["seen"](E, torch.tensor([[True, True, False]])))
    assert not X[1, 1].any()


def test_units_are_those_of_wide_features_and_of_sequences():
    """32 wide are four of 8: their columns in order, none mixed with a neighbour's."""
    features = FeatureSet(
        sparse=[SparseFeature(name="wide", rows=9, width=32), AD], sequence=[SEEN.model_copy(update={"units": 2})]
    )
    assert features.unit_count(8) == 4 + 1 + 2
    batch = BatchBuilder(features, ["ctr"])(rows([[1], [2]], wide=[4, 5]))
    net = TeacherNet(TeacherConfig(width=8, num_fmb=2, num_lcb=2), features, ["ctr"], seed=3)
    X = net.units(embedding_bags(features, 8, seed=3)(batch.sparse).values(), batch.sparse)
    assert X.shape == (2, 7, 8)
    assert net.trunk.layers[0].W_L.shape == (2, 7)
    wide = initial_weights("wide", 9, 32, seed=3)
    row = BatchBuilder(features, ["ctr"])(rows([[1]], wide=[4])).sparse["wide"].values()
    assert torch.equal(X[0, :4], wide[row].view(4, 8))


def test_without_sequences_there_is_nothing_to_learn_in_between():
    assert not list(Units(FeatureSet(sparse=[AD]), 4, 0).parameters())


def stream(count, seed):
    """Which of two ads was seen last decides the click; as a bag, [1, 2] and [2, 1] are one."""
    rng = np.random.default_rng(seed)
    pairs = np.stack([rng.permutation([1, 2]) for _ in range(count)])
    table = rows(pairs.tolist(), label_ctr=pa.array((pairs[:, 1] == 1).astype(np.int8)))
    return table.append_column("bag", table["seen"])


def judged(model, features, steps=40, rows_per_step=64):
    build, tally = BatchBuilder(features, ["ctr"]), Tally()
    for step in range(steps):
        batch = build(stream(rows_per_step, step))
        result = model.train_step(batch)
        if step >= steps // 2:
            tally.add(result.logits[:, 0], batch.labels[:, 0].numpy())
    return tally.metrics().auc


def test_a_teacher_and_a_student_learn_from_the_order_what_a_bag_cannot_tell(tmp_path):
    bag = FeatureSet(sparse=[AD, SparseFeature(name="bag", rows=10, transform="index")])
    cfg = TeacherConfig(width=4, dense_lr=0.01)
    small = StudentConfig(width=4, trunk=TrunkConfig(name="dlrm", mlp=(8,)), dense_lr=0.02).without_teacher()
    with RankGroup() as group:
        assert judged(Teacher(cfg, FEATURES, ["ctr"], 0, group=group), FEATURES) > 0.95
        assert judged(Teacher(cfg, bag, ["ctr"], 0, group=group), bag) == pytest.approx(0.5, abs=0.05)
    student = Student(small, FEATURES, ["ctr"], 0)
    assert judged(student, FEATURES) > 0.95
    served = load_served(save_served(student.export(), tmp_path, "export"))
    batch = BatchBuilder(FEATURES, ["ctr"])(rows([[1, 2], None, [3], [5, 2, 1, 1]]))
    check_parity(student, served, batch)


def test_an_id_seen_at_two_places_is_updated_once_by_the_sum_of_its_gradients():
    """Row-wise AdaGrad of the whole table's gradient, as autograd gives it."""
    with RankGroup() as group:
        teacher = Teacher(TeacherConfig(width=4), FEATURES, ["ctr"], 0, group=group)
        build = BatchBuilder(FEATURES, ["ctr"])
        label = {"label_ctr": pa.array([1, 0], pa.int8())}
        for _ in range(3):  # the heads start at zero, and give no gradient to the tables before they moved
            teacher.train_step(build(rows([[4], [5]], **label)))
        before, batch = teacher.state(), build(rows([[7, 7, 2], [7]], **label))
        net = TeacherNet(TeacherConfig(width=4), FEATURES, ["ctr"], 0).train()
        net.load_state_dict(
            {k.removeprefix("dense/"): v for k, v in before.items() if k.startswith("dense/")}
            | {f"prior.{n}": before[f"prior/{n}"] for n in ("positive", "negative")}
        )
        tables = embedding_bags(FEATURES, 4, seed=0)
        for name, bag in tables.embedding_bags.items():
            bag.weight.data.copy_(before[f"table/{name}/weight"])
        pooled = tables(batch.sparse).values()
        z, _ = net(pooled, batch.sparse, batch.dense)
        torch.nn.functional.binary_cross_entropy_with_logits(z, batch.labels).backward()
        pooled.backward(net.e[0].grad)
        g = tables.embedding_bags["seen"].weight.grad
        teacher.train_step(batch)
        after = teacher.state()
    m = before["table/seen/accumulator"] + g.square().mean(1)
    w = before["table/seen/weight"] - 0.1 * g / (m.sqrt() + 1e-8).unsqueeze(1)
    assert g[7].any()
    torch.testing.assert_close(after["table/seen/accumulator"], m)
    torch.testing.assert_close(after["table/seen/weight"], w)


def test_gaps_of_time_are_powers_of_two_of_a_second_before_the_event():
    gaps = SequenceFeature(name="when", transform="gap", length=3)
    assert (gaps.rows, gaps.reads) == (32, ("when", "event_time_ms"))
    now = 10**12
    ago = [0, 0.999, 1, 2.999, 3, 7, 86_400, 10**9 - 1, -5]
    lists = [[now - int(1000 * s) for s in some] for some in (ago[2::-1], ago[5:2:-1], ago[8:5:-1])]
    times = {"when": pa.array([*lists, None], pa.list_(pa.int64())), "event_time_ms": [now] * 4}
    table = pa.table({"ad": [1] * 4, **times})
    sparse = BatchBuilder(FeatureSet(sparse=[AD], sequence=[gaps]), ["ctr"])(table).sparse
    rows = [sparse[key].values().tolist() for key in gaps.keys]
    assert list(zip(*rows, strict=True)) == [(0, 0, 1), (1, 2, 3), (16, 29, 0)]
    assert sparse[gaps.keys[0]].lengths().tolist() == [1, 1, 1, 0]
