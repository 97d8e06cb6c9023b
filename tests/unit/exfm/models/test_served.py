"""What is served is the student without what only training needs."""

import json

import numpy as np
import pytest
import torch

from exfm.distillation.arm import Arm
from exfm.errors import ModelError
from exfm.interactions.dcn import CrossConfig
from exfm.interactions.registry import TrunkConfig
from exfm.models.served import VersionScorer, check_parity, export_student, load_served, save_served, served_of
from exfm.snapshots import checkpoint
from tests.support.models.arm_costs import EVERY_ARM, flops_per_example
from tests.support.models.students import ARMS, FEATURES, TASKS, stream, student

TRUNKS = (
    TrunkConfig(mlp=(16, 8), bottom=(8,)),
    TrunkConfig(name="dcn", mlp=(16, 8), cross=CrossConfig(rank=4)),
    TrunkConfig(name="mlp", mlp=(16, 8)),
)


@pytest.fixture(params=ARMS)
def trained(request):
    one = student(request.param)
    for batch in stream(1_500):
        one.train_step(batch)
    return one


def test_the_export_predicts_what_the_student_does(trained):
    batch = stream(500, seed=3, batch_rows=500)[0]
    assert check_parity(trained, trained.export(), batch) <= 1e-6


def shapes(served):
    return {name: tuple(p.shape) for name, p in served.named_parameters()}


@pytest.mark.parametrize("trunk", TRUNKS, ids=lambda trunk: trunk.name)
@pytest.mark.parametrize("arm", EVERY_ARM)
def test_it_has_the_parameters_of_a_student_that_never_had_a_teacher(arm, trunk):
    """… and its FLOPs: what distillation adds, it adds to training (ExFM, arXiv 2502.17494)."""
    batch = stream(64, batch_rows=64)[0]
    one, twin = (student(arm_of=of, trunk=trunk) for of in (EVERY_ARM[arm], Arm(kind="none")))
    in_training, of_twin = (sum(p.numel() for p in each.net.parameters()) for each in (one, twin))
    assert (in_training > of_twin) == (one.cfg.arm.kind == "auxiliary_head")
    one.train_step(batch), twin.train_step(batch)
    served, as_if_never = one.export(), twin.export()
    assert shapes(served) == shapes(as_if_never)
    assert served.parameter_count == as_if_never.parameter_count
    assert flops_per_example(served, batch) == flops_per_example(as_if_never, batch) > 0


def test_flops_are_those_of_the_products_of_matrices():
    served = student(trunk=TrunkConfig(name="mlp", mlp=(16, 8))).export()
    inputs, tasks = 3 * 4 + 2, len(TASKS)
    fused = 2 * (inputs * 16 + 16 * 8 + 8 * tasks)
    assert flops_per_example(served, stream(64, batch_rows=64)[0]) == fused


def test_an_export_stays_as_it_was_when_the_student_learns_on(trained):
    batch = stream(500, seed=3, batch_rows=500)[0]
    served = export_student(trained)
    before = served.score(batch)
    trained.train_step(batch)
    assert np.array_equal(served.score(batch), before)


def test_an_export_that_differs_is_refused_with_the_difference():
    one = student(wide=False)
    batch = stream(500, seed=3, batch_rows=500)[0]
    served = one.export()
    with torch.no_grad():
        served.serving.bias[0] += 0.01
    with pytest.raises(ModelError, match=r"by 0\.01.*1e-06"):
        check_parity(one, served, batch)
    with torch.no_grad():
        served.serving.bias[0] = float("nan")
    with pytest.raises(ModelError, match="nan"):
        check_parity(one, served, batch)


def test_what_was_saved_serves_the_same_bits(trained, tmp_path):
    batch = stream(500, seed=3, batch_rows=500)[0]
    served = trained.export()
    path = save_served(served, tmp_path, "v1")
    again = load_served(path)
    assert np.array_equal(again.score(batch), served.score(batch))
    assert (again.features, again.tasks) == (FEATURES, TASKS)
    assert not again.training
    assert json.loads((path / "manifest.json").read_text())["kind"] == "served_student"


def test_a_checkpoint_is_not_mistaken_for_an_export(tmp_path):
    path = checkpoint.save_checkpoint(tmp_path, "c1", student().state(), {})
    with pytest.raises(ModelError, match="is a checkpoint"):
        load_served(path)


def test_exporting_leaves_the_global_generator_alone():
    one = student()
    before = torch.random.get_rng_state()
    one.export()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_version_of_the_same_shape_is_another_students_tensors_and_nothing_else(trained, tmp_path):
    batch = stream(500, seed=3, batch_rows=500)[0]
    root, served = tmp_path / "served", export_student(trained)
    before, path = served.score(batch).copy(), save_served(served, root, "v1")
    other = served_of({name: tensor + 1 for name, tensor in served.state_dict().items()}, served.meta)
    meant, again = other.score(batch), load_served(save_served(other, root, "v2"), like=served)
    assert np.array_equal(again.score(batch), meant, equal_nan=True)
    assert np.array_equal(served.score(batch), before, equal_nan=True)
    assert again.features is served.features
    mine, theirs = ({t.data_ptr() for t in each.state_dict().values() if t.numel()} for each in (served, again))
    assert not mine & theirs
    assert np.array_equal(load_served(path, like=again).score(batch), before, equal_nan=True)


def test_on_the_batches_of_a_student_in_training_a_version_scores_the_same_bits(trained):
    served, batches = trained.export(), stream(400, seed=3)
    scorer = VersionScorer(served)
    for batch in batches:
        trained.train_step(batch)
        assert np.array_equal(scorer.score(batch), served.score(batch))
    assert not np.array_equal(trained.score(batches[0]), served.score(batches[0]))
