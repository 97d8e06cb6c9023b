"""Another teacher takes over a run: at one position, nothing lost, and back."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pyarrow.compute as pc
import pytest

from exfm.models.scorer import TeacherAnswer
from pipelines.core.config.settings import parse
from pipelines.core.config.takeovers import takeovers
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits.teachers import lockstep_logits
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.promoting import Keep
from pipelines.live.rules.states import RunState
from pipelines.live.workers.teacher.candidate import CandidateTeacher
from pipelines.teacher.replace import takeover
from pipelines.teacher.replace.replacement import Replacement
from pipelines.teacher.replace.takeover import roll_back, take_over
from pipelines.teacher.replace.trial import TeacherTrial
from streaming.errors import BadInput, DataLost
from streaming.lake.reader import LakeReader
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
    return replacement, replacement.train(live=lambda: False, advance=lambda done, of: None, **options)


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


def test_a_candidate_that_is_better_on_the_same_rows_is_promoted_and_a_worse_one_refused(broker, tmp_path, monkeypatch):
    """One that knows the labels, and one that believes the opposite."""
    judged = {"block_rows": 8, "pilot_blocks": 4, "min_positives": 5, "calibration": [0.5, 2.0]}
    config, run_dir = stopped_run(broker, tmp_path / "run", registry=judged)

    def knowing(sign):
        def score(candidate, rows):
            labels = np.stack([rows[f"label_{task}"].to_numpy() for task in config.tasks], axis=1)
            return TeacherAnswer((sign * (6 * np.nan_to_num(labels) - 3.5)).astype(np.float32), None)

        return score

    monkeypatch.setattr(CandidateTeacher, "score", knowing(-1))
    _, refused = trained(config, run_dir)
    assert refused is not None
    assert not refused.promoted
    assert "worse on" in refused.why
    with patch("pipelines.live.loop.conclusion.draw"):
        assert take_over(config, run_dir, lambda text: None) == config  # refused: nothing changes
    replacement, untried = trained(config, run_dir, untried=True)  # asked for without a comparison, however bad
    assert untried is not None
    assert (untried.promoted, untried.evidence) == (True, {})
    replacement.drop()
    monkeypatch.setattr(CandidateTeacher, "score", knowing(1))
    replacement, promoted = trained(config, run_dir)  # the refused one has gone
    assert promoted is not None
    assert promoted.promoted, promoted.why
    assert promoted.evidence["tasks"]["ctr"]["difference"] > 0
    assert replacement.decided == promoted
    with pytest.raises(BadInput, match="holds a replacement by another teacher"):
        replacement.begin(larger(larger(config)).model_copy(update={"teacher": config.teacher.model_copy(
            update={"batch_rows": 128})}))  # fmt: skip


class Killed(Exception):
    """A process that is gone."""


def test_a_takeover_that_is_killed_at_any_step_is_finished_by_the_next_start(broker, tmp_path):
    """Every move and every write of the takeover fails once, in turn, as at a kill; the start after it goes on."""
    config, run_dir = stopped_run(broker, tmp_path / "run")
    trained(config, run_dir, untried=True)
    kills = 0
    while True:
        with ExitStack() as patches:
            left = [kills]

            def dying(function, left=left):
                def call(*arguments, **options):
                    if left[0] == 0:
                        raise Killed
                    left[0] -= 1
                    return function(*arguments, **options)

                return call

            for name in ("move", "write_json", "write_text", "remember"):
                patches.enter_context(patch.object(takeover, name, dying(getattr(takeover, name))))
            try:
                took = take_over(config, run_dir, lambda text: None)
                break
            except Killed:
                kills += 1
    assert kills >= 4
    assert took.teacher == larger(config).teacher
    (entry,) = takeovers(run_dir)
    finished, _ = resumed(config, run_dir)
    new = taught(larger(config), finished)
    first = entry["lake_seq"]
    assert np.array_equal(logged(finished.lake, config.tasks)[first:], new[first:], equal_nan=True)
    assert_learned_the_lake(finished)


def test_a_teacher_that_does_not_fit_the_run_is_refused_and_nothing_is_made(broker, tmp_path):
    config, run_dir = stopped_run(broker, tmp_path / "run")
    replacement = Replacement(run_dir, config)
    settings = config.model_dump(mode="json")
    settings["teacher"]["only"] = []
    with pytest.raises(BadInput, match="student `feed` would read others"):
        replacement.begin(parse(settings))
    settings = config.model_dump(mode="json")
    settings["rows"]["columns"].append({"name": "weather", "type": "string"})
    settings["features"]["sparse"].append({"name": "weather", "rows": 50})
    settings["teacher"]["only"].append("weather")
    with pytest.raises(BadInput, match=r"(?s)does not fit the lake of .*lake_seq 0 to [\d,]+.*weather"):
        replacement.begin(parse(settings))
    with pytest.raises(BadInput, match="nothing to replace"):
        replacement.begin(config)
    with pytest.raises(BadInput, match="--judge-from 90,000 is not in the lake"):
        replacement.begin(larger(config), judge_from=90_000)
    with pytest.raises(BadInput, match="no replacement of the teacher"):
        replacement.drop()
    with pytest.raises(BadInput, match="was ever replaced"):
        roll_back(run_dir, "too early")
    assert not run_dir.replacement.exists()


@pytest.mark.ray
def test_a_live_run_takes_the_new_teacher_over_by_itself(broker, tmp_path):
    """The replacement is trained beside the run, in this process; the run's workers are actors, and start again."""
    config = small(broker.bootstrap_servers, pace__block_rows=512, source__impressions=9000, source__rate=900)
    run_dir = RunDir(tmp_path / "run")
    began: list[int] = []

    def attend(live_run):
        if live_run.lake_rows > STOPPED_AT and not began:
            began.append(live_run.lake_rows)
            trained(config, run_dir, untried=True)

    with patch("pipelines.live.loop.conclusion.draw"):
        status, _ = run(config, run_dir, until_end=True, attend=attend)
    assert status.state is RunState.DONE, status.reason
    (entry,) = takeovers(run_dir)
    finished = Finished(config, run_dir.root)
    assert began[0] <= entry["lake_seq"] < finished.lake.num_rows - 1000
    new = taught(larger(config), finished)
    first = entry["lake_seq"]
    assert np.array_equal(logged(finished.lake, config.tasks)[first:], new[first:], equal_nan=True)
    assert_learned_the_lake(finished)


def test_a_candidate_that_cannot_catch_up_is_refused_and_the_run_keeps_its_teacher(broker, tmp_path, monkeypatch):
    config, run_dir = stopped_run(broker, tmp_path / "run")
    replacement, _ = trained(config, run_dir, untried=True)

    def lost(candidate, last):
        raise DataLost("rows lake_seq 0 to 9 are deleted")

    monkeypatch.setattr(CandidateTeacher, "learn_upto", lost)
    finished, said = resumed(config, run_dir)
    assert any("the teacher stays" in text and "lake_seq 0 to 9" in text for text in said)
    assert takeovers(run_dir) == []
    assert not replacement.decided.promoted
    own = taught(config, finished)
    assert np.array_equal(logged(finished.lake, config.tasks), own, equal_nan=True)


def test_a_takeover_that_has_begun_is_not_dropped(broker, tmp_path):
    config, run_dir = stopped_run(broker, tmp_path / "run")
    replacement, _ = trained(config, run_dir, untried=True)
    with patch.object(takeover, "move", side_effect=Killed), pytest.raises(Killed):
        take_over(config, run_dir, lambda text: None)
    with pytest.raises(BadInput, match="being put into its place"):
        replacement.drop()
    assert take_over(config, run_dir, lambda text: None).teacher == larger(config).teacher


def test_rows_that_a_pretrained_candidate_may_know_are_not_compared_and_not_held_against_it(broker, tmp_path):
    config, run_dir = stopped_run(broker, tmp_path / "run")
    rows = LakeReader(run_dir.lake, config.rows).read(-1).table
    scored = rows.filter(rows["teacher_version"].is_valid())
    logits, known = np.zeros((scored.num_rows, 2), np.float32), np.zeros((scored.num_rows, 2), bool)
    logits[:100], known[:100] = np.nan, True
    trial = TeacherTrial(config)
    trial.compare(scored, logits, ~known)
    seen = trial.evidence()["tasks"]
    labelled = np.isfinite(logged(scored, config.tasks)) & ~known
    labelled &= np.stack([scored[f"label_{task}"].is_valid().to_numpy() for task in config.tasks], axis=1)
    assert [seen[task]["rows"] for task in config.tasks] == labelled.sum(axis=0).tolist()
    assert isinstance(trial.decide(), Keep)  # a logit that is not finite would refuse it
