"""A teacher whose checkpoints and snapshots hold what changed: what scores, and what a start resumes, is the same to
the bit as where they are whole, and a base that is lost is made up for."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from exfm.models.scorer import snapshot_of
from exfm.snapshots.checkpoint import checkpoint_names, lineage_of, load_checkpoint
from pipelines.lab.logits.kept import keep
from pipelines.live.workers.teacher import worker as teacher_worker
from tests.support.pipelines.small_runs import finished_once, small, to_the_end

pytestmark = pytest.mark.broker

LONG = {"source__impressions": 6000, "teacher__model__wide": True}
POLICIES = ("one_shot", "consecutive", "intermittent")


def a_run(broker, folder, **settings):
    return finished_once(small, broker.bootstrap_servers, folder / "run", **LONG, **settings)


def logits(finished) -> np.ndarray:
    lake = finished.lake
    return np.stack([lake[f"teacher_logit_{task}"].to_numpy() for task in finished.config.tasks], axis=1)


@pytest.fixture(scope="module")
def whole(broker, tmp_path_factory):
    return a_run(broker, tmp_path_factory.mktemp("whole"), teacher__saves="whole")


@pytest.mark.parametrize(("policy", "bits"), [(policy, None) for policy in POLICIES] + [("intermittent", 8)])
def test_every_policy_scores_as_whole_snapshots_do(broker, whole, tmp_path, policy, bits):
    run = a_run(broker, tmp_path, teacher__saves=policy, teacher__publish_bits=bits)
    folders = [run.run_dir.snapshots, run.run_dir.checkpoints("teacher")]
    for folder in folders:
        assert any(len(lineage_of(folder / name)) > 1 for name in checkpoint_names(folder))
    if bits is None:
        assert np.array_equal(logits(run), logits(whole), equal_nan=True)
        for folder, of in zip(folders, [whole.run_dir.snapshots, whole.run_dir.checkpoints("teacher")], strict=True):
            name = checkpoint_names(of)[-1]
            here, there = load_checkpoint(folder / name).tensors, load_checkpoint(of / name).tensors
            assert here.keys() == there.keys()
            assert all(np.array_equal(here[key].numpy(), there[key].numpy(), equal_nan=True) for key in there)
    else:
        assert np.isfinite(logits(run)).sum() == np.isfinite(logits(whole)).sum()


def test_a_snapshot_whose_base_is_lost_is_written_whole(broker, whole, tmp_path, monkeypatch):
    lost: list[str] = []
    written = teacher_worker.SnapshotPublisher.write

    def write(self, version, tensors, meta, *, parent=None, **more):
        if parent is not None and not lost and version > 6:
            lost.append(parent)
            shutil.rmtree(self._folder / parent)
        written(self, version, tensors, meta, parent=parent, **more)

    monkeypatch.setattr(teacher_worker.SnapshotPublisher, "write", write)
    config = small(broker.bootstrap_servers, **LONG, teacher__saves="one_shot")
    run = to_the_end(config, tmp_path / "run")
    assert lost
    assert np.array_equal(logits(run), logits(whole), equal_nan=True)
    last, checkpoint = (folder / checkpoint_names(folder)[-1] for folder in folders_of(run))
    expected = snapshot_of(load_checkpoint(checkpoint).tensors)
    found = load_checkpoint(last).tensors
    assert all(np.array_equal(found[key].numpy(), expected[key].numpy(), equal_nan=True) for key in expected)


def folders_of(run):
    return run.run_dir.snapshots, run.run_dir.checkpoints("teacher")


def test_a_snapshot_that_is_kept_keeps_what_it_holds_the_changes_since(broker, tmp_path):
    run = a_run(broker, tmp_path, teacher__saves="consecutive")
    names = checkpoint_names(run.run_dir.snapshots)
    source = max((run.run_dir.snapshots / name for name in names), key=lambda path: len(lineage_of(path)))
    expected = load_checkpoint(source).tensors
    assert keep(source, tmp_path / "kept" / source.name)
    shutil.rmtree(run.run_dir.snapshots)
    found = load_checkpoint(tmp_path / "kept" / source.name).tensors
    assert len(lineage_of(tmp_path / "kept" / source.name)) > 2
    assert all(np.array_equal(found[key].numpy(), expected[key].numpy(), equal_nan=True) for key in expected)
