"""A teacher's interaction by name: options where they belong, training, scoring, and what a student may have of it."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.interactions.dcn import DCN, CrossConfig, DCNOptions
from exfm.interactions.dlrm import DLRM, DLRMOptions
from exfm.interactions.registry import TrunkConfig
from exfm.interactions.wukong import Wukong
from exfm.models.scorer import TeacherScorer
from exfm.models.served import check_parity
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.models.teacher_net import TeacherNet
from exfm.parallel.group import RankGroup

FEATURES = FeatureSet(
    sparse=[SparseFeature(name="ad", rows=50), SparseFeature(name="user", rows=80, width=8)],
    dense=[DenseFeature(name="price")],
)
TASKS = ("ctr", "cvr")
CROSS = CrossConfig(rank=3, experts=2)
KINDS = {
    "wukong": TeacherConfig(width=4, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,)),
    "dlrm": TeacherConfig(width=4, interaction="dlrm", dlrm=DLRMOptions(bottom=(8,), top=(32, 16)), head=(8,)),
    "dcn": TeacherConfig(width=4, interaction="dcn", dcn=DCNOptions(cross=CROSS, deep=(8,)), head=(8,)),
}
CLASSES = {"wukong": Wukong, "dlrm": DLRM, "dcn": DCN}


def batch(seed, count=64):
    rng = np.random.default_rng(seed)
    ad = rng.integers(0, 30, count)
    columns = {"ad": ad, "user": rng.integers(0, 1000, count), "price": pa.array(rng.random(count), pa.float32())}
    columns |= {f"label_{task}": (rng.random(count) < np.where(ad % 2, 0.8, 0.1)).astype(np.int8) for task in TASKS}
    return BatchBuilder(FEATURES, TASKS)(pa.table(columns))


@pytest.mark.parametrize("kind", KINDS)
def test_every_interaction_trains_scores_and_resumes_bit_for_bit(kind):
    with RankGroup() as group:
        teacher = Teacher(KINDS[kind], FEATURES, TASKS, 0, group=group)
        losses = [teacher.train_step(batch(seed)).loss for seed in range(80)]
        assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:10])
        scorer = TeacherScorer(KINDS[kind], FEATURES, TASKS)
        scorer.load(teacher.snapshot())
        np.testing.assert_allclose(scorer.score(batch(99)), teacher.score(batch(99)), atol=1e-6)
        again = Teacher(KINDS[kind], FEATURES, TASKS, 7, group=group)
        again.load_state(teacher.state())
        for one in (teacher, again):
            one.train_step(batch(61))
        a, b = teacher.state(), again.state()
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_holds_what_was_asked_for(kind):
    net = TeacherNet(KINDS[kind], FEATURES, TASKS, 0)
    assert type(net.trunk) is CLASSES[kind]
    assert {name.split(".")[0] for name, _ in net.named_parameters()} == {"trunk", "heads"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"interaction": "fm"}, "unknown interaction `fm`; choose from wukong, dlrm, dcn, mlp"),
        ({"interaction": "dlrm", "layers": 3}, "`layers` belongs to a teacher whose interaction is `wukong`"),
        ({"interaction": "dcn", "attentive": True}, "`attentive` belongs to .* `wukong`, and this one's is `dcn`"),
        ({"interaction": "dcn", "dlrm": {"top": [8]}}, "`dlrm` belongs to .* `dlrm`, and this one's is `dcn`"),
        ({"dcn": {"deep": [8]}}, "`dcn` belongs to a teacher whose interaction is `dcn`, and this one's is `wukong`"),
        ({"interaction": "dcn", "dcn": {"depth": 8}}, "depth"),
    ],
)
def test_options_of_another_interaction_are_refused(given, message):
    with pytest.raises(ValidationError, match=message):
        TeacherConfig.model_validate(given)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resolved_configuration_is_taken_back(kind):
    assert TeacherConfig.model_validate(KINDS[kind].model_dump(mode="json")) == KINDS[kind]


@pytest.mark.parametrize("cross", [CrossConfig(), CrossConfig(rank=2, experts=2), CrossConfig(structure="parallel")])
def test_a_student_may_have_a_dcn_for_a_trunk(cross):
    cfg = StudentConfig(width=4, trunk=TrunkConfig(name="dcn", mlp=(8,), cross=cross)).without_teacher()
    student = Student(cfg, FEATURES, TASKS, 0)
    losses = [student.train_step(batch(seed)).loss for seed in range(60)]
    assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:10])
    check_parity(student, student.export(), batch(99))


def test_crosses_belong_to_the_dcn_trunk():
    with pytest.raises(ValidationError, match="`cross` belongs to the trunk `dcn`, and this is `dlrm`"):
        TrunkConfig(cross=CrossConfig(layers=3))
