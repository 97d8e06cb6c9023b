import itertools

import pyarrow as pa
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from exfm.distillation.arm import Arm
from exfm.errors import ConfigError
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.interactions.dcn import CrossConfig, DCNOptions
from exfm.interactions.dlrm import DLRMOptions
from exfm.interactions.registry import TrunkConfig
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.models.teacher_net import TeacherNet
from exfm.parallel.planning.cost import flops_per_example, parameter_count, training_flops_per_example
from exfm.parallel.planning.family import family, scaled_teacher, teacher_of_budget, teacher_of_equal_flops
from tests.support.models import students, teachers
from tests.support.models.collections import fused

SPARSE = [SparseFeature(name=f"s{i}", rows=7, transform="index") for i in range(4)]
SPARSE.append(SparseFeature(name="wide", rows=5, width=16, transform="index"))
DENSE = [DenseFeature(name="price"), DenseFeature(name="age")]
PLAIN = FeatureSet(sparse=SPARSE)
FULL = FeatureSet(
    sparse=SPARSE, dense=DENSE, sequence=[SequenceFeature(name="seen", rows=9, length=5, units=2, transform="index")]
)
BASE = TeacherConfig(width=8)
TEACHERS = [
    BASE,
    TeacherConfig(width=8, num_fmb=3, num_lcb=5, rank=2, layers=3, mlp=(), head=()),
    TeacherConfig(width=8, num_fmb=7, num_lcb=2, mlp=(12, 9), attentive=True, dense_units=3, layer_norm=False),
    TeacherConfig(width=8, interaction="dlrm", dlrm=DLRMOptions(bottom=(), top=(11, 5))),
    TeacherConfig(width=8, interaction="dcn"),
    TeacherConfig(width=8, interaction="dcn", dcn=DCNOptions(cross=CrossConfig(rank=3, layers=3), deep=())),
    TeacherConfig(
        width=8,
        interaction="dcn",
        dcn=DCNOptions(cross=CrossConfig(rank=3, experts=2, structure="parallel"), deep=(6,)),
    ),
]


def counted(net, features, rows=3):
    """FLOPs of one example's forward pass through everything but the tables, by torch's own counter. It does not see
    what loops compute, and in double precision there are none."""
    columns = {f.name: [1] * rows for f in features.sparse} | {f.name: [0.5] * rows for f in features.dense}
    columns |= {f.name: pa.array([[1, 2]] * rows) for f in features.sequence}
    batch = BatchBuilder(features, [])(pa.table(columns))
    tables = fused(features, net.units.width, seed=0)
    e = tables.lookup(tables.send(batch)).pooled.double()
    net.double()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        h = net.trunk(net.units(e, batch.sparse), batch.dense.double())
        for head in net.heads.values():
            head(h)
    assert counter.get_total_flops() % rows == 0
    return counter.get_total_flops() // rows


@pytest.mark.parametrize("features", [PLAIN, FULL], ids=["sparse", "all kinds"])
@pytest.mark.parametrize("cfg", TEACHERS, ids=lambda cfg: cfg.interaction)
def test_parameters_and_flops_are_those_that_torch_counts(cfg, features):
    net = TeacherNet(cfg, features, ["ctr", "cvr"], seed=0)
    tables = sum(weight.numel() for weight in fused(features, cfg.width, seed=0).copies("/weight").values())
    dense = sum(p.numel() for p in net.parameters())
    assert parameter_count(cfg, features, 2) == (dense, tables)
    assert flops_per_example(cfg, features, 2) == counted(net, features)


def test_training_costs_three_times_the_forward_pass():
    """Every product of the forward pass has two of its size in the backward one, but for those of what is fixed."""
    net = TeacherNet(TEACHERS[0].model_copy(update={"dense_dtype": "float64"}), FULL, ["ctr"], seed=0).train()
    columns = {f.name: [1] * 3 for f in FULL.sparse} | {f.name: [0.5] * 3 for f in FULL.dense} | {"seen": [[1, 2]] * 3}
    batch, tables = BatchBuilder(FULL, [])(pa.table(columns)), fused(FULL, TEACHERS[0].width, seed=0)
    with FlopCounterMode(display=False) as counter:
        net(tables.lookup(tables.send(batch)).pooled, batch.sparse, batch.dense)[0].sum().backward()
    assert counter.get_total_flops() / 3 == pytest.approx(3 * flops_per_example(TEACHERS[0], FULL, 1), rel=0.02)


class _NoModules:
    """In the place of the counter's record of modules, which knows no `autograd.grad`."""

    parents = ("Global",)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def counted_in_a_step(model, first, batch):
    """FLOPs of learning a row of `batch`, after a first one."""
    model.train_step(first)
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModules()
    with counter:
        model.train_step(batch)
    return counter.get_total_flops() / len(batch)


@pytest.mark.parametrize(
    "arm",
    [Arm(kind="none"), Arm(kind="single_head", extra_steps=2), Arm(kind="auxiliary_head", adapter=True, extra_steps=1)],
    ids=lambda arm: arm.kind,
)
def test_a_students_training_flops_are_those_that_torch_counts_in_its_steps(arm):
    """The formula takes the backward pass for twice the forward one: a little too much, for dense inputs have no
    gradient."""
    student = students.student(arm_of=arm, width=8, trunk=TrunkConfig(mlp=(64, 32), bottom=(16,)))
    expected = training_flops_per_example(student.cfg, students.FEATURES, len(students.TASKS))
    assert expected == pytest.approx(counted_in_a_step(student, *students.stream(512)), rel=0.05)


def test_a_teachers_training_flops_are_those_that_torch_counts_in_its_step():
    teacher = Teacher(teachers.CFG, teachers.FEATURES, teachers.TASKS, seed=1)
    expected = training_flops_per_example(teachers.CFG, teachers.FEATURES, len(teachers.TASKS))
    assert expected == pytest.approx(counted_in_a_step(teacher, teachers.batch(0), teachers.batch(1)), rel=0.05)


def test_the_dial_adds_layers_first_and_widens_then():
    sizes = [(c.layers, c.num_fmb, c.num_lcb, c.rank, c.mlp) for c in family(BASE, range(6)).values()]
    assert sizes == [
        (2, 8, 8, 8, (64,)),
        (4, 8, 8, 8, (64,)),
        (8, 8, 8, 8, (64,)),
        (8, 11, 11, 11, (91,)),
        (8, 16, 16, 16, (128,)),
        (8, 23, 23, 23, (181,)),
    ]


def test_a_step_of_the_dial_costs_about_twice_to_three_times_the_flops():
    flops = [flops_per_example(cfg, FULL, 2) for cfg in family(BASE, range(8)).values()]
    steps = [b / a for a, b in itertools.pairwise(flops)]
    assert all(1.3 < step < 3 for step in steps), steps
    assert parameter_count(scaled_teacher(BASE, 3), FULL, 2).tables == parameter_count(BASE, FULL, 2).tables


@pytest.mark.parametrize("times", [1, 2, 4, 16, 64])
def test_a_budget_is_met_within_the_coarseness_of_whole_sizes(times):
    grown = teacher_of_budget(BASE, times, FULL, 2)
    assert flops_per_example(grown, FULL, 2) / flops_per_example(BASE, FULL, 2) == pytest.approx(times, rel=0.15)
    assert (grown == BASE) == (times == 1)


def test_what_is_no_wukong_or_smaller_than_its_base_is_refused():
    with pytest.raises(ConfigError, match="the base's interaction is `dcn`"):
        scaled_teacher(TeacherConfig(interaction="dcn"), 1)
    with pytest.raises(ConfigError, match="a dial of -1"):
        scaled_teacher(BASE, -1)
    with pytest.raises(ConfigError, match=r"0\.5 × the FLOPs would be a smaller teacher"):
        teacher_of_budget(BASE, 0.5, FULL, 2)


@pytest.mark.parametrize("interaction", ["dlrm", "dcn"])
@pytest.mark.parametrize("dial", [0, 2, 4, 6])
def test_the_others_have_the_same_flops_and_rates(interaction, dial):
    like = scaled_teacher(BASE.model_copy(update={"dense_lr": 0.005}), dial)
    other = teacher_of_equal_flops(interaction, like, FULL, 2)
    assert other.interaction == interaction
    assert flops_per_example(other, FULL, 2) == pytest.approx(flops_per_example(like, FULL, 2), rel=0.05)
    assert (other.width, other.head, other.dense_lr) == (like.width, like.head, 0.005)


def test_a_budget_that_an_interaction_cannot_meet_is_refused_with_both_numbers():
    many = FeatureSet(sparse=[SparseFeature(name=f"s{i}", rows=2) for i in range(200)])
    small = TeacherConfig(width=8, num_fmb=1, num_lcb=1, rank=1, mlp=(), head=(), layers=1)
    with pytest.raises(ConfigError, match=r"a dlrm teacher of 19,\d+ FLOPs .* the nearest has 6\d\d,\d+"):
        teacher_of_equal_flops("dlrm", small, many, 1)
