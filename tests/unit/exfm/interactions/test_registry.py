"""A new interaction is one module and one line of the registry: teachers, students, plans and growth then take it."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from exfm.errors import ConfigError, ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.interactions.interaction import Interaction, InteractionOptions
from exfm.interactions.registry import INTERACTIONS, TrunkConfig
from exfm.models.growth.refit import MadeWith, fitted_teacher
from exfm.models.scorer import TeacherScorer
from exfm.models.served import load_served, save_served
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.parallel.planning.cost import flops_per_example, parameter_count
from exfm.parallel.planning.family import teacher_of_equal_flops
from exfm.randomness import seeded_linear

SPARSE = [SparseFeature(name="ad", rows=50), SparseFeature(name="user", rows=80)]
FEATURES = FeatureSet(sparse=SPARSE, dense=[DenseFeature(name="price")])
TASKS = ("ctr",)


class SumOfEmbeddings(Interaction):
    """h = relu(W Σ_n e_n), C dense features left out."""

    def __init__(self, width, size, generator):
        super().__init__()
        self.W = seeded_linear(width, size, generator, bias=False)
        self.out_width = size

    def forward(self, e_BND, dense_BC):
        return torch.relu(self.W(e_BND.sum(1)))

    def feature_axes(self, inputs):
        return {}


class SumOptions(InteractionOptions):
    size: int = 8

    def build(self, embeddings, width, dense, generator):
        return SumOfEmbeddings(width, self.size, generator)

    def widened(self, times, inputs):
        return SumOptions(size=max(1, round(8 * times)))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(INTERACTIONS, "sum", SumOptions)


def batch(seed, features=FEATURES):
    rng = np.random.default_rng(seed)
    ad = rng.integers(0, 30, 64)
    columns = {"ad": ad, "user": rng.integers(0, 70, 64), "page": ad, "price": pa.array(rng.random(64), pa.float32())}
    return BatchBuilder(features, TASKS)(pa.table(columns | {"label_ctr": (ad % 2).astype(np.int8)}))


@pytest.mark.parametrize(("config", "field"), [(TrunkConfig, "name"), (TeacherConfig, "interaction")])
def test_a_name_that_is_no_text_is_a_mistake_of_the_settings(config, field):
    with pytest.raises(ValidationError, match="valid string"):
        config.model_validate({field: []})


def test_its_settings_are_options_complete_in_a_resolved_configuration_and_checked():
    teacher = TeacherConfig(interaction="sum", width=4)
    assert teacher.model_dump()["options"] == {"size": 8}
    assert TeacherConfig.model_validate(teacher.model_dump(mode="json")) == teacher
    assert TrunkConfig(name="sum").options == {"size": 8}
    for config in (TeacherConfig, TrunkConfig):
        named = "interaction" if config is TeacherConfig else "name"
        with pytest.raises(ValidationError, match="depth"):
            config.model_validate({named: "sum", "options": {"depth": 3}})
        with pytest.raises(ValidationError, match="no options, and was given"):
            config.model_validate({named: "dlrm", "options": {"depth": 3}})


def test_a_teacher_learns_with_it_and_a_scorer_takes_its_snapshot():
    cfg = TeacherConfig(interaction="sum", width=4, options={"size": 16}, head=(8,))
    with RankGroup() as group:
        teacher = Teacher(cfg, FEATURES, TASKS, 0, group=group)
        losses = [teacher.train_step(batch(seed)).loss for seed in range(60)]
        assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
        scorer = TeacherScorer(cfg, FEATURES, TASKS)
        scorer.load(teacher.snapshot())
        np.testing.assert_allclose(scorer.score(batch(99)), teacher.score(batch(99)), atol=1e-6)


def test_a_student_learns_with_it_and_is_served(tmp_path):
    cfg = StudentConfig(width=4, trunk=TrunkConfig(name="sum", options={"size": 6})).without_teacher()
    student = Student(cfg, FEATURES, TASKS, 0)
    losses = [student.train_step(batch(seed)).loss for seed in range(60)]
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
    served = load_served(save_served(student.export(), tmp_path, "v1"))
    np.testing.assert_array_equal(served.score(batch(99)), student.export().score(batch(99)))


def test_its_parameters_and_flops_are_counted_and_it_is_compared_at_equal_flops():
    cfg = TeacherConfig(interaction="sum", width=4, head=())
    assert parameter_count(cfg, FEATURES, 1) == (4 * 8 + 8 + 1, 130 * 4)
    assert flops_per_example(cfg, FEATURES, 1) == 2 * (4 * 8 + 8)
    like = TeacherConfig(width=4, head=(8,))
    other = teacher_of_equal_flops("sum", like, FEATURES, 1)
    assert flops_per_example(other, FEATURES, 1) == pytest.approx(flops_per_example(like, FEATURES, 1), rel=0.05)


def test_its_features_change_where_it_declares_its_axes(monkeypatch):
    cfg = TeacherConfig(interaction="sum", width=4, head=(8,))
    more = FeatureSet(sparse=[*SPARSE, SparseFeature(name="page", rows=30)], dense=FEATURES.dense)
    was, now = (MadeWith.of(cfg, features, TASKS, seed=0) for features in (FEATURES, more))
    with RankGroup() as group:
        teacher = Teacher(cfg, FEATURES, TASKS, 0, group=group)
        for seed in range(3):
            teacher.train_step(batch(seed))
        grown = Teacher(cfg, more, TASKS, 0, group=group)
        grown.load_state(fitted_teacher(teacher.state(), was, now))
        assert torch.equal(grown.state()["dense/trunk.W.weight"], teacher.state()["dense/trunk.W.weight"])
        monkeypatch.delattr(SumOfEmbeddings, "feature_axes")
        with pytest.raises(ModelError, match="SumOfEmbeddings declares no feature_axes"):
            fitted_teacher(teacher.state(), was, now)


def test_what_it_does_not_declare_is_said(monkeypatch):
    monkeypatch.delattr(SumOptions, "widened")
    with pytest.raises(ConfigError, match="SumOptions declares no widened"):
        teacher_of_equal_flops("sum", TeacherConfig(width=4), FEATURES, 1)


@pytest.mark.parametrize("name", ["wukong", "mlp"])
def test_every_registered_interaction_serves_teachers_and_students(name):
    trunk = TrunkConfig(name=name)
    student = Student(StudentConfig(width=4, trunk=trunk).without_teacher(), FEATURES, TASKS, 0)
    assert student.train_step(batch(0)).finite
    with RankGroup() as group:
        assert Teacher(TeacherConfig(interaction=name, width=4), FEATURES, TASKS, 0, group=group).score(batch(0)).shape
