"""Logit sets of a real run: who names one learns from it, when it is retrained, too; nobody else does."""

from __future__ import annotations

import numpy as np
import pytest

from exfm.snapshots.checkpoint import checkpoint_names
from pipelines.cli import console as cli
from pipelines.lab.logits.rescore import RescoreRequest, rescore
from pipelines.lab.spec.conditions import Condition, LogitSource, Stored
from pipelines.live.training.predictions import read_predictions
from streaming.lake.logit_set import LEAKS, LogitSet
from tests.support.pipelines.small_runs import SNAPSHOTS, assert_replays, finished_once, small

pytestmark = pytest.mark.broker


def command(capsys, *arguments: str) -> tuple[int, str]:
    """The exit code, and what was said."""
    code = 0
    try:
        cli.main([*arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out + err


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory):
    """A finished run with two sets: by its newest teacher, of all rows; by an earlier one, of rows behind it."""
    found = finished_once(small, broker.bootstrap_servers, tmp_path_factory.mktemp("sets") / "run", **SNAPSHOTS)
    versions = [int(name[1:]) for name in checkpoint_names(found.run_dir.snapshots)]
    ask = RescoreRequest("all", str(versions[-1]), allow_leakage=True)
    rescore(found.config, found.run_dir, ask, lambda done, of: None)
    last = found.lake.num_rows - 1
    rescore(found.config, found.run_dir, RescoreRequest("honest", str(versions[-2]), last - 300), lambda done, of: None)
    return found


def test_a_student_spawned_on_a_set_learns_its_logits_and_is_retrained_to_the_same_bits(finished, capsys):
    run, spawn = str(finished.run_dir.root), ("--like", "feed", "--verticals", "feed", "--offline")
    for name, extra in (("again", ()), ("fresh", ("--set", "logits=all"))):
        code, said = command(capsys, "spawn", name, "--run-dir", run, *spawn, *extra)
        assert code == 0, said
    assert_replays(finished.run_dir.root, "again", "fresh")
    again, fresh, feed = (read_predictions(finished.run_dir.predictions(name)) for name in ("again", "fresh", "feed"))
    assert again["student_ctr"].to_pylist() == feed["student_ctr"].to_pylist()
    assert again["lake_seq"].equals(fresh["lake_seq"])
    assert not np.array_equal(again["student_ctr"].to_numpy(), fresh["student_ctr"].to_numpy(), equal_nan=True)


def test_a_set_that_is_not_there_is_refused_before_anything_is_asked(finished, capsys):
    run = str(finished.run_dir.root)
    code, said = command(capsys, "spawn", "odd", "--run-dir", run, "--like", "feed", "--set", "logits=nothing")
    assert code == 2
    assert "no logit set `nothing`" in said
    assert "`all`, `honest`" in said
    assert finished.run_dir.roster.desired("odd") is None


def test_a_replay_reads_the_set_and_marks_what_a_teacher_knew(finished, capsys, tmp_path):
    run = str(finished.run_dir.root)
    given = (
        "replay",
        "--run-dir",
        run,
        "--students",
        "feed",
        "--arm",
        "as it is: batch_rows=200",
        "--out",
        str(tmp_path / "out"),
    )
    code, said = command(capsys, *given, "--condition", "fresh: logit_set=all", "--condition", "some: logit_set=honest")
    assert code == 0, said
    assert f"{LEAKS}: the teacher of logit set `all`" in said
    assert "`honest`" not in said.split(LEAKS)[1].split("\n")[0]


def test_a_replay_of_a_student_that_learned_a_set_says_which_logits_it_has(finished, capsys, tmp_path):
    run = ("--run-dir", str(finished.run_dir.root))
    spawned = ("spawn", "named", *run, "--like", "feed", "--verticals", "feed", "--offline", "--set", "logits=all")
    code, said = command(capsys, *spawned)
    assert code == 0, said
    given = ("replay", *run, "--students", "named", "--arm", "same: batch_rows=200", "--out", str(tmp_path))
    code, said = command(capsys, *given)
    assert code == 0, said
    assert "`named` learned from logit set `all`; under `as logged` it learns the logits that were logged" in said


def test_logits_outside_a_set_are_those_logged(finished, tmp_path):
    config, lake = finished.config, finished.lake
    logged = np.stack([lake[f"teacher_logit_{task}"].to_numpy() for task in config.tasks], axis=1)
    given = LogitSet(finished.run_dir.side_tables, "honest").applied(lake)
    found = np.stack([given[f"teacher_logit_{task}"].to_numpy() for task in config.tasks], axis=1)
    first = lake.num_rows - 301
    assert np.array_equal(found[:first], logged[:first], equal_nan=True)
    assert (np.isfinite(found) == np.isfinite(logged)).all()
    assert not np.array_equal(found[first:], logged[first:], equal_nan=True)
    assert Condition(logit_set="honest").logit_source == LogitSource(stored=Stored(logit_set="honest"))
