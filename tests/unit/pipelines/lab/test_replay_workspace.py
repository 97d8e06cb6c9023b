"""Where a replay's parts are, and what they are filled with: without training a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exfm.interactions.registry import TrunkConfig
from exfm.snapshots.checkpoint import prune_checkpoints, save_checkpoint
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.data import places_of
from pipelines.lab.logits.starts import start_of
from pipelines.lab.parts import save_part
from pipelines.lab.replay.choice import choose
from pipelines.lab.replay.flops import of_equal_flops, training_flops
from pipelines.lab.replay.load import load
from pipelines.lab.replay.report import serving_of
from pipelines.lab.replay.settings import settings_of
from pipelines.lab.replay.store import requested
from pipelines.lab.replay.stream import twin_logits
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.conditions import Condition
from streaming.errors import BadInput
from tests.support.pipelines.small_sweeps import SWEEP, with_small_stream, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_small_stream(tmp_path_factory.mktemp("sweep"))


def place_of(folder, **changes) -> Workspace:
    spec, config = load(written(folder, **changes), ["rows=600"])
    return Workspace(spec, config, folder / "out", None)


def test_two_starts_of_one_student_with_stored_weights_are_two_parts(folder, tmp_path):
    workspace = place_of(folder)
    run = RunDir(tmp_path / "run")
    save_checkpoint(run.checkpoints("student-feed"), "v00000003", {"w": torch.zeros(1)}, {"lake_seq": 9})
    student = workspace.config.student("feed").model_copy(update={"starts_from": f"{run.root}:feed@v00000003"})
    parts = [requested(workspace, 1, student, Condition(start=start)).path for start in (0.0, 0.5)]
    assert parts[0] != parts[1]


def test_a_twin_that_is_born_late_or_an_arm_with_a_filter_leave_rows_without_logits(folder, tmp_path):
    workspace = place_of(folder)
    student, table = workspace.config.student("feed"), workspace.rows(1).table
    own = places_of(table, workspace.of(1), student)
    twin = tmp_path / "twin.npz"
    learned = np.arange(len(own) - 7, dtype=np.float32)[:, None].repeat(2, axis=1)
    save_part(twin, as_learned=learned, first=7)
    found = twin_logits(workspace, 1, student, twin)(table, 0)[:, workspace.config.tasks.index("ctr")]
    known = np.isfinite(found[own])
    assert not known[:7].any()
    assert np.array_equal(found[own][known], np.flatnonzero(known) - 7)
    bids = student.model_copy(update={"where": "bid > 1"})
    of_both = [twin_logits(workspace, 1, each, twin)(table, 0) for each in (bids, student)]
    assert np.array_equal(*of_both, equal_nan=True)
    pieces = [twin_logits(workspace, 1, student, twin)(table.slice(at, 7), at) for at in range(0, table.num_rows, 7)]
    assert np.array_equal(np.concatenate(pieces), of_both[0], equal_nan=True)


def test_serving_costs_are_those_of_the_arms_own_features(folder):
    more = {"user_x_ad": {"kind": "sparse", "columns": ["user_id", "ad_id"], "rows": 500}}
    arms = {"none": {}, "more": {"features": more}}
    workspace = place_of(folder, arms=arms)
    student = workspace.config.student("feed")
    chosen = {arm: choose(settings_of(workspace.spec, student, arm), {}) for arm in arms}
    found = {arm: serving_of(workspace.of(1, arm), of.setting.student) for arm, of in chosen.items()}
    assert found["more"].parameters - found["none"].parameters >= 500 * student.model.width
    assert found["more"].flops > found["none"].flops


def test_a_student_may_be_given_what_the_teacher_sees(folder):
    arms = {"none": {}, "informed": {"set": {"arm": {"kind": "none"}}, "student": {"features": "teacher"}}}
    workspace = place_of(folder, arms=arms)
    config, student = workspace.config, workspace.config.student("feed")
    own, informed = (settings_of(workspace.spec, student, arm)[0].student for arm in arms)
    seen = set(config.student_features(informed).names)
    assert seen - set(config.student_features(own).names) == set(config.teacher.only)
    assert seen == set(config.teacher_features.names)


def test_a_twin_may_spend_the_training_flops_of_an_arm_and_its_teacher(folder):
    none = {"arm": {"kind": "none"}}
    arms = {
        "none": {"set": none},
        "distils": {"set": {"arm": {"extra_steps": 1}}},
        "equal": {"set": none, "budget": {"arm": "distils"}},
    }
    workspace = place_of(folder, arms=arms)
    fresh, student = workspace.spec.conditions["fresh"], workspace.config.student("feed")
    settings = {arm: settings_of(workspace.spec, student, arm)[0] for arm in arms}
    wanted = training_flops(workspace, fresh, settings["distils"].student, "distils").with_teacher
    equal = of_equal_flops(workspace, settings["equal"])
    flops = training_flops(workspace, fresh, equal.student, "equal")
    assert flops.own == flops.with_teacher == pytest.approx(wanted, rel=0.1)
    assert wanted > 2 * training_flops(workspace, fresh, settings["none"].student, "none").own
    assert equal.student.model.width > student.model.width
    assert equal.tuned["trunk.mlp"][0] / student.model.trunk.mlp[0] == pytest.approx(equal.tuned["width"] / 8, rel=0.3)
    assert of_equal_flops(workspace, settings["none"]) == settings["none"]
    with pytest.raises(BadInput, match="the nearest that `feed` can has"):
        of_equal_flops(workspace, settings["equal"]._replace(student=student_of_one_size(student)))


def student_of_one_size(student):
    """A student whose trunk has no MLP to widen, and whose embeddings are as wide as they may be."""
    trunk = TrunkConfig(name="wukong", options={"layers": 24})
    return student.model_copy(update={"model": student.model.model_copy(update={"trunk": trunk, "width": 64})})


@pytest.mark.parametrize("budget", [{"arm": "nobody"}, {"arm": "single"}, {"arm": "none", "condition": "mild"}])
def test_a_budget_of_what_there_is_not_is_refused(folder, budget):
    with pytest.raises(BadInput, match=r"arms\.single\.budget"):
        place_of(folder, arms=SWEEP["arms"] | {"single": SWEEP["arms"]["single"] | {"budget": budget}})


def test_the_newest_checkpoint_is_looked_up_once(folder, tmp_path):
    """A run that lives saves another one meanwhile; and in the end deletes the one that was asked for."""
    run = RunDir(tmp_path / "run")
    saved, start = run.checkpoints("student-feed"), f"{run.root}:feed"
    save_checkpoint(saved, "v00000003", {"w": torch.zeros(1)}, {"lake_seq": 9})
    arms = {
        "none": {"tune": {"student.starts_from": [None, start]}},
        "warm": {"student": {"starts_from": start}, "tune": {"width": [4, 8]}},
    }
    workspace = place_of(folder, arms=arms)
    save_checkpoint(saved, "v00000004", {"w": torch.zeros(1)}, {"lake_seq": 19})
    student = workspace.config.student("feed")
    tried = [setting.student for arm in arms for setting in settings_of(workspace.spec, student, arm)]
    assert [each.starts_from for each in tried] == [None, *[f"{start}@v00000003"] * 3]
    assert start_of(tried[-1], None) == saved / "v00000003"
    prune_checkpoints(saved, 1)
    with pytest.raises(BadInput, match="there is no checkpoint `v00000003`, or no longer; choose from v00000004"):
        requested(workspace, 1, tried[-1], Condition())
