"""A student that stops holds nobody up: teacher and augmentation go on, and it learns what it missed once it can."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.config.settings import dump
from tests.support.pipelines.commands import Command, worker_pid
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake, everything

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]

MISSED_ROWS = 5000
PACES: dict[str, dict[str, Any]] = {
    "lockstep": {},
    "free": {"pace__mode": "free", "pace__commit_interval_s": 0.5, "teacher__publish_every_rows": 512},
}


def position(status: dict[str, Any], worker: str) -> int:
    return status["workers"][worker]["lake_seq"] or 0


@pytest.mark.parametrize("pace", PACES)
def test_a_student_that_is_stopped_for_a_while_holds_nobody_up_and_catches_up(pace, broker, tmp_path: Path):
    config = everything(
        broker.bootstrap_servers,
        source__impressions=20_000,
        source__chunk_rows=200,
        source__rate="1000",
        pace__block_rows=256,
        **PACES[pace],
    )
    (tmp_path / "config.yaml").write_text(dump(config))
    command = Command(tmp_path / "config.yaml", tmp_path / "run", tmp_path / "out.txt")
    try:
        pid = command.until(worker_pid("student-feed", rows=200))
        os.kill(pid, signal.SIGSTOP)
        stood = command.until(lambda status: position(status, "student-feed") or None)
        others = ("augmentation", "teacher", "student-brand", "student-clicks")
        meanwhile = command.until(
            lambda status: status if min(position(status, name) for name in others) > stood + MISSED_ROWS else None
        )
        assert position(meanwhile, "student-feed") <= stood + 2 * config.pace.block_rows  # a report was under way
        os.kill(pid, signal.SIGCONT)
        assert command.wait() == 0, command.log.read_text()[-3000:]
    finally:
        command.clean_up()
    finished = Finished(config, tmp_path / "run")
    assert finished.summary["workers"]["student-feed"]["restarts"] == 0
    assert finished.summary["counts"]["settled"]["ctr"] == 20_000
    assert_learned_the_lake(finished)
