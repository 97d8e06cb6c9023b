"""An id that as-of features forget, and the worker that is to do it killed before it has committed that."""

from __future__ import annotations

import os
import shutil
import signal

import pyarrow.compute as pc
import pytest

from pipelines.core.run_dir.forgotten import ask_to_forget, forgotten
from pipelines.core.run_dir.paths import RunDir
from streaming.lake.reader import LakeReader
from tests.support.pipelines.resumed_commands import finished, newest_pid, resumed_commands, rows_in_lake
from tests.support.pipelines.small_runs import assert_same_run
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("by", "workers"), [("stream", 1), ("partition", 1), ("partition", 2)])
def test_killed_between_request_and_commit_the_bits_are_those_of_a_run_that_knew_when(broker, tmp_path, by, workers):
    parts = {f"kafka__{topic}__partitions": 4 for topic in ("impressions", "feedback")}
    few = {"source__users": 40, "asof__max_keys": 10_000}
    settings = parts | few | {"settlement__by": by, "augmentation__workers": workers}
    with resumed_commands(broker.bootstrap_servers, tmp_path, settings) as start:
        command, config = start("killed")
        command.until(rows_in_lake(300))
        lake = LakeReader(command.run_dir.lake, config.rows).read(columns=["user_id", "ad_id"]).table
        for column in ("user_id", "ad_id"):
            ask_to_forget(command.run_dir, column, str(pc.mode(lake[column])[0]["mode"]), columns=[column])
        eventually(lambda: "augmentation" in forgotten(command.run_dir).at)
        os.kill(newest_pid(command.run_dir, "augmentation"), signal.SIGKILL)
        assert not forgotten(command.run_dir).removed
        killed = finished(command, config)
        assert killed.summary["workers"]["augmentation"]["restarts"] >= 1
        record = forgotten(killed.run_dir)
        assert all(record.removed[number].keys for number in (1, 2)), record

        knows = RunDir(tmp_path / "undisturbed")
        knows.root.mkdir()
        knows.lock.touch()
        shutil.copy(killed.run_dir.forgotten, knows.forgotten)
        assert_same_run(killed, finished(*start("undisturbed")))
