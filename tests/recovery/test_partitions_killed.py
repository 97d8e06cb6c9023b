"""A stream that several processes settle partition by partition: any of them killed, and another number of them."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.pipelines.expected_rows import expected_rows, lake_rows
from tests.support.pipelines.resumed_commands import finished, newest_pid, resumed_commands, rows_in_lake
from tests.support.pipelines.small_runs import assert_learned_the_lake, assert_same_run

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]

SETTINGS = {
    "settlement__by": "partition",
    "kafka__impressions__partitions": 4,
    "kafka__feedback__partitions": 4,
}


@pytest.fixture
def stream(broker, tmp_path):
    with resumed_commands(broker.bootstrap_servers, tmp_path, SETTINGS) as start:
        yield start


@pytest.mark.timeout(900)
def test_any_process_killed_in_the_midst_changes_no_bit(stream):
    command, config = stream("killed", augmentation__workers=2)
    victims = ("augmentation-rank1", "augmentation", "augmentation-rank1", "augmentation")
    for number, (victim, rows) in enumerate(zip(victims, (300, 800, 1300, 1800), strict=True), start=1):
        command.until(rows_in_lake(rows))
        os.kill(newest_pid(command.run_dir, victim), signal.SIGKILL)
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
