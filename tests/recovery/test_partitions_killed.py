"""A stream that several processes settle partition by partition: any of them killed, and another number of them."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from tests.support.pipelines.commands import Command
from tests.support.pipelines.expected_rows import expected_rows, lake_rows
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake, assert_same_run, everything

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]

MODEL = {"width": 4, "trunk": {"name": "dlrm", "mlp": [16], "bottom": [8]}}
STUDENT = {"name": "feed", "batch_rows": 100, "checkpoint_every_rows": 300, "model": MODEL}
SETTINGS: dict[str, Any] = {
    "source__impressions": 3000,
    "source__malformed_rate": 0.0,  # `expected_rows` does without
    "source__chunk_rows": 50,
    "source__rate": "400",
    "pace__block_rows": 128,
    "settlement__by": "partition",
    "augmentation__score_rows": 50,
    "kafka__impressions__partitions": 4,
    "kafka__feedback__partitions": 4,
    "students": [STUDENT],
    "resources": {"min_free_disk_gb": 0, "max_restarts": 1000, "restart_window_s": 1, "cpus_per_worker": 0.1},
}


@pytest.fixture
def stream(broker, tmp_path):
    """Starts `exfm stream` in tmp_path/NAME, or goes on with it; nothing of it outlives the test."""
    commands: list[Command] = []
    configs: dict[str, Config] = {}

    def start(name: str, **changes: Any) -> tuple[Command, Config]:
        before = configs.get(name)
        config = everything(broker.bootstrap_servers, **SETTINGS | changes)
        if before is not None:
            config = config.model_copy(update={"kafka": before.kafka})
        configs[name] = config
        path = tmp_path / f"{name}.yaml"
        path.write_text(dump(config))
        commands.append(Command(path, tmp_path / name, path.with_suffix(".log")))
        return commands[-1], config

    yield start
    for command in commands:
        command.clean_up()


def finished(command: Command, config: Config) -> Finished:
    code = command.wait()
    assert code == 0, command.log.read_text()[-2000:]
    return Finished(config, command.run_dir.root)


def pid_of(run_dir: RunDir, name: str) -> int:
    """The newest process that a log tells of."""
    return int(re.findall(r" pid (\d+) on ", (run_dir.logs / f"{name}.log").read_text())[-1])


def rows_in_lake(at_least: int) -> Any:
    return lambda status: status["lake"]["rows"] >= at_least


@pytest.mark.timeout(900)
def test_any_process_killed_in_the_midst_changes_no_bit(stream):
    command, config = stream("killed", augmentation__workers=2)
    victims = ("augmentation-rank1", "augmentation", "augmentation-rank1", "augmentation")
    for number, (victim, rows) in enumerate(zip(victims, (300, 800, 1300, 1800), strict=True), start=1):
        command.until(rows_in_lake(rows))
        os.kill(pid_of(command.run_dir, victim), signal.SIGKILL)
        command.until(lambda status, n=number: status["workers"]["augmentation"]["restarts"] >= n)
    killed = finished(command, config)
    assert sorted(lake_rows(killed.lake), key=str) == sorted(expected_rows(config), key=str)
    assert_learned_the_lake(killed)
    undisturbed = finished(*stream("undisturbed", augmentation__workers=1))
    assert killed.summary["workers"]["augmentation"]["restarts"] >= 4
    assert_same_run(killed, undisturbed)


@pytest.mark.timeout(600)
def test_a_run_goes_on_under_another_number_of_processes(stream):
    alone = finished(*stream("alone"))
    command, _ = stream("several", augmentation__workers=1)
    for workers, rows in ((3, 500), (2, 1500)):
        command.until(rows_in_lake(rows))
        command.process.send_signal(signal.SIGTERM)
        assert command.wait() == 130
        command, config = stream("several", augmentation__workers=workers)
    assert_same_run(finished(command, config), alone)
