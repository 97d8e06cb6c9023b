"""A stream that several processes settle partition by partition: any of them killed, and another number of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from pipelines.cli.console import main
from tests.support.pipelines.expected_rows import expected_rows, lake_rows
from tests.support.pipelines.resumed_commands import finished, newest_pid, resumed_commands, rows_in_lake
from tests.support.pipelines.small_runs import assert_learned_the_lake, assert_same_run

pytestmark = [pytest.mark.broker, pytest.mark.ray]

KILLS = int(os.environ.get("KILLS", "30"))

SETTINGS = {
    "settlement__by": "partition",
    "kafka__impressions__partitions": 4,
    "kafka__feedback__partitions": 4,
}


@pytest.fixture
def stream(broker, tmp_path):
    with resumed_commands(broker.bootstrap_servers, tmp_path, SETTINGS) as start:
        yield start


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_many_kills_of_any_number_of_processes_change_no_bit(stream, workers):
    """`KILLS` kills (30), each of any of the processes and a moment after another block is in the lake."""
    random, settings = Random(workers), {"source__impressions": 7000, "pace__block_rows": 64}
    command, config = stream("killed", augmentation__workers=workers, **settings)
    victims = ["augmentation", *(f"augmentation-rank{rank}" for rank in range(1, workers))]
    rows = 0
    for number in range(1, KILLS + 1):
        rows = command.until(lambda status, n=rows: max(0, status["lake"]["rows"] - n) and status["lake"]["rows"])
        time.sleep(random.uniform(0.0, 0.4))  # work: of the next block, more or less of it
        os.kill(newest_pid(command.run_dir, random.choice(victims)), signal.SIGKILL)
        command.until(lambda status, n=number: status["workers"]["augmentation"]["restarts"] >= n)
    killed = finished(command, config)
    assert sorted(lake_rows(killed.lake), key=str) == sorted(expected_rows(config), key=str)
    assert_learned_the_lake(killed)
    assert killed.summary["workers"]["augmentation"]["restarts"] >= KILLS
    undisturbed = finished(*stream("undisturbed", augmentation__workers=1, **settings))
    assert_same_run(killed, undisturbed)


@pytest.mark.slow
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


@pytest.mark.timeout(600)
def test_a_run_that_lives_gets_another_number_of_processes(stream, capsys):
    """Asked for on the command line; the coordinator is killed once in between, and begins with what was asked for."""
    command, config = stream("scaled", augmentation__workers=1)
    root = str(command.run_dir.root)
    command.until(rows_in_lake(300))
    assert scale(root, 9, capsys) == (2, ["augmentation.workers is 9, and the topics have 4 partitions"])
    assert scale(root, 3, capsys) == (0, ["augmentation has 3 workers now, 1 before"])
    command.until(ranks_at_work(3))
    command.process.kill()
    command.process.wait()
    assert scale(root, 2, capsys) == (0, ["augmentation will have 2 when it starts"])
    command, config = stream("scaled", augmentation__workers=1)  # the file that it was started with says 1
    command.until(ranks_at_work(2))
    scaled = finished(command, config)
    assert scaled.summary["workers"]["augmentation"]["restarts"] == 0
    assert_same_run(scaled, finished(*stream("alone", augmentation__workers=1)))


def ranks_at_work(number: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: len(status["workers"].get("augmentation", {"ranks": ()})["ranks"]) == number


SAID = (
    "augmentation.workers is 9, and the topics have 4 partitions",
    "augmentation has 3 workers now, 1 before",
    "augmentation will have 2 when it starts",
)


def scale(root: str, workers: int, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Exit code of the command, and which of `SAID` it said."""
    try:
        main(["scale-workers", root, f"augmentation={workers}"])
        code = 0
    except SystemExit as left:
        code = int(left.code or 0)
    said = " ".join("".join(capsys.readouterr()).split())
    return code, [words for words in SAID if words in said]
