"""Undisturbed streams: no alarm is raised over a whole run of any of them, only notes."""

from __future__ import annotations

from unittest.mock import patch

import pyarrow.parquet as pq
import pytest

from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from tests.support.places import CONFIGS, NUMBERS

pytestmark = [pytest.mark.slow, pytest.mark.broker]
TOPICS = ("impressions", "feedback", "examples", "dead_letters")


def alarms_over(broker, name, root, *overrides):
    """Every alarm but notes that a status had from the run's beginning to its end, by its words."""
    number = next(NUMBERS)
    topics = [f"kafka.{topic}.topic=quiet-{topic}-{number}" for topic in TOPICS]
    own = [f"kafka.bootstrap_servers={broker.bootstrap_servers}", "tracking.enabled=false", *topics, *overrides]
    config = load(CONFIGS / name, own)
    raised, looks = {}, 0

    def watch(status):
        nonlocal looks
        looks += 1
        raised.update({alarm.state: alarm.words for alarm in status.alarms if alarm.severity != "note"})

    with patch("pipelines.live.loop.conclusion.draw"):
        status, summary = run(config, RunDir(root), local=True, until_end=True, watch=watch)
    assert status.state is RunState.DONE, status.reason
    assert summary is not None
    assert looks > 10
    return raised


@pytest.mark.timeout(1800)
def test_the_demo_raises_no_alarm(broker, tmp_path):
    assert alarms_over(broker, "demo.yaml", tmp_path / "run", "source.impressions=60000") == {}


@pytest.mark.timeout(1800)
def test_a_slice_of_movielens_raises_no_alarm(broker, tmp_path, real_stream):
    whole = pq.read_table(real_stream("movielens_1m_stream.parquet"))
    pq.write_table(whole.slice(100_000, 60_000), tmp_path / "slice.parquet")
    assert alarms_over(broker, "movielens.yaml", tmp_path / "run", f"source.path={tmp_path / 'slice.parquet'}") == {}


@pytest.mark.timeout(1800)
def test_jd_raises_no_alarm(broker, tmp_path, real_stream):
    path = real_stream("jd_browse_stream.parquet")
    assert alarms_over(broker, "jd.yaml", tmp_path / "run", f"source.path={path}") == {}
