"""What is served is the student without what only training needs."""

import json

import numpy as np
import pytest
import torch

from exfm import checkpoint
from exfm.errors import ModelError
from exfm.serving import check_parity, export_student, load_served, save_served
from tests.unit.exfm.test_student import ARMS, FEATURES, TASKS, stream, student


@pytest.fixture(params=ARMS)
def trained(request):
    one = student(request.param)
    for batch in stream(1_500):
        one.train_step(batch)
    return one


def test_the_export_predicts_what_the_student_does(trained):
    batch = stream(500, seed=3, batch_rows=500)[0]
    assert check_parity(trained, trained.export(), batch) <= 1e-6


def test_it_has_the_parameters_of_a_student_that_never_had_a_teacher(trained):
    names = [name for name, _ in trained.export().named_parameters()]
    twin = student("none").export()
    assert names == [name for name, _ in twin.named_parameters()]
    assert trained.export().parameter_count == twin.parameter_count
    assert not [name for name in names if "auxiliary" in name or "adapt" in name]


def test_an_export_stays_as_it_was_when_the_student_learns_on(trained):
    batch = stream(500, seed=3, batch_rows=500)[0]
    served = export_student(trained)
    before = served.score(batch)
    trained.train_step(batch)
    assert np.array_equal(served.score(batch), before)


def test_an_export_that_differs_is_refused_with_the_difference():
    one = student()
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
    path = checkpoint.save(tmp_path, "c1", student().state(), {})
    with pytest.raises(ModelError, match="is a checkpoint"):
        load_served(path)


def test_exporting_leaves_the_global_generator_alone():
    one = student()
    before = torch.random.get_rng_state()
    one.export()
    assert torch.equal(torch.random.get_rng_state(), before)
