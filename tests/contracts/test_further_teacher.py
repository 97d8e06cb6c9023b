"""Two teachers of one run: each row scored by both before it is learned, and students of either."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits.teachers import lockstep_logits
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.training.predictions import read_predictions
from streaming.lake.logit_set import LogitSet
from streaming.lake.readers import Readers
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_replays,
    slow_commits,
    small,
    stop_after,
    to_the_end,
)

pytestmark = pytest.mark.broker

LARGE = {"name": "large", "batch_rows": 256, "model": {"width": 12, "layers": 1, "num_fmb": 6, "num_lcb": 4, "rank": 4}}


def with_two(broker, **changes):
    """A config with another teacher, whose logits the student `brand` learns."""
    config = small(broker.bootstrap_servers, pace__block_rows=512, teachers=[LARGE], **changes)
    settings = config.model_dump(mode="json")
    for student in settings["students"]:
        student["logits"] = "large" if student["name"] == "brand" else None
    return parse(settings).model_copy(update={"kafka": config.kafka})


def logits_of(config, finished, teacher):
    """Logits of a teacher of these settings, each row before it is learned."""
    config = config.model_copy(update={"teacher": teacher})
    given = config, config.teacher_features, teacher.model, finished.lake
    return lockstep_logits(*given, behinds=(0,), advance=lambda done: None)[0].logits


def assert_both_scored(config, finished):
    lake, beside = finished.lake, finished.run_dir.side_tables
    (large,) = config.teachers
    wanted = logits_of(config, finished, large.as_teacher)
    found = LogitSet(beside, "large").applied(lake)
    both = np.stack([found[f"teacher_logit_{task}"].to_numpy(zero_copy_only=False) for task in config.tasks], axis=1)
    assert np.array_equal(both, wanted, equal_nan=True)
    assert np.isfinite(wanted).any(axis=1).sum() > 2000
    assert found["teacher_version"].equals(lake["teacher_version"])
    logged = lake["teacher_logit_ctr"].to_numpy(zero_copy_only=False)
    assert not np.array_equal(wanted[:, 0], logged, equal_nan=True)
    for student in config.students:
        read = read_predictions(finished.run_dir.predictions(student.name))
        mine = wanted[:, 0] if student.logits else logged
        told = read["teacher_ctr"].to_numpy(zero_copy_only=False)
        assert np.array_equal(told, mine[read["lake_seq"].to_numpy()], equal_nan=True)
    assert_learned_the_lake(finished)
    assert_replays(finished.run_dir.root)


def test_each_row_is_scored_by_both_and_a_student_learns_from_the_one_that_it_names(broker, tmp_path):
    config = with_two(broker)
    finished = to_the_end(config, tmp_path / "run")
    assert_both_scored(config, finished)
    assert finished.summary["workers"]["teacher-large"]["rows"] == finished.lake.num_rows
    (reader,) = (each for each in Readers(finished.run_dir.readers).all() if each.name == "teacher-large")
    assert 0 < reader.position < finished.lake.num_rows


def test_a_run_that_is_stopped_goes_on_with_both(broker, tmp_path):
    config, run_dir = with_two(broker), RunDir(tmp_path / "run")
    with slow_commits(0.4):
        status, _ = run(config, run_dir, local=True, until_end=True, watch=stop_after(2500))
    assert status.state is RunState.STOPPED, status.reason
    with patch("pipelines.live.loop.conclusion.draw"):
        status, _ = run(config, run_dir, local=True, until_end=True)
    assert status.state is RunState.DONE, status.reason
    assert_both_scored(config, Finished(config, run_dir.root))


@pytest.mark.parametrize(
    ("teachers", "words"),
    [
        ([LARGE, LARGE], "teachers: large is there twice"),
        ([LARGE | {"ranks": 2}], "has ranks, only or init_from, which belong to the first"),
        ([LARGE | {"name": "../x"}], "String should match pattern"),
    ],
)
def test_teachers_that_cannot_be_are_refused(teachers, words):
    with pytest.raises(Exception, match=words):
        small("127.0.0.1:1", teachers=teachers)
