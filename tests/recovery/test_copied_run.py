"""A run directory that was copied, and both resumed: one is told that it is a copy, and a topic of its own helps."""

from __future__ import annotations

import shutil

import pytest

from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from streaming.lake.reader import LakeReader
from tests.support.pipelines.small_runs import slow_commits, small, stop_after, to_the_end

pytestmark = pytest.mark.broker


@pytest.mark.check
def test_a_copy_is_told_so_and_goes_on_with_a_topic_of_its_own(broker, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)
    config = small(broker.bootstrap_servers, source__impressions=2000, pace__block_rows=256)
    original, copy = tmp_path / "run", tmp_path / "copy"

    with slow_commits():
        status, _ = run(config, RunDir(original), local=True, until_end=True, watch=stop_after(700))
    assert status.state is RunState.STOPPED
    shutil.copytree(original, copy)
    finished = to_the_end(config, original)
    assert LakeReader(RunDir(copy).lake, config.rows).rows < finished.lake.num_rows

    said: list[str] = []
    status, _ = run(config, RunDir(copy), local=True, until_end=True, say=said.append)
    assert status.state is RunState.FAILED
    assert f"looks like a copy of {original}" in str(status.reason)
    assert "kafka.examples.topic" in str(status.reason)
    assert [words for words in said if words.startswith(f"{copy} looks like a copy of {original}")]

    raw = config.model_dump(mode="json")
    raw["kafka"]["examples"]["topic"] += "-of-the-copy"
    again = to_the_end(parse(raw), copy)
    assert again.rows.equals(finished.rows)
    assert again.summary["students"] == finished.summary["students"]
