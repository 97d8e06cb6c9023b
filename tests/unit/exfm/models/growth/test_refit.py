"""States fitted to models whose tables grew, and that have features more or fewer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.embeddings.kinds.registry import settings_of
from exfm.errors import ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.interactions.dcn import DCNOptions
from exfm.interactions.registry import TrunkConfig
from exfm.models.growth.refit import MadeWith, feature_changes, fitted_student, fitted_teacher
from exfm.models.scorer import TeacherScorer, snapshot_of
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.snapshots.checkpoint import open_checkpoint, save_checkpoint
from exfm.snapshots.windows import fill_window, narrowed, whole_tensor

TASKS = ("ctr", "cvr")
SEED = 5
AD = SparseFeature(name="ad", rows=40)
USER = SparseFeature(name="user", rows=30, width=8)
DAY = SparseFeature(name="day", rows=7, transform="index")
AGE = SparseFeature(name="age", transform="bucketize", boundaries=(18, 35, 65))
PAIR = SparseFeature(name="pair", columns=("user", "ad"), rows=50)
SEEN = SequenceFeature(name="seen", rows=20, length=3, units=2)
PRICE, BID = DenseFeature(name="price"), DenseFeature(name="bid", transform="log1p")
BASE = FeatureSet(sparse=[AD, USER, DAY], dense=[PRICE])

SMALL = {"width": 4, "layers": 2, "num_fmb": 6, "num_lcb": 4, "rank": 2, "mlp": (8,), "head": (8,)}
WUKONG = TeacherConfig(**SMALL)
PLAIN = TeacherConfig(**SMALL, layer_norm=False)
ATTENTIVE = TeacherConfig(**SMALL, layer_norm=False, attentive=True)
WIDE = TeacherConfig(**SMALL | {"num_fmb": 1}, layer_norm=False)  # BASE makes 5 units, and a layer puts out 5
DLRM = TeacherConfig(interaction="dlrm", width=4, head=(8,))
DCN = TeacherConfig(interaction="dcn", width=4, head=(8,))
CROSS_NAMES = "low rank", "mixture", "parallel"
CROSSES = (
    {"layers": 2, "rank": 3},
    {"layers": 2, "rank": 3, "experts": 2},
    {"layers": 1, "structure": "parallel"},
)


def soaked(case):
    return pytest.param(case, marks=pytest.mark.slow)


def dcn(cross, deep=(8,)):
    return TeacherConfig(interaction="dcn", width=4, head=(8,), dcn=DCNOptions(cross=cross, deep=deep))


def rows(seed, count=48):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "ad": rng.integers(0, 10**6, count),
            "user": rng.integers(0, 10**6, count),
            "day": rng.integers(0, 7, count),
            "age": rng.integers(10, 80, count),
            "seen": pa.array([list(range(n, n + n % 4)) for n in rng.integers(0, 99, count)], pa.list_(pa.int64())),
            "price": rng.random(count),
            "bid": rng.random(count) * 9,
            "label_ctr": rng.integers(0, 2, count).astype(np.int8),
            "label_cvr": rng.integers(0, 2, count).astype(np.int8),
            "teacher_logit_ctr": rng.normal(size=count).astype(np.float32),
        }
    )


def made(cfg, features, tasks=TASKS, seed=SEED):
    return MadeWith.of(cfg, features, tasks, seed)


def changed(*features, base=BASE):
    """`base` with these features in place of those of their name, or after them."""
    kept = {f.name: f for f in base.all} | {f.name: f for f in features}
    kinds = {"sparse": SparseFeature, "dense": DenseFeature, "sequence": SequenceFeature}
    return FeatureSet(**{key: [f for f in kept.values() if type(f) is kind] for key, kind in kinds.items()})


@pytest.fixture
def group():
    with RankGroup() as group:
        yield group


def trained(group, cfg, features=BASE, steps=4):
    teacher = Teacher(cfg, features, TASKS, SEED, group=group)
    build = BatchBuilder(features, TASKS)
    for seed in range(steps):
        assert teacher.train_step(build(rows(seed))).finite
    return teacher


def restored(group, state, cfg, now, was=BASE, **options):
    teacher = Teacher(cfg, now, TASKS, SEED, group=group)
    teacher.load_state(fitted_teacher(state, made(cfg, was), made(cfg, now), **options))
    return teacher


def says(teacher, features, seed=100):
    return teacher.score(BatchBuilder(features, TASKS)(rows(seed)))


def kept_bits(before, after, tables=("ad", "user", "day")):
    for name in tables:
        for what in ("weight", "accumulator"):
            old, new = before[f"table/{name}/{what}"], after[f"table/{name}/{what}"]
            assert torch.equal(new[: len(old)], old)
    for name, tensor in before.items():
        if name.startswith("adam/") and name in after and after[name].shape == tensor.shape:
            assert torch.equal(after[name], tensor), name
    assert torch.equal(before["rng"], after["rng"])


# --- tables that grew ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", [WUKONG, *map(soaked, (ATTENTIVE, DLRM, DCN))])
def test_a_hashed_table_of_twice_the_rows_says_the_same_to_the_bit_of_every_id(group, cfg):
    before = trained(group, cfg)
    grown = changed(AD.model_copy(update={"rows": 120}), USER.model_copy(update={"rows": 60}))
    after = restored(group, before.state(), cfg, grown)
    assert np.array_equal(says(after, grown), says(before, BASE))
    old, new = before.state(), after.state()
    kept_bits(old, new)
    for what in ("weight", "accumulator"):
        assert torch.equal(new[f"table/ad/{what}"], torch.cat([old[f"table/ad/{what}"]] * 3))
    assert all(torch.equal(new[k], v) for k, v in old.items() if not k.startswith(("table/", "wide/")))
    build = BatchBuilder(grown, TASKS)
    assert after.train_step(build(rows(5))).finite  # and learns on


def test_an_indexed_table_and_a_hashed_sequence_grow_too(group):
    base = changed(SEEN)
    before = trained(group, WUKONG, base)
    grown = changed(DAY.model_copy(update={"rows": 31}), SEEN.model_copy(update={"rows": 40}), base=base)
    after = restored(group, before.state(), WUKONG, grown, base)
    assert np.array_equal(says(after, grown), says(before, base))
    new, fresh = after.state(), Teacher(WUKONG, grown, TASKS, SEED, group=group).state()
    assert torch.equal(new["table/day/weight"][7:], fresh["table/day/weight"][7:])
    assert not new["table/day/accumulator"][7:].any()
    kept_bits(before.state(), new, ("ad", "user", "day", "seen"))


def test_element_wise_accumulators_grow_with_their_table(group):
    cfg = WUKONG.model_copy(update={"sparse_optimizer": "adagrad"})
    before = trained(group, cfg)
    grown = changed(AD.model_copy(update={"rows": 80}), DAY.model_copy(update={"rows": 9}), AGE)
    after = restored(group, before.state(), cfg, grown).state()
    kept_bits(before.state(), after)
    assert after["table/ad/accumulator"].shape == (80, 4)
    assert torch.equal(after["table/ad/accumulator"], torch.cat([before.state()["table/ad/accumulator"]] * 2))
    assert not after["table/age/accumulator"].any()


def test_a_scorer_reads_a_snapshot_from_before_its_tables_grew(group, tmp_path):
    """As augmentation does, from disk and only what it needs."""
    before = trained(group, WUKONG)
    path = save_checkpoint(tmp_path, "v1", snapshot_of(before.state()), {})
    grown = changed(USER.model_copy(update={"rows": 90}))
    scorer, plain = TeacherScorer(WUKONG, grown, TASKS), TeacherScorer(WUKONG, BASE, TASKS)
    scorer.load(fitted_teacher(open_checkpoint(path).tensors, made(WUKONG, BASE), made(WUKONG, grown)))
    plain.load(open_checkpoint(path).tensors)
    assert np.array_equal(says(scorer, grown), says(plain, BASE))


def test_windows_of_grown_tables_are_those_of_the_whole(group):
    """Ranks read windows, however they are cut."""
    before = trained(group, WUKONG).state()
    grown = changed(AD.model_copy(update={"rows": 120}), DAY.model_copy(update={"rows": 31}), PAIR)
    fitted = fitted_teacher(before, made(WUKONG, BASE), made(WUKONG, grown))
    for name in ("ad", "day", "pair"):
        for what in ("weight", "accumulator"):
            source = fitted[f"table/{name}/{what}"]
            complete = whole_tensor(source)
            for first, count in ((0, 1), (5, 20), (25, 6), (30, 1)):
                start, shape = (first, *[0] * (complete.dim() - 1)), (count, *complete.shape[1:])
                out = torch.empty(shape)
                fill_window(out, source, start)
                assert torch.equal(out, narrowed(complete, start, shape)), name


# --- features more and fewer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cfg",
    [PLAIN, WIDE, DLRM, DCN, *map(soaked, (ATTENTIVE, dcn({"layers": 1}, deep=()), *map(dcn, CROSSES)))],
    ids=["wukong", "identity residual", "dlrm", "full", "attentive", "no deep network", *CROSS_NAMES],
)
def test_a_feature_added_changes_nothing_until_it_has_learned_something(group, cfg):
    added = PAIR, AGE, BID, SEEN
    before, more = trained(group, cfg), changed(*added)
    after = restored(group, before.state(), cfg, more)
    said = says(after, more)
    np.testing.assert_allclose(said, says(before, BASE), rtol=0, atol=2e-6)
    kept_bits(before.state(), after.state())
    start = after.state()
    build = BatchBuilder(more, TASKS)
    for seed in range(6, 9):
        assert after.train_step(build(rows(seed))).finite
    learned = after.state()
    for feature in added:  # what starts at 0 must not stay there
        if not isinstance(feature, DenseFeature):
            assert not torch.equal(learned[f"table/{feature.name}/weight"], start[f"table/{feature.name}/weight"])


def test_under_layer_norm_a_feature_added_moves_logits_a_little_and_no_more(group):
    alone = WUKONG.model_copy(update={"wide": False})  # a young stack listens to its linear part only
    before = trained(group, alone, steps=10)
    after = restored(group, before.state(), alone, changed(AGE))
    said, is_said = says(before, BASE), says(after, changed(AGE))
    moved = np.abs(is_said - said).max()
    assert 0 < moved < 0.5 * said.std()
    fresh = restored(group, before.state(), alone, BASE)
    assert np.array_equal(says(fresh, BASE), said)


def test_new_features_may_stand_anywhere_among_the_old_ones(group):
    before = trained(group, PLAIN)
    shuffled = FeatureSet(sparse=[PAIR, DAY, AGE, USER, AD], dense=[BID, PRICE])
    after = restored(group, before.state(), PLAIN, shuffled)
    np.testing.assert_allclose(says(after, shuffled), says(before, BASE), rtol=0, atol=2e-6)


@pytest.mark.parametrize("cfg", [WUKONG, DLRM, *map(soaked, (ATTENTIVE, WIDE, DCN))])
def test_a_feature_dropped_is_left_out_and_the_rest_is_as_it_was(group, cfg):
    base = changed(PAIR, BID)
    before = trained(group, cfg, base)
    fewer = FeatureSet(sparse=[AD, USER, DAY, AGE], dense=[PRICE]) if cfg is WIDE else BASE
    after = restored(group, before.state(), cfg, fewer, base, drop=True)
    state = after.state()
    assert not any("pair" in name for name in state)
    if fewer is BASE:
        kept_bits(before.state(), state)
    assert after.train_step(BatchBuilder(fewer, TASKS)(rows(9))).finite
    with pytest.raises(ModelError, match=r"`pair` is dropped: .*; `bid` is dropped.* has to be asked for"):
        restored(group, before.state(), cfg, fewer, base)


def test_dropping_what_was_added_gives_back_the_teacher_it_was(group):
    before = trained(group, PLAIN)
    more = restored(group, before.state(), PLAIN, changed(PAIR, BID, SEEN))
    back = restored(group, more.state(), PLAIN, BASE, changed(PAIR, BID, SEEN), drop=True)
    old, new = before.state(), back.state()
    assert old.keys() == new.keys()
    assert all(torch.equal(new[name], tensor) for name, tensor in old.items())


# --- what there is no rule for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([AD.model_copy(update={"rows": 60})], r"`ad` had 40 rows, and 60 are wanted: .* take 80, 120, …"),
        ([USER.model_copy(update={"rows": 10})], r"`user` had 30 rows, and 10 are wanted: a table never shrinks"),
        ([USER.model_copy(update={"width": 4})], r"`user`: width was 8, is 4: .* by another name"),
        ([AD.model_copy(update={"transform": "index"})], r"`ad`: transform was hash, is index"),
        ([AD.model_copy(update={"column": "user"})], r"`ad`: column was None, is user"),
        ([DenseFeature(name="price", transform="log1p")], r"`price`: transform was identity, is log1p"),
        ([SparseFeature(name="price", rows=9)], r"`price` was another kind of feature"),
        (
            [AD.model_copy(update={"rows": 60}), USER.model_copy(update={"rows": 10})],
            r"`ad` had 40 rows.*; `user` had 30 rows",
        ),
    ],
)
def test_what_has_no_rule_is_refused_with_both_and_what_is_possible(features, words):
    kept = FeatureSet(sparse=[f for f in BASE.sparse if f.name != features[0].name], dense=[])
    base = BASE if type(features[0]) is type({f.name: f for f in BASE.all}[features[0].name]) else None
    now = changed(*features) if base else FeatureSet(sparse=[*kept.sparse, *features])
    with pytest.raises(ModelError, match=words):
        feature_changes(BASE, now)


def test_boundaries_that_changed_are_refused():
    was, now = changed(AGE), changed(SparseFeature(name="age", transform="bucketize", boundaries=(18, 40, 65)))
    with pytest.raises(ModelError, match=r"`age`: boundaries was \(18.0, 35.0, 65.0\), is \(18.0, 40.0, 65.0\)"):
        feature_changes(was, now)


def test_a_learned_residual_is_never_lost(group):
    """BASE makes 5 units: with 4 outputs the residual is a map; with one unit fewer it would be the identity."""
    cfg = TeacherConfig(**SMALL | {"num_fmb": 1, "num_lcb": 3})
    state = trained(group, cfg).state()
    fewer = FeatureSet(sparse=[AD, USER], dense=[PRICE])
    with pytest.raises(ModelError, match=r"has 5 units and puts out 4, so it learned a map .* add or drop another"):
        fitted_teacher(state, made(cfg, BASE), made(cfg, fewer), drop=True)
    moved = FeatureSet(sparse=[USER, DAY, AGE], dense=[PRICE])
    with pytest.raises(ModelError, match=r"passes each on at its place, and .*user.* would come to another place"):
        fitted_teacher(trained(group, WIDE).state(), made(WIDE, BASE), made(WIDE, moved), drop=True)


def test_only_features_may_differ():
    state, now = {}, made(WUKONG, changed(AGE))
    for was, words in (
        (made(WUKONG, BASE, seed=6), "whose seed was 6, and is wanted for 5: only features may differ"),
        (made(WUKONG, BASE, tasks=("ctr",)), "whose tasks was"),
        (made(PLAIN, BASE), "whose `layer_norm` was False, and is wanted for True"),
    ):
        with pytest.raises(ModelError, match=words):
            fitted_teacher(state, was, now)


# --- students --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dlrm", soaked("dcn"), soaked("mlp")])
def test_a_student_whose_tables_grew_predicts_the_same_and_learns_on(name):
    cfg = StudentConfig(trunk=TrunkConfig(name=name, mlp=(8,)), width=8)
    base = FeatureSet(sparse=[AD, USER, DAY], dense=[PRICE])
    grown = changed(AD.model_copy(update={"rows": 80}), DAY.model_copy(update={"rows": 9}))
    before, after = Student(cfg, base, TASKS, SEED), Student(cfg, grown, TASKS, SEED)
    for seed in range(3):
        before.train_step(BatchBuilder(base, TASKS)(rows(seed)))
    after.load_state(fitted_student(before.state(), made(cfg, base), made(cfg, grown)))
    assert np.array_equal(says(after, grown), says(before, base))
    kept_bits(before.state(), after.state())
    assert after.train_step(BatchBuilder(grown, TASKS)(rows(4))).finite
    assert after.rows == before.rows + 48


def test_a_student_keeps_the_features_it_began_with():
    cfg = StudentConfig(width=8)
    with pytest.raises(ModelError, match=r"`age` is added: .* a student keeps the features it began with"):
        fitted_student({}, made(cfg, BASE), made(cfg, changed(AGE)))


def test_a_full_table_becomes_chunks_that_are_all_kept_and_goes_on_to_the_last_bit(group, tmp_path):
    """Weights, element-wise accumulators and logits; from a checkpoint on disk, read by window."""
    full = WUKONG.model_copy(update={"sparse_optimizer": "adagrad"})
    kinds = {name: settings_of({"kind": "fiited", "keep": 1, "chunks": n}) for name, n in (("ad", 1), ("user", 2))}
    chunks = full.model_copy(update={"embeddings": kinds})
    straight, build = trained(group, full), BatchBuilder(BASE, TASKS)
    path = save_checkpoint(tmp_path, "v1", straight.state(), {})
    resumed = Teacher(chunks, BASE, TASKS, SEED, group=group)
    resumed.load_state(fitted_teacher(open_checkpoint(path).tensors, made(full, BASE), made(chunks, BASE)))
    for n in range(4):
        one, other = (teacher.train_step(build(rows(50 + n))).logits for teacher in (straight, resumed))
        assert np.array_equal(one, other)
    before, after = (teacher.tables.copies() for teacher in (straight, resumed))
    for name in ("ad/weight", "ad/accumulator", "user/weight", "user/accumulator"):
        assert torch.equal(before[name].view_as(after[name]), after[name])
    assert after["user/weight"].shape == (60, 4)
