"""A teacher of two ranks, under the command a person types: ranks killed and stopped, while it learns and while it
starts.

What it learned is held against the same lake learned by two ranks that nobody disturbed: every weight, accumulator,
metric and count, to the last bit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipelines.core.config.settings import Config, dump
from tests.support.pipelines.commands import Command, rank_pid
from tests.support.pipelines.kills import COORDINATOR, ONE_STUDENT, SHORT, Hail, victims_of
from tests.support.pipelines.small_runs import Finished, everything
from tests.support.ranks.teacher_ranks import as_undisturbed

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]

TWO: dict[str, Any] = SHORT | {
    "teacher__ranks": 2,
    "kafka__examples__partitions": 3,
    "source__impressions": 2000,
    "teacher__batch_rows": 64,
    "students": [ONE_STUDENT | {"twin": False}],
}


@pytest.fixture
def stream(broker, tmp_path) -> Iterator[Callable[..., tuple[Command, Config]]]:
    """`exfm stream`, with the session's broker."""
    commands = []

    def started(**changes: Any) -> tuple[Command, Config]:
        config = everything(broker.bootstrap_servers, **(TWO | changes))
        (tmp_path / "config.yaml").write_text(dump(config))
        commands.append(Command(tmp_path / "config.yaml", tmp_path / "run", tmp_path / "out.log"))
        return commands[-1], config

    yield started
    for command in commands:
        command.clean_up()


def restarts(count: int) -> Callable[[dict[str, Any]], bool]:
    """The teacher works, after so many restarts."""
    return lambda status: (
        status["workers"]["teacher"]["restarts"] == count and status["workers"]["teacher"]["state"] == "running"
    )


def test_a_rank_killed_mid_stream_restarts_all_and_changes_no_bit(stream, tmp_path):
    command, config = stream(source__rate="400")
    pid = command.until(rank_pid("teacher", 1, rows=300))
    os.kill(pid, signal.SIGKILL)
    assert command.wait() == 0, command.log.read_text()[-2500:]
    finished = Finished(config, tmp_path / "run")
    teacher = finished.summary["workers"]["teacher"]
    assert teacher["restarts"] == 1
    assert [rank["rank"] for rank in teacher["ranks"]] == [0, 1]
    assert teacher["peak_rss_bytes"] > max(rank["peak_rss_bytes"] for rank in teacher["ranks"])
    as_undisturbed(finished, tmp_path / "undisturbed")


@pytest.mark.timeout(600)
def test_a_rank_that_is_stopped_is_not_waited_for_and_a_stopped_coordinator_does_no_harm(stream, tmp_path):
    command, config = stream(source__impressions=4000, source__rate="20")  # the stops eat up wall time
    pid = command.until(rank_pid("teacher", 0, rows=100))
    command.process.send_signal(signal.SIGSTOP)
    time.sleep(45)  # work: longer than a collective may take
    command.process.send_signal(signal.SIGCONT)
    time.sleep(5)  # work: time enough to end a rank, which it must not
    assert rank_pid("teacher", 0, rows=100)(command.status) == pid
    for count, rank in enumerate((1, 0), start=1):
        pid = command.until(rank_pid("teacher", rank, rows=1))
        os.kill(pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        command.until(restarts(count))
        assert time.monotonic() - stopped_at < 75
    assert command.wait() == 0, command.log.read_text()[-2500:]
    as_undisturbed(Finished(config, tmp_path / "run"), tmp_path / "undisturbed")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("pace", ["lockstep", "free"])
def test_kills_of_ranks_workers_and_coordinator_change_nothing_that_was_learned(tmp_path, pace):
    changes = TWO | {"source__impressions": 4000, "source__rate": "40", "pace__mode": pace}
    if pace == "free":
        changes |= {"pace__commit_interval_s": 0.5, "teacher__publish_every_rows": 500, "augmentation__idle_s": 3600}
    config = everything("nowhere:1", **changes)
    victims = [*victims_of(config), "teacher", "teacher:1"]
    one = Hail(config, tmp_path / "run", seed=5, victims=victims, most=22)
    try:
        with one.finished(at_least=16, wait_s=1200) as finished:
            assert {"teacher", "teacher:1", COORDINATOR} <= one.by_victim.keys()
            as_undisturbed(finished, tmp_path / "undisturbed")
    finally:
        one.clean_up()
