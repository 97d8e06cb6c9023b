"""Augmentation held by several ranks, one of them killed: the group starts again from its last commit, and not a bit of
the stream is another. And a run goes on under another number of them."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from tests.support.pipelines.expected_rows import expected_rows, lake_rows
from tests.support.pipelines.resumed_commands import finished, newest_pid, resumed_commands, rows_in_lake
from tests.support.pipelines.small_runs import assert_learned_the_lake, assert_same_run

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]

SETTINGS = {"augmentation__sharding": {"types": ["table_wise", "row_wise"], "tables": {"user_id": "row_wise"}}}


@pytest.fixture
def stream(broker, tmp_path):
    with resumed_commands(broker.bootstrap_servers, tmp_path, SETTINGS) as start:
        yield start


@pytest.mark.timeout(900)
def test_a_scoring_rank_killed_in_the_midst_changes_no_bit(stream):
    command, config = stream("killed", augmentation__ranks=2)
    for number, rows in enumerate((300, 900, 1500), start=1):
        command.until(rows_in_lake(rows))
        os.kill(newest_pid(command.run_dir, "augmentation-rank1"), signal.SIGKILL)
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
