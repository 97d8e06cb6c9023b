"""Checkpoints and snapshots that a bad disk, or somebody, has damaged: the run goes on and ends as if nothing was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exfm.snapshots.checkpoint import checkpoint_names
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from tests.support.pipelines.small_runs import Finished, assert_same_run, slow_commits, small, stop_after, to_the_end

pytestmark = pytest.mark.broker

STREAM: dict[str, Any] = {"source__impressions": 2400, "pace__block_rows": 256, "teacher__batch_rows": 128}


def config_of(servers: str):
    config = small(servers, **STREAM)
    students = tuple(s.model_copy(update={"checkpoint_every_rows": 150}) for s in config.students)
    return config.model_copy(update={"students": students})


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("pipelines.live.rules.restarts.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory) -> Finished:
    return to_the_end(config_of(broker.bootstrap_servers), tmp_path_factory.mktemp("undisturbed") / "run")


def truncate(path: Path) -> None:
    file = path / "tensors.bin"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray((path / "tensors.bin").read_bytes())
    data[len(data) // 3] ^= 16
    (path / "tensors.bin").write_bytes(data)


def no_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def empty_manifest(path: Path) -> None:
    (path / "manifest.json").write_bytes(b"")


def another_config(path: Path) -> None:
    """A whole checkpoint, of a run that was configured otherwise."""
    from exfm.snapshots.checkpoint import load_checkpoint, save_checkpoint

    stored = load_checkpoint(path)
    elsewhere = save_checkpoint(
        path.parent / ".elsewhere", path.name, stored.tensors, stored.meta | {"config_hash": "another"}
    )
    for file in elsewhere.iterdir():
        file.replace(path / file.name)


ROUNDS = [
    (700, {"teacher": truncate, "student-feed": empty_manifest, "student-brand": flip}),
    (1500, {"teacher": no_manifest, "student-clicks": another_config, "student-brand": truncate, "snapshots": flip}),
    (2100, {"teacher": another_config, "student-feed": no_manifest, "snapshots": empty_manifest, "served": truncate}),
]


def damage(run_dir: RunDir, what: str, how) -> list[str]:
    """The newest checkpoint of a worker, or every snapshot of the teacher, or the newest export of a student."""
    root = run_dir.checkpoints(what)
    if what in ("snapshots", "served"):
        root = run_dir.snapshots if what == "snapshots" else run_dir.served("feed")
    chosen = checkpoint_names(root) if what == "snapshots" else checkpoint_names(root)[-1:]
    assert chosen, what
    for name in chosen:
        how(root / name)
    return chosen


@pytest.mark.check
def test_whatever_is_damaged_the_run_goes_on_from_what_verifies_and_ends_the_same(undisturbed, broker, tmp_path):
    config, run_dir = config_of(broker.bootstrap_servers), RunDir(tmp_path / "run")
    notes: set[str] = set()

    def listen(status: RunStatus) -> None:
        notes.update(w.report.note for w in status.workers.values() if w.report and w.report.note)

    for rows, damages in ROUNDS:
        stop = stop_after(rows)
        with slow_commits():
            status, _ = run(
                config,
                run_dir,
                local=True,
                until_end=True,
                watch=lambda status, stop=stop: (listen(status), stop(status)),
            )
        assert status.state is RunState.STOPPED
        for what, how in damages.items():
            damage(run_dir, what, how)
    assert_same_run(to_the_end(config, tmp_path / "run", watch=listen), undisturbed)

    told = " ".join(notes)
    for words in ("is truncated", "was altered", "no manifest.json", "damaged manifest.json", "under config another"):
        assert words in told, words
    for root in (run_dir.checkpoints("teacher"), run_dir.checkpoints("student-brand"), run_dir.snapshots):
        assert list(root.glob(".damaged-*")), root


@pytest.mark.slow
def test_with_no_checkpoint_left_the_run_fails_with_words_that_say_what_to_do(undisturbed, broker, tmp_path):
    config, run_dir = config_of(broker.bootstrap_servers), RunDir(tmp_path / "run")
    with slow_commits():
        status, _ = run(config, run_dir, local=True, until_end=True, watch=stop_after(700))
    assert status.state is RunState.STOPPED
    root = run_dir.checkpoints("teacher")
    for name in checkpoint_names(root):
        truncate(root / name)
    status, _ = run(config, run_dir, local=True, until_end=True)
    assert status.state is RunState.FAILED
    assert status.reason is not None
    assert status.reason.startswith("teacher: ")
    for words in ("none of the 2 checkpoints", "is truncated", f"delete {root}"):
        assert words in status.reason
    assert json.loads(run_dir.status.read_text())["state"] == "failed"

    # What it says to do is done: the teacher learns the stream from its beginning, and everything ends the same.
    for path in sorted(root.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    root.rmdir()
    assert_same_run(to_the_end(config, tmp_path / "run"), undisturbed)
