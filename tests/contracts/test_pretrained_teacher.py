"""A run whose teacher begins as one that was trained before: honest from the first row that it may score."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits.pretrain import pretrain
from pipelines.lab.logits.teachers import lockstep_logits, versions_of
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from streaming.errors import BadInput
from tests.support.pipelines.small_runs import (
    assert_learned_the_lake,
    assert_replays,
    assert_same_run,
    finished_once,
    slow_commits,
    small,
    stop_after,
    to_the_end,
)

pytestmark = pytest.mark.broker

STREAM = {"source__impressions": 4000}


@pytest.fixture(scope="module")
def history(broker, tmp_path_factory):
    """A finished run, and a teacher that has learned the first third of its lake."""
    root = tmp_path_factory.mktemp("history")
    finished = finished_once(small, broker.bootstrap_servers, root / "run", **STREAM)
    pretrain(finished.config, root / "run", root / "teacher", limit=1500, advance=lambda at: None)
    return finished, root / "teacher"


def begun(broker, teacher, **changes):
    """The same stream again, with a teacher that begins as that one."""
    settings = small(broker.bootstrap_servers, **STREAM, **changes).model_dump(mode="json")
    settings["teacher"]["init_from"] = str(teacher)
    return parse(settings)


@pytest.fixture(scope="module")
def warm(broker, history, tmp_path_factory):
    return to_the_end(begun(broker, history[1]), tmp_path_factory.mktemp("warm") / "run")


def logged(finished):
    return np.stack([finished.lake[f"teacher_logit_{task}"].to_numpy() for task in finished.config.tasks], axis=1)


def test_it_scores_from_the_first_row_that_its_history_cannot_hold(warm, history):
    upto = warm.config.teacher.init_from.learned_upto_ms
    times, scored = warm.lake["event_time_ms"].to_numpy(), np.isfinite(logged(warm)).any(axis=1)
    assert upto == history[0].lake["event_time_ms"].to_numpy()[:1500].max()
    assert not scored[times <= upto].any()
    assert scored[times > upto].all()
    versions = warm.lake["teacher_version"].to_pylist()
    assert versions[0] == 0
    assert None not in versions
    cold = np.isfinite(logged(history[0])).any(axis=1)
    first = 2 * 1024
    assert not cold[:first].any()
    assert scored[:first].sum() > 100
    assert_learned_the_lake(warm)
    assert_replays(warm.run_dir.root)


def test_its_first_snapshot_is_the_teacher_that_it_began_as(broker, history, tmp_path):
    """Before it has learned a row: the weights to the bit."""
    config = begun(broker, history[1], teacher__keep_snapshots=50)
    finished = to_the_end(config, tmp_path / "run")
    first = load_checkpoint(finished.run_dir.snapshots / "v00000000").tensors
    there = load_checkpoint(config.teacher.init_from.checkpoint).tensors
    assert first
    assert all(np.array_equal(first[name].numpy(), there[name].numpy()) for name in first)


def test_a_replay_makes_the_same_logits_and_versions(warm):
    config = warm.config
    given = config, config.teacher_features, config.teacher.model, warm.lake
    taught = lockstep_logits(*given, behinds=(0,), advance=lambda done: None)[0].logits
    assert np.array_equal(taught, logged(warm), equal_nan=True)
    assert versions_of(warm.lake.num_rows, config).to_pylist() == warm.lake["teacher_version"].to_pylist()


def test_figures_of_the_teacher_leave_out_rows_that_it_may_have_known(warm):
    newest = latest_checkpoint(warm.run_dir.checkpoints("teacher"))
    tensors = load_checkpoint(newest).tensors
    counts = sum(tensors[f"metrics/ctr/{part}/counts"] for part in ("lifetime", "open"))
    times, labels = warm.lake["event_time_ms"].to_numpy(), warm.lake["label_ctr"]
    newer = times > warm.config.teacher.init_from.learned_upto_ms
    known = labels.is_valid().to_numpy()
    assert 1000 < (known & newer).sum() < known.sum() - 500
    assert counts[0] == (known & newer).sum()
    assert counts[1] == labels.fill_null(0).to_numpy()[newer].sum()


def test_stopped_and_resumed_without_the_folder_it_began_with_it_is_the_same_run(broker, history, warm, tmp_path):
    shutil.copytree(history[1], tmp_path / "teacher")
    config, run_dir = begun(broker, tmp_path / "teacher"), RunDir(tmp_path / "run")
    with slow_commits():
        status, _ = run(config, run_dir, local=True, until_end=True, watch=stop_after(1000))
    assert status.state is RunState.STOPPED, status.reason
    shutil.rmtree(tmp_path / "teacher")
    assert_same_run(to_the_end(config, run_dir.root), warm)


def test_what_is_no_teacher_is_refused_before_anything_starts(broker, history, tmp_path):
    with pytest.raises(BadInput, match=r"teacher.init_from.*no teacher in .*nothing"):
        begun(broker, tmp_path / "nothing")
    with pytest.raises(BadInput, match="does not say what it has learned"):
        begun(broker, history[0].run_dir.checkpoints("teacher") / "v00000005")
    config = begun(broker, history[1], teacher__model__width=16)
    with pytest.raises(BadInput, match=r"init_from .* does not fit"):
        run(config, RunDir(tmp_path / "run"), local=True, until_end=True)
    assert not (tmp_path / "run").exists()


def test_where_the_teacher_lies_decides_nothing_and_what_it_is_does(broker, history, tmp_path):
    shutil.copytree(history[1], tmp_path / "elsewhere")
    one, other = begun(broker, history[1]), begun(broker, tmp_path / "elsewhere")
    cold = one.model_copy(update={"teacher": one.teacher.model_copy(update={"init_from": None})})
    assert one.identity("teacher") == other.identity("teacher") != cold.identity("teacher")
    assert one.identity("student-feed") == cold.identity("student-feed")
