"""An id that a run forgets: every model does at a recorded position, and a retraining does there, too."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import patch

import pytest

from pipelines.core.run_dir.forgotten import ask_to_forget, forgotten
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.verify.run import verify
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.teacher.replace.replacement import Replacement
from streaming.lake.reader import LakeReader
from tests.support.pipelines.small_runs import assert_replays, slow_commits, small, stop_after

pytestmark = pytest.mark.broker

FURTHER = {"name": "large", "batch_rows": 256, "model": {"width": 12, "num_fmb": 6, "num_lcb": 4, "rank": 4}}


@pytest.mark.timeout(900)
def test_every_teacher_and_student_forgets_and_a_student_retrained_is_what_the_run_left(broker, tmp_path):
    config = small(broker.bootstrap_servers, source__impressions=2500, pace__block_rows=256, teachers=[FURTHER])
    run_dir = RunDir(tmp_path / "run")
    with slow_commits(0.4):
        status, _ = run(config, run_dir, local=True, until_end=True, watch=stop_after(700))
    assert status.state is RunState.STOPPED, status.reason
    counts = LakeReader(run_dir.lake, config.rows).read(columns=["user_id"]).table["user_id"].value_counts()
    most = max(counts.to_pylist(), key=lambda of: of["counts"])["values"]
    ask_to_forget(run_dir, "user_id", str(most))
    with patch("pipelines.live.loop.conclusion.draw"):
        status, _ = run(config, run_dir, local=True, until_end=True)
    assert status.state is RunState.DONE, status.reason

    at = forgotten(run_dir).at
    assert set(at) == {"teacher", *(f"student-{student.name}" for student in config.students)}
    assert forgotten(RunDir(run_dir.further_teacher("large"))).at["teacher"][1] >= at["teacher"][1] > 0
    assert all(at[f"student-{student.name}"][1] > 0 for student in config.students)
    assert_replays(run_dir.root)

    replacement = Replacement(run_dir, config)
    other = config.teacher.model_copy(update={"batch_rows": 128})
    replacement.begin(config.model_copy(update={"teacher": other}), judge_from=0)
    replacement.train(live=lambda: False, advance=lambda done, of: None, untried=True)
    assert forgotten(replacement.folder).at["teacher"][1] == at["teacher"][1]

    run_dir.forgotten.unlink()  # what made the difference
    verdicts = verify(run_dir, [], lambda doing, rows: nullcontext(lambda done: None))
    assert not any(verdict.identical for verdict in verdicts)
