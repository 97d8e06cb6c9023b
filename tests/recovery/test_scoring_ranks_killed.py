"""Augmentation held by several ranks, one of them killed: the group starts again from its last commit, and not a bit of
the stream is another. And a run goes on under another number of them."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import numpy as np
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
    "augmentation__score_rows": 50,
    "augmentation__sharding": {"types": ["table_wise", "row_wise"], "tables": {"user_id": "row_wise"}},
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


def scoring_pid(run_dir: RunDir) -> int:
    """The newest process of augmentation's second rank."""
    told = re.findall(r" pid (\d+) on ", (run_dir.logs / "augmentation-rank1.log").read_text())
    return int(told[-1])


def rows_in_lake(at_least: int) -> Any:
    return lambda status: status["lake"]["rows"] >= at_least


@pytest.mark.timeout(900)
def test_a_scoring_rank_killed_in_the_midst_changes_no_bit(stream):
    command, config = stream("killed", augmentation__ranks=2)
    for number, rows in enumerate((300, 900, 1500), start=1):
        command.until(rows_in_lake(rows))
        os.kill(scoring_pid(command.run_dir), signal.SIGKILL)
        command.until(lambda status, n=number: status["workers"]["augmentation"]["restarts"] >= n)
    killed = finished(command, config)
    assert lake_rows(killed.lake) == expected_rows(config)
    assert_learned_the_lake(killed)
    undisturbed = finished(*stream("undisturbed", augmentation__ranks=2))
    assert killed.summary["workers"]["augmentation"]["restarts"] >= 3
    assert undisturbed.summary["workers"]["augmentation"]["restarts"] == 0
    assert_same_run(killed, undisturbed)


@pytest.mark.timeout(600)
def test_a_run_goes_on_under_another_number_of_scoring_ranks(stream):
    alone = finished(*stream("alone", augmentation__ranks=1))
    command, _ = stream("several", augmentation__ranks=1)
    command.until(rows_in_lake(500))
    command.process.send_signal(signal.SIGTERM)
    assert command.wait() == 130
    for ranks, rows in ((3, 1500), (2, None)):
        command, config = stream("several", augmentation__ranks=ranks)
        if rows is not None:
            command.until(rows_in_lake(rows))
            command.process.send_signal(signal.SIGTERM)
            assert command.wait() == 130
    several = finished(command, config)
    assert several.summary["counts"] == alone.summary["counts"]
    assert lake_rows(several.lake) == lake_rows(alone.lake) == expected_rows(config)
    for task in config.tasks:  # the same logits but for rounding: batches are cut over ranks
        one, other = (run.lake[f"teacher_logit_{task}"].to_numpy() for run in (alone, several))
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)
    assert_learned_the_lake(several)
    assert several.learned("teacher") == alone.learned("teacher")
