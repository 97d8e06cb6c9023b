"""A replay of a run that goes on: what it needs is kept while it is needed, and what it found is found again."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from exfm.snapshots.checkpoint import checkpoint_names, prune_checkpoints, save_checkpoint
from exfm.snapshots.manifest import read_manifest
from pipelines.cli import console as cli
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.replay.load import load_run
from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.replay.run import Runner
from pipelines.lab.replay.workspace import Workspace
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.vacuum import vacuum_table
from streaming.lake.housekeeping import Housework, expire_rows, retention_floor
from streaming.lake.readers import Readers
from streaming.lake.settings import LakeSettings
from tests.support.pipelines.small_runs import SNAPSHOTS, finished_once, small

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory):
    return finished_once(
        small, broker.bootstrap_servers, tmp_path_factory.mktemp("pins") / "run", **SNAPSHOTS, teacher__saves="whole"
    )


@pytest.fixture
def living(finished, tmp_path) -> RunDir:
    """A copy of the run, that a test may delete from; `feed` has its oldest checkpoint alone."""
    shutil.copytree(finished.run_dir.root, tmp_path / "run", ignore=shutil.ignore_patterns("broker", "mlflow*"))
    saved = RunDir(tmp_path / "run").checkpoints("student-feed")
    for name in checkpoint_names(saved)[1:]:
        shutil.rmtree(saved / name)
    return RunDir(tmp_path / "run")


def delete_old(run: RunDir) -> Housework:
    """All that the run may delete: rows up to the readers' positions, all but the newest snapshot and checkpoints."""
    done, settings = Housework(), LakeSettings(retention_days=1e-9, vacuum_after_s=0.0)
    held = retention_floor(Readers(run.readers), settings, now_s=time.time())
    expire_rows(TableFiles(run.lake), settings, done, held, now_s=time.time())
    vacuum_table(run.lake, 0.0)
    prune_checkpoints(run.snapshots, 1)
    save_checkpoint(run.checkpoints("student-feed"), "v99999999", {}, {"lake_seq": 1})  # the newest, so far
    prune_checkpoints(run.checkpoints("student-feed"), 1)
    return done


def arguments(run: RunDir, out: Path) -> list[str]:
    second = read_manifest(run.snapshots / checkpoint_names(run.snapshots)[1])["meta"]["lake_seq"]
    return [
        *("replay", "--run-dir", str(run.root), "--students", "feed", "--from", str(second + 1), "--out", str(out)),
        *("--arm", f"warm: starts_from={run.root}:feed", "--condition", "old: stale_snapshots=1", "--jobs", "1"),
        "--json",
    ]


def replay(capsys, words: list[str]):
    """The exit code, the report, and what stands on stderr."""
    code = 0
    try:
        cli.main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, ReplayReport.model_validate_json(out) if out else None, err


def told(report):
    """NE and gain of every arm under every condition."""
    return [cell for cell in report.cells if cell.metric in ("ne", "gain")]


@pytest.fixture
def deleted(living, monkeypatch):
    """The run deletes what it may, whenever a replay has found what it needs; what it deleted."""
    done, settle = [], Runner.settle

    def at_once(self):
        done.append(delete_old(living))
        settle(self)

    monkeypatch.setattr(Runner, "settle", at_once)
    return done


@pytest.mark.check
def test_what_is_needed_stays_while_it_is_needed_and_a_day_later_the_same_command_means_the_same(
    living, tmp_path, capsys, request
):
    (early,) = checkpoint_names(living.checkpoints("student-feed"))
    words = arguments(living, tmp_path / "undisturbed")
    code, before, err = replay(capsys, words)
    assert code == 0, err
    deleted = request.getfixturevalue("deleted")
    words[words.index("--out") + 1] = str(tmp_path / "out")
    code, report, err = replay(capsys, words)
    assert code == 0, err
    assert told(report) == told(before)
    assert deleted[0].held_by.startswith("`replay-out-")
    assert len(checkpoint_names(living.snapshots)) == 1
    assert early not in checkpoint_names(living.checkpoints("student-feed"))
    assert not [reader for reader in Readers(living.readers).all() if reader.name.startswith("replay")]
    assert not (tmp_path / "out" / "kept" / "snapshots").exists()  # the disk has it back
    assert json.loads((tmp_path / "out" / "starts.json").read_text()) == {f"{living.root}:feed": early}

    code, again, err = replay(capsys, [*words, "--set", "segments={cheap: bid < 1}"])
    assert code == 0, err
    assert deleted[1].deleted_rows > 0
    assert told(again) == told(before)


def test_what_was_deleted_before_is_named_with_its_rows(living, tmp_path, capsys):
    words = arguments(living, tmp_path / "out")
    delete_old(living)
    code, _, err = replay(capsys, words)
    assert code == 2
    assert re.search(r"rows lake_seq [\d,]+ to [\d,]+ were deleted \(lake.retention_days\)", err), err


def test_a_snapshot_that_was_deleted_after_it_was_found_is_named_with_the_rows_that_it_scores(living, tmp_path, capsys):
    """Someone emptied the folder of what is kept, between two starts."""
    words = arguments(living, tmp_path / "out")
    since = words[words.index("--from") + 1]
    spec, config = load_run(living, [], ["old: stale_snapshots=1"], students=["feed"], since=since)
    workspace = Workspace(spec, config, tmp_path / "out", living)
    there = workspace.snapshots
    assert [s.path.parent for s in there] == [tmp_path / "out" / "kept" / "snapshots"] * len(there)
    shutil.rmtree(tmp_path / "out" / "kept")
    prune_checkpoints(living.snapshots, 1)
    code, _, err = replay(capsys, words)
    assert code == 2
    named = rf"snapshot {there[0].path.name} of .* scores the rows lake_seq [\d,]+ to [\d,]+, was deleted since"
    assert re.search(named, err), err
