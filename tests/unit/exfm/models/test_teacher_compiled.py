"""A teacher as machine code: it learns what it learns without to rounding, and the same bits every time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from exfm.errors import ConfigError
from exfm.models import bad_rows, teacher_net
from exfm.models.engine import TeacherEngine
from exfm.models.scorer import TeacherScorer
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.step import LOGIT, LOSS
from tests.support.models.states import same
from tests.support.models.teachers import CFG, FEATURES, TASKS, batch
from tests.support.ranks.rank_jobs import apart, assert_same_bits, job
from tests.support.ranks.spawned_ranks import run

pytestmark = pytest.mark.timeout(1800)  # on a busy machine the compiler takes minutes

COMPILED = CFG.model_copy(update={"compile": True})
REPRESENTED = COMPILED.model_copy(update={"representation": 6})
BF16 = COMPILED.model_copy(update={"precision": "bf16"})
DLRM = TeacherConfig(width=4, interaction="dlrm", head=(8,), compile=True)

compiling = pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++, which is not installed")

AGAIN = """
import json, sys
import torch
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.machine import set_threads
from tests.support.models.teachers import FEATURES, TASKS, batch

set_threads(int(sys.argv[2]))
teacher = Teacher(TeacherConfig.model_validate_json(sys.argv[1]), FEATURES, TASKS, 0)
for step in range(6):
    teacher.train_step(batch(step))
found = {name: tensor.double().sum().item() for name, tensor in teacher.state().items()}
print(json.dumps([found, "torch._inductor.compile_fx" in sys.modules]))
"""


def test_without_a_compiler_nothing_begins(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for made in (lambda: Teacher(COMPILED, FEATURES, TASKS, 0), lambda: TeacherScorer(COMPILED, FEATURES, TASKS)):
        with pytest.raises(ConfigError, match=r"teacher.model.compile needs a C\+\+ compiler"):
            made()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The code of this module's teachers is made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def group(cache):
    with RankGroup() as group:
        yield group


def trained(group, cfg, steps, state=None):
    teacher = Teacher(cfg, FEATURES, TASKS, 0, group=group)
    if state is not None:
        teacher.load_state(state)
    for step in steps:
        assert teacher.train_step(batch(step)).finite
    return teacher


def test_the_gradients_that_code_makes_are_taken_as_they_are(monkeypatch):
    """Not copied."""
    made = []

    def run(function, *_, **__):
        def code(tensors):
            with torch.enable_grad():
                found = function(*tensors)
            made.extend(tensor.data_ptr() for tensor in found)
            return found

        return code

    monkeypatch.setattr(teacher_net, "machine_code", run)
    with RankGroup() as group:
        teacher = trained(group, COMPILED, range(2))
    gradients = [p.grad for p in teacher.dense.values() if p.grad is not None]
    assert len(gradients) > 10
    assert {gradient.data_ptr() for gradient in gradients} <= set(made)


@pytest.mark.slow
@compiling
@pytest.mark.parametrize("cfg", [COMPILED, DLRM, REPRESENTED], ids=["wukong", "dlrm", "with a representation"])
def test_it_learns_what_is_learned_without_whatever_the_number_of_rows(group, cfg):
    without = cfg.model_copy(update={"compile": False})
    with_code, without = (Teacher(each, FEATURES, TASKS, 0, group=group) for each in (cfg, without))
    for step, count in enumerate((64, 1, 300, 2, 0, 77, 1000)):
        rows = batch(step, count=count)
        a, b = with_code.train_step(rows), without.train_step(rows)
        np.testing.assert_allclose(a.logits, b.logits, atol=1e-4)
        assert a.finite
        np.testing.assert_allclose(with_code.score(rows), without.score(rows), atol=1e-4)
    assert not same(with_code.state(), without.state()), "it is another code"


@pytest.mark.slow
@compiling
@pytest.mark.parametrize("cfg", [COMPILED, BF16], ids=["fp32", "bf16"])
def test_two_runs_a_resumed_one_and_one_in_another_process_are_the_same_to_the_bit(group, cfg):
    straight = trained(group, cfg, range(6)).state()
    half = trained(group, cfg, range(3)).state()
    assert same(straight, trained(group, cfg, range(6)).state())
    assert same(straight, trained(group, cfg, range(3, 6), half).state())
    told = [sys.executable, "-W", "ignore", "-c", AGAIN, cfg.model_dump_json(), str(torch.get_num_threads())]
    found, made = json.loads(subprocess.run(told, capture_output=True, check=True, text=True).stdout.splitlines()[-1])
    assert found == {name: tensor.double().sum().item() for name, tensor in straight.items()}
    assert not made, "the code was on the disk"


@pytest.mark.slow
@compiling
def test_what_scores_says_what_the_teacher_says_and_needs_no_compiler_any_more(group, monkeypatch):
    teacher = trained(group, COMPILED, range(3))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    scorer = TeacherScorer(COMPILED, FEATURES, TASKS)
    scorer.load(teacher.snapshot())
    np.testing.assert_array_equal(scorer.score(batch(9)), teacher.score(batch(9)))


@pytest.mark.slow
@compiling
@pytest.mark.parametrize(("name", "value", "reason"), [("dense", 3e38, LOGIT), ("weights", float("inf"), LOSS)])
def test_rows_that_spoil_a_step_are_left_out_as_if_they_had_not_come(group, monkeypatch, name, value, reason):
    monkeypatch.setattr(bad_rows, "LARGEST_INPUT", float("inf"))
    one, other = (TeacherEngine(trained(group, COMPILED, range(3))) for _ in range(2))
    whole = batch(7)
    changed = getattr(whole, name).clone()
    changed[11] = value
    (result,) = one.step(replace(whole, **{name: changed})).results.values()
    assert result.left_out.tolist() == [0] * 11 + [reason] + [0] * 52
    other.step(whole.only(torch.arange(64) != 11))
    assert same(one.state(), other.state())


@pytest.mark.slow
@compiling
def test_a_parameter_that_is_no_number_shows_in_every_logit_and_nothing_is_learned(group):
    teacher = trained(group, COMPILED, range(1))
    teacher.dense["trunk.layers.0.fm_mlp.0.bias"].data.fill_(float("nan"))
    before = teacher.state()
    result = teacher.train_step(batch(1))
    assert not result.finite
    assert np.isnan(result.logits).all()
    after = teacher.state()
    assert all(np.array_equal(before[name].numpy(), after[name].numpy(), equal_nan=True) for name in before)


@pytest.mark.slow
@compiling
def test_two_ranks_learn_what_one_learns_and_the_same_bits_again(cache, tmp_path):
    """With sequences, statistics, and ranks that have no rows."""

    def compiled(name, ranks):
        found = job(name, ranks, "row_wise" if ranks > 1 else "table_wise", "row_wise_adagrad", double=False)
        return found | {"cfg": found["cfg"] | {"compile": True}}

    run([compiled("one", 1), compiled("two", 2), compiled("again", 2)], tmp_path, timeout_s=900)
    assert apart(tmp_path, "two", "one") <= 1e-3
    assert_same_bits(tmp_path, "again", "two")
