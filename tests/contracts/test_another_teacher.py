"""Another teacher takes over a run: at one position, nothing lost, and back."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pyarrow.compute as pc
import pytest

from pipelines.core.config.takeovers import takeovers
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits.teachers import lockstep_logits
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.teacher.replace.replacement import Replacement
from pipelines.teacher.replace.takeover import roll_back
from streaming.errors import BadInput
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_replays,
    slow_commits,
    small,
    stop_after,
)

pytestmark = pytest.mark.broker

STOPPED_AT = 1500


def larger(config):
    """The config with a teacher of other sizes, which reads another feature."""
    model = config.teacher.model.model_copy(update={"width": 12, "num_fmb": 6})
    return config.model_copy(update={"teacher": config.teacher.model_copy(update={"model": model, "batch_rows": 256})})


def stopped_run(broker, folder, **changes):
    """A run that was stopped half-way."""
    config = small(broker.bootstrap_servers, **{"pace__block_rows": 512, **changes})
    with slow_commits(0.4):
        status, _ = run(config, RunDir(folder), local=True, until_end=True, watch=stop_after(STOPPED_AT))
    assert status.state is RunState.STOPPED, status.reason
    return config, RunDir(folder)


def trained(config, run_dir, **options):
    """A replacement by the larger teacher, as far as it came, and its outcome."""
    replacement = Replacement(run_dir, config)
    replacement.begin(larger(config), judge_from=0)
    return replacement, replacement.train(live=lambda: False, advance=lambda done: None, **options)


def resumed(config, run_dir):
    said: list[str] = []
    with patch("pipelines.live.loop.conclusion.draw"):
        status, _ = run(config, run_dir, local=True, until_end=True, say=said.append)
    assert status.state is RunState.DONE, status.reason
    return Finished(config, run_dir.root), said


def logged(lake, tasks):
    return np.stack([lake[f"teacher_logit_{task}"].to_numpy() for task in tasks], axis=1)


def taught(config, finished):
    given = config, config.teacher_features, config.teacher.model, finished.lake
    return lockstep_logits(*given, behinds=(0,), advance=lambda done: None)[0].logits


def test_the_new_teacher_scores_from_one_position_on_and_no_row_is_lost(broker, tmp_path):
    config, run_dir = stopped_run(broker, tmp_path / "run")
    _, decided = trained(config, run_dir, untried=True)
    assert decided.promoted
    finished, said = resumed(config, run_dir)
    (entry,) = takeovers(run_dir)
    first = entry["lake_seq"]
    lake = finished.lake
    assert STOPPED_AT < first < lake.num_rows - 1500
    assert any(f"from block {entry['block']}" in text for text in said)
    assert lake["block"].to_pylist()[first] == entry["block"] == lake["block"].to_pylist()[first - 1] + 1
    old, new = taught(config, finished), taught(larger(config), finished)
    assert np.array_equal(logged(lake, config.tasks)[:first], old[:first], equal_nan=True)
    assert np.array_equal(logged(lake, config.tasks)[first:], new[first:], equal_nan=True)
    assert np.isfinite(new[first:]).any(axis=1).sum() > 1000
    assert lake["lake_seq"].to_pylist() == list(range(lake.num_rows))
    assert len(pc.unique(lake["impression_id"])) == 6000
    assert_learned_the_lake(finished)
    assert_replays(run_dir.root)
    assert not run_dir.replacement.exists()


def test_the_former_teacher_comes_back_and_has_missed_nothing(broker, tmp_path):
    config, run_dir = stopped_run(broker, tmp_path / "run")
    trained(config, run_dir, untried=True)
    with slow_commits(0.4):
        status, _ = run(config, run_dir, local=True, until_end=True, watch=stop_after(STOPPED_AT + 1500))
    assert status.state is RunState.STOPPED, status.reason
    roll_back(run_dir, "it was no better")
    finished, _ = resumed(config, run_dir)
    there, back = takeovers(run_dir)
    assert there["lake_seq"] < back["lake_seq"]
    lake = finished.lake
    own = taught(config, finished)
    first, last = there["lake_seq"], back["lake_seq"]
    assert np.array_equal(logged(lake, config.tasks)[last:], own[last:], equal_nan=True)
    assert not np.array_equal(logged(lake, config.tasks)[first:last], own[first:last], equal_nan=True)
    assert_learned_the_lake(finished)
    roll_back(run_dir, "and there again")
    with pytest.raises(BadInput, match="holds a replacement"):
        roll_back(run_dir, "twice")
