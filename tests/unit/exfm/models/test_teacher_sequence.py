"""A teacher that reads the earlier events of a user."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.features.batch import Batch, BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import EventFeature, SparseFeature
from exfm.interactions.hstu import SequenceModel
from exfm.models.growth.refit import MadeWith, fitted_teacher
from exfm.models.scorer import TeacherScorer, snapshot_of
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.parallel.planning.cost import flops_per_example, parameter_count
from tests.support.models.states import same

AD = SparseFeature(name="ad", rows=20, transform="index")
LENGTH = 3
FEATURES = FeatureSet(
    sparse=[AD], events=[EventFeature(name="seen", items=(AD,), tasks=("ctr",), windows_s=(60.0,), length=LENGTH)]
)
SEQUENCE = SequenceModel(of="user", events=("ad",), length=LENGTH, heads=2, width=8)
CFG = TeacherConfig(width=8, layers=1, num_fmb=2, num_lcb=2, rank=2, mlp=(8,), head=(8,), sequence=SEQUENCE)


@pytest.fixture
def group():
    with RankGroup() as group:
        yield group


def new(group: RankGroup, features: FeatureSet = FEATURES, cfg: TeacherConfig = CFG) -> Teacher:
    return Teacher(cfg, features, ["ctr"], seed=0, group=group)


def batch(seed: int, features: FeatureSet = FEATURES, rows: int = 256) -> Batch:
    """Rows that are clicked where the last event was a click on the same ad."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, rows)
    ads, clicks = rng.integers(0, 4, lengths.sum()), rng.integers(0, 2, lengths.sum())
    offsets = np.append(0, lengths.cumsum())
    own = rng.integers(0, 4, rows)
    last = np.maximum(offsets[1:] - 1, 0)
    label = np.zeros(rows, bool)
    if rows:
        label = (lengths > 0) & (clicks[last] > 0) & (ads[last] == own)
    gaps = np.concatenate([[], *(np.sort(rng.random(b - a))[::-1] * 1e4 for a, b in pairwise(offsets))])
    lists = {"seen_ad": ads, "seen_ctr": clicks, "seen_gap_s": gaps.astype(np.float32)}
    columns = {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in lists.items()}
    return BatchBuilder(features, ["ctr"])(pa.table({"ad": own, "label_ctr": label.astype(np.int8)} | columns))


def loss(teacher: Teacher, data: Batch) -> float:
    z, y = teacher.score(data), data.labels.numpy()
    return float((np.logaddexp(0, z) - z * y).mean())


def test_it_learns_what_only_the_events_tell(group):
    blind = FEATURES.model_copy(update={"events": ()})
    reads, knows_ads = new(group), new(group, blind, CFG.model_copy(update={"sequence": None}))
    for seed in range(250):
        reads.train_step(batch(seed))
        knows_ads.train_step(batch(seed, blind))
    assert loss(reads, batch(999)) < 0.5 * loss(knows_ads, batch(999, blind))


def test_going_on_from_a_state_gives_the_same_bits_as_never_stopping(group):
    teacher, other = new(group), new(group)
    for seed in range(4):
        teacher.train_step(batch(seed))
    other.load_state(teacher.state())
    for each in (teacher, other):
        each.train_step(batch(5))
    assert same(teacher.state(), other.state())


def test_the_scorer_gives_the_teachers_own_logits(group):
    teacher = new(group)
    for seed in range(4):
        teacher.train_step(batch(seed))
    scorer = TeacherScorer(CFG, FEATURES, ["ctr"])
    scorer.load(snapshot_of(teacher.state()))
    np.testing.assert_array_equal(scorer.score(batch(7)), teacher.score(batch(7)))


def test_a_batch_without_rows_is_finite_and_changes_no_table(group):
    teacher = new(group)
    before = {name: held for name, held in teacher.state().items() if name.startswith("events/")}
    assert teacher.train_step(batch(0, rows=0)).finite
    assert same(before, {name: teacher.state()[name] for name in before})


def test_the_tables_of_events_grow_with_those_of_their_items(group):
    teacher = new(group)
    teacher.train_step(batch(0))
    ad = SparseFeature(name="ad", rows=30, transform="index")
    wider = FeatureSet(sparse=[ad], events=[FEATURES.events[0].model_copy(update={"items": (ad,)})])
    was, now = (MadeWith.of(CFG, features, ["ctr"], 0) for features in (FEATURES, wider))
    grown = new(group, wider)
    grown.load_state(fitted_teacher(teacher.state(), was, now))
    np.testing.assert_array_equal(grown.score(batch(3)), teacher.score(batch(3)))


def test_its_cost_counts_the_sequence():
    without = CFG.model_copy(update={"sequence": None}), FEATURES.model_copy(update={"events": ()})
    assert flops_per_example(CFG, FEATURES, 1) > flops_per_example(*without, 1) + 2 * LENGTH * 4 * 8 * 8
    assert parameter_count(CFG, FEATURES, 1).tables == parameter_count(*without, 1).tables + 20 * 8


def test_an_id_that_is_forgotten_is_one_of_the_events_too(group):
    teacher = new(group)
    began = teacher.state()
    for seed in range(3):
        teacher.train_step(batch(seed))
    learned = teacher.state()
    teacher.forget("ad", torch.tensor([3]))
    after = teacher.state()
    for table in ("table/ad", "events/seen_ad"):
        weight, squares = (after[f"{table}/{of}"] for of in ("weight", "accumulator"))
        assert torch.equal(weight[3], began[f"{table}/weight"][3])
        assert not torch.equal(weight[3], learned[f"{table}/weight"][3])
        assert not squares[3].any()
        assert torch.equal(weight[2], learned[f"{table}/weight"][2])
