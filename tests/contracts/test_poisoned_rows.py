"""Rows that pass every check and are poison all the same: a number so large that it overflows inside the models."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.compute as pc
import pytest

from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.training.predictions import read_predictions
from streaming.kafka.topics import ensure_topics
from streaming.store.files import read_json
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_same_run,
    everything,
    stop_after,
    to_the_end,
)
from tests.support.pipelines.summaries import counts_hold, rows_hold
from tests.support.pipelines.topics import by_hand, ipc, send

pytestmark = pytest.mark.broker

POISON = {1: 3e38, 700: -3.2e38, 701: 3.4e38, 1400: 3e38}  # impression, of so many: its bid


def poisoned(servers: str, count: int, poison: dict[int, float], **settings: Any) -> Config:
    """A config whose models take `bid` as it is, and topics that hold so many impressions, some of them poison."""
    config = everything(
        servers,
        source=None,
        features__dense=[{"name": "bid"}],
        features__history=[],
        features__asof=[],  # with other weights than these, not every model overflows
        pace__block_rows=512,
        teacher__batch_rows=100,
        **settings,
    )
    inputs = (config.kafka.impressions, config.kafka.feedback)
    ensure_topics(config.kafka, {topic.topic: topic.partitions for topic in inputs})
    shown, feedback = by_hand(config, count, duplicate_rate=0.0)
    for number, bid in poison.items():
        shown[number] |= {"bid": bid, "vertical": "feed"}
    messages = []
    for topic, rows, schema in zip(
        inputs, (shown, feedback), (config.rows.impression, config.rows.feedback), strict=True
    ):
        for partition in (0, 1):
            mine = [row for row in rows if row["impression_id"] % 2 == partition]
            messages += [(topic.topic, partition, ipc(mine[n : n + 200], schema)) for n in range(0, len(mine), 200)]
    send(servers, messages)
    return config


@pytest.fixture(autouse=True, scope="module")
def _no_ceiling():
    """Rows of a lake from before numbers had a ceiling; what is too large is seen by the models alone."""
    with patch("exfm.features.dense.LARGEST_INPUT", 1e39), patch("exfm.models.bad_rows.LARGEST_INPUT", 1e39):
        yield


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory) -> Finished:
    return to_the_end(poisoned(broker.bootstrap_servers, 2000, POISON), tmp_path_factory.mktemp("poison") / "run")


def places(finished: Finished) -> list[int]:
    """Where in the lake the poisoned rows are, each settlement of them."""
    bids = finished.lake["bid"].to_numpy()
    return finished.lake["lake_seq"].to_numpy()[np.abs(bids) > 1e38].tolist()


def test_the_stream_goes_on_and_every_row_is_accounted_for(finished):
    summary = finished.summary
    assert counts_hold(summary["counts"])
    assert summary["counts"]["dead_letters"] == 0  # they are valid
    assert rows_hold(summary["workers"])
    assert_learned_the_lake(finished)
    poison = len(places(finished))
    assert poison >= 4
    for worker in ("teacher", "student-feed"):  # those that were given every poisoned row
        found = summary["workers"][worker]
        assert found["quarantined_rows"] == poison
        assert found["trained_rows"] + poison == found["given_rows"]
    assert summary["workers"]["student-feed"]["quarantined_rows_no_teacher"] == poison


def test_each_model_says_where_in_the_lake_the_rows_lie_that_it_left_out(finished):
    poison = places(finished)
    for worker in finished.models:
        quarantine = finished.checkpoint(worker)[1]["quarantine"]
        assert read_json(finished.run_dir.quarantine(worker)) == quarantine
        models = {"teacher"} if worker == "teacher" else {"student", "no_teacher", "ftrl", "constant"}
        assert set(quarantine) <= models
        for name, model in quarantine.items():
            for row in model["last"]:
                assert row["first_lake_seq"] == row["last_lake_seq"]
                assert row["first_lake_seq"] in poison
                assert row["reason"].endswith("is not finite")
            assert len(model["last"]) == model["rows"]
            if worker in ("teacher", "student-feed") and name not in ("ftrl", "constant"):
                assert [row["first_lake_seq"] for row in model["last"]] == poison


def test_a_student_predicted_every_row_but_those_that_it_left_out(finished):
    predictions = read_predictions(finished.run_dir.predictions("feed"))
    unpredicted = predictions.filter(pc.is_nan(predictions["student_ctr"]))
    assert unpredicted["lake_seq"].to_pylist() == places(finished)


def test_nothing_of_them_reached_weights_optimizers_or_figures(finished):
    for worker in finished.models:
        newest = latest_checkpoint(finished.run_dir.checkpoints(worker))
        for name, tensor in load_checkpoint(newest)[0].items():
            if not name.endswith("rng") and not name.startswith("metrics/"):
                assert tensor.isfinite().all(), (worker, name)
    for tasks in finished.summary["students"].values():
        for result in tasks.values():
            assert result["student"]["ne"] is None or result["student"]["ne"] < 5


@pytest.mark.check
def test_what_was_left_out_is_the_same_however_often_the_run_is_stopped(finished, broker, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)
    config = poisoned(broker.bootstrap_servers, 2000, POISON)
    for rows in (600, 1600):
        status, _ = run(config, RunDir(tmp_path / "run"), local=True, until_end=True, watch=stop_after(rows))
        assert status.state is RunState.STOPPED
    assert_same_run(to_the_end(config, tmp_path / "run"), finished)


def test_a_poisoned_row_in_every_batch_stops_nobody(broker, tmp_path):
    """17 batches in a row with such a row each were the end of teacher and student, when each discarded its batch."""
    poison = dict.fromkeys(range(20, 2000, 40), 3e38)
    finished = to_the_end(poisoned(broker.bootstrap_servers, 2000, poison), tmp_path / "run")
    lost = places(finished)
    for worker in ("teacher", "student-feed"):
        found = finished.summary["workers"][worker]
        assert found["quarantined_rows"] == len(lost)
        assert finished.checkpoint(worker)[1]["quarantine"][worker.partition("-")[0]]["batches"] > 16
    assert_learned_the_lake(finished)
    note = read_json(finished.run_dir.status)["workers"]["teacher"]["note"]
    assert note.startswith(f"teacher: {len(lost)} rows in ")


def test_rows_beyond_the_ceiling_in_a_lake_are_left_out_before_the_step(broker, tmp_path):
    config = poisoned(broker.bootstrap_servers, 600, {50: 1e9, 300: -1e9})
    with patch("exfm.models.bad_rows.LARGEST_INPUT", 2**24):
        finished = to_the_end(config, tmp_path / "run")
    for model in finished.checkpoint("student-feed")[1]["quarantine"].values():
        assert {row["reason"] for row in model["last"]} == {"an input is too large"}
        assert model["rows"] == int((np.abs(finished.lake["bid"].to_numpy()) > 1e8).sum())
    assert_learned_the_lake(finished)


def test_a_model_that_leaves_out_most_of_batch_after_batch_gives_up_with_words(broker, tmp_path):
    poison = {number: 3e38 for number in range(300, 1200) if number % 3}
    config = poisoned(broker.bootstrap_servers, 1200, poison, resources__max_quarantined_in_a_row=2)
    status, _ = run(config, RunDir(tmp_path / "run"), local=True, until_end=True)
    assert status.state is RunState.FAILED
    assert status.reason is not None
    for words in ("3 batches one after the other lost more than 50% of their rows", "max_quarantined_in_a_row"):
        assert words in status.reason
    worker = status.reason.partition(":")[0]
    assert status.workers[worker].restarts == 0  # trying again would not help
    told = read_json(RunDir(tmp_path / "run").quarantine(worker))
    assert any(model["in_a_row"] == 3 for model in told.values())
