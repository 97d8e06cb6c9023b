"""The broker is killed, or away for a while: the run waits, goes on by itself, and ends as if nothing had been."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.config import Config
from pipelines.layout import RunDir
from pipelines.run import run
from pipelines.states import RunState
from pipelines.status import RunStatus
from tests.contracts.pipeline_fixtures import Finished, assert_learned_the_lake, small, to_the_end

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory) -> Finished:
    return to_the_end(small(broker.bootstrap_servers), tmp_path_factory.mktemp("undisturbed") / "run")


def own_broker(config: Config) -> Config:
    return config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap_servers": None})})


def once_the_lake_has(rows: int, act: Callable[[RunStatus], None]) -> Callable[[RunStatus], None]:
    """A watcher that acts once."""
    acted: list[bool] = []

    def watch(status: RunStatus) -> None:
        if not acted and (status.lake["rows"] or 0) >= rows:
            acted.append(True)
            act(status)

    return watch


def kill_the_broker(status: RunStatus) -> None:
    os.kill(status.broker["pid"], signal.SIGKILL)


def test_kill_9_of_the_runs_own_broker_changes_nothing(undisturbed, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("pipelines.coordinator.STATUS_INTERVAL_S", 0.0)
    config = own_broker(small("127.0.0.1:1"))
    status, _ = run(
        config, RunDir(tmp_path), local=True, until_end=True, watch=once_the_lake_has(2000, kill_the_broker)
    )
    assert status.state is RunState.DONE, status.reason
    assert status.broker["restarts"] == 1
    finished = Finished(config, tmp_path)
    assert finished.rows.equals(undisturbed.rows)
    assert finished.summary["students"] == undisturbed.summary["students"]
    assert_learned_the_lake(finished)
