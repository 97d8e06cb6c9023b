"""A teacher that publishes its tables in few bits: what scores, live and in a replay, are the rounded tables."""

from __future__ import annotations

import numpy as np
import pytest

from exfm.snapshots.checkpoint import checkpoint_names, load_checkpoint
from pipelines.lab.logits.teachers import lockstep_logits
from pipelines.lab.replay.settings import Spec
from pipelines.lab.spec.arms import ArmSpec
from tests.support.pipelines.replay_workspaces import AsItIs
from tests.support.pipelines.small_runs import assert_replays, finished_once, small

pytestmark = pytest.mark.broker

BITS = {"source__impressions": 4000, "teacher__publish_bits": 4}


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory):
    return finished_once(small, broker.bootstrap_servers, tmp_path_factory.mktemp("bits") / "run", **BITS)


def taught(config, finished, folder) -> np.ndarray:
    """The logits of a teacher that this config trains over the rows of the run."""
    workspace = AsItIs(Spec(config="-", seeds=(3,), arms={"none": ArmSpec()}), config, folder, finished.run_dir)
    model, features = config.teacher.model, config.teacher_features
    given = config, features, model, workspace.rows(3).table
    return lockstep_logits(*given, behinds=(0,), advance=lambda done: None)[0].logits


def test_the_logged_logits_are_those_of_the_rounded_tables_to_the_bit(finished, tmp_path):
    config, lake = finished.config, finished.lake
    logged = np.stack([lake[f"teacher_logit_{task}"].to_numpy() for task in config.tasks], axis=1)
    assert np.array_equal(taught(config, finished, tmp_path / "bits"), logged, equal_nan=True)
    whole = config.model_copy(update={"teacher": config.teacher.model_copy(update={"publish_bits": None})})
    unrounded = taught(whole, finished, tmp_path / "whole")
    scored = np.isfinite(logged)
    assert (np.isfinite(unrounded) == scored).all()
    assert 0 < np.abs(unrounded - logged)[scored].max() < 0.5


def test_the_students_that_learned_from_them_are_retrained_to_the_same_bits(finished):
    assert_replays(finished.run_dir.root)


def test_snapshots_are_packed_and_checkpoints_whole(finished):
    name = checkpoint_names(finished.run_dir.snapshots)[-1]
    snapshot = load_checkpoint(finished.run_dir.snapshots / name).tensors
    checkpoint, _ = finished.checkpoint("teacher")
    tables = {key for key in checkpoint if key.startswith("table/") and key.endswith("/weight")}
    assert {key for key in snapshot if key.startswith("table/")} == {f"{key}:4bit" for key in tables}
    rows = snapshot["table/user_id/weight:4bit"]
    assert rows.shape == (1000, 4 + 8 // 2)
    assert len(checkpoint["table/user_id/weight"]) == 1000 * 8 * 4
