"""A student of several ranks, under the command a person types: any of them killed, and another number of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.pipelines.resumed_commands import finished, newest_pid, resumed_commands, rows_in_lake
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_replays,
    assert_same_run,
    assert_same_student,
)

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]

STUDENT: dict[str, Any] = {
    "name": "feed",
    "twin": True,
    "batch_rows": 100,
    "checkpoint_every_rows": 300,
    "distillation_rows": "all",
    "model": {
        "width": 4,
        "trunk": {"name": "dlrm", "mlp": [16], "bottom": [8]},
        "arm": {"preset": "recommended", "representation_weight": 0.5, "representation_width": 8},
    },
}
"""With adapter, heads, extra steps, and histories of what the teacher says."""


def of_ranks(ranks: int) -> list[dict[str, Any]]:
    return [STUDENT | {"ranks": ranks}]


@pytest.fixture
def stream(broker, tmp_path):
    with resumed_commands(broker.bootstrap_servers, tmp_path, {}) as start:
        yield start


@pytest.mark.timeout(900)
def test_any_rank_killed_in_the_midst_changes_no_bit(stream):
    command, config = stream("killed", students=of_ranks(2))
    victims = ("student-feed-rank1", "student-feed")
    for number, (victim, rows) in enumerate(zip(victims, (700, 1500), strict=True), start=1):
        command.until(rows_in_lake(rows))
        os.kill(newest_pid(command.run_dir, victim), signal.SIGKILL)
        command.until(lambda status, n=number: status["workers"]["student-feed"]["restarts"] >= n)
    killed = finished(command, config)
    workers = killed.summary["workers"]["student-feed"]
    assert workers["restarts"] >= 2
    assert [rank["rank"] for rank in workers["ranks"]] == [0, 1]
    assert_learned_the_lake(killed)
    undisturbed = finished(*stream("undisturbed", students=of_ranks(2)))
    assert_same_run(killed, undisturbed)
    assert_same_student(killed, undisturbed, "feed")
    assert_replays(killed.run_dir.root)


def furthest(one: Finished, other: Finished) -> float:
    """How far the weights of the student, as it is served, are from each other in two runs."""
    a, b = (run.checkpoint("student-feed")[0] for run in (one, other))
    assert a.keys() == b.keys()
    served = [name for name in a if name.startswith(("student/dense", "student/table"))]
    values = ((np.frombuffer(a[name], np.float32), np.frombuffer(b[name], np.float32)) for name in served)
    return max(float(np.abs(x - y).max(initial=0)) for x, y in values)


def learned(seq: int) -> Callable[[dict[str, Any]], bool]:
    """The student has learned rows up to there."""
    return lambda status: (status["workers"].get("student-feed", {}).get("lake_seq") or 0) >= seq


@pytest.mark.timeout(900)
def test_a_run_goes_on_under_another_number_of_ranks(stream):
    alone = finished(*stream("alone", students=of_ranks(1), source__rate="150"))
    command, _ = stream("several", students=of_ranks(1), source__rate="150")
    for ranks, seq in ((3, 600), (2, 1600)):
        command.until(learned(seq))
        command.process.send_signal(signal.SIGTERM)
        assert command.wait() == 130
        command, config = stream("several", students=of_ranks(ranks), source__rate="150")
    several = finished(command, config)
    assert_learned_the_lake(several)
    one, other = (run.checkpoint("student-feed")[1] for run in (alone, several))
    assert one["learned"] == other["learned"]
    assert one["trained_rows"] == other["trained_rows"]
    assert one["config_hash"] == other["config_hash"]
    assert 0 < furthest(alone, several) < 1e-4
    assert [entry.get("ranks", 1) for entry in other["past"]["learned_by"]] == [1, 3, 2]
    assert_replays(several.run_dir.root)  # each part of it by as many
