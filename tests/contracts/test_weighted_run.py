"""A whole run whose rows are weighted, whose students leave negatives out, and whose figures are grouped by user."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from exfm.metrics.classification import metrics_of
from pipelines.core.config.settings import Config, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.data import data_of
from pipelines.lab.replay.settings import Spec
from pipelines.lab.replay.stream import stream_of
from pipelines.lab.spec.arms import ArmSpec
from pipelines.lab.spec.conditions import Condition
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.training.predictions import read_predictions
from streaming.hashing import hash64
from tests.support.pipelines.replay_workspaces import AsItIs, learned_alone
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_same_run,
    everything,
    labels_of,
    to_the_end,
)
from tests.support.pipelines.summaries import counts_hold, rows_hold
from tests.support.pipelines.topics import by_hand, ipc, make_inputs, send

pytestmark = pytest.mark.broker

RATES = {"ctr": 0.3, "cvr": 0.5}


def config_of(broker: Any, **changes: Any) -> Config:
    raw = everything(broker.bootstrap_servers, source=None, metrics__group_by="user_id").model_dump(mode="json")
    raw["rows"]["columns"].append({"name": "sample_weight", "type": "float32"})
    for student in raw["students"]:
        student["negative_rate"] = {"ctr": 0.3} if student["name"] == "clicks" else RATES
    raw["resources"] |= changes
    return parse(raw)


def fill(config: Config) -> None:
    """A stream with weights, two of them no weights at all."""
    make_inputs(config)
    shown, feedback = by_hand(config, 3000)
    weights = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 3.0], len(shown))
    shown = [row | {"sample_weight": weight} for row, weight in zip(shown, weights.tolist(), strict=True)]
    shown[7] |= {"sample_weight": -1.0}
    shown[9] |= {"sample_weight": float("nan")}
    for topic, rows, schema in (
        (config.kafka.impressions.topic, shown, config.rows.impression),
        (config.kafka.feedback.topic, feedback, config.rows.feedback),
    ):
        parts = ([row for row in rows if row["impression_id"] % 2 == partition] for partition in (0, 1))
        send(config.kafka.bootstrap_servers, [(topic, p, ipc(part, schema)) for p, part in enumerate(parts)])


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory) -> Finished:
    config = config_of(broker)
    fill(config)
    return to_the_end(config, tmp_path_factory.mktemp("weighted") / "run")


def test_weights_that_are_none_are_dead_letters(finished):
    reasons = sorted(letter["reason"] for letter in finished.side_table("dead_letters"))
    assert [r for r in reasons if "weight" in r] == ["not_finite:sample_weight", "out_of_range:sample_weight"]
    assert counts_hold(finished.summary["counts"])


def test_learned_and_left_out_are_together_the_lake(finished):
    assert_learned_the_lake(finished)
    workers, lake = finished.summary["workers"], finished.lake
    assert rows_hold(workers)
    for student in finished.config.students:
        worker = workers[f"student-{student.name}"]
        groups = [g.name for g in finished.config.rows.groups if g.name in finished.config.student_tasks(student)]
        mine = pc.and_(
            pc.is_in(lake["vertical"], pa.array(labels_of(student) or lake["vertical"].unique().to_pylist())),
            pc.is_in(lake["settlement"], pa.array(groups)),
        )
        assert worker["given_rows"] == pc.sum(mine).as_py()
        assert worker["left_out_by_sampling"] > 0.4 * worker["given_rows"]
    assert "left_out_by_sampling" not in workers["teacher"]


def test_predictions_say_what_a_row_stands_for_and_the_summary_is_made_of_it(finished):
    lake = {row["lake_seq"]: row for row in finished.lake.select(["lake_seq", "user_id", "sample_weight"]).to_pylist()}
    table = read_predictions(finished.run_dir.predictions("feed"))
    assert table is not None
    users = pa.array([lake[seq]["user_id"] for seq in table["lake_seq"].to_pylist()])
    assert table["group"].to_numpy().tolist() == hash64(users).tolist()
    for task, rate in RATES.items():
        known = table.filter(pc.and_(pc.is_valid(table[f"label_{task}"]), pc.is_valid(table[f"teacher_{task}"])))
        weight = np.array([lake[seq]["sample_weight"] for seq in known["lake_seq"].to_pylist()])
        labels = known[f"label_{task}"].to_numpy()
        expected = weight / np.where(labels == 0, rate, 1)
        assert known[f"weight_{task}"].to_numpy() == pytest.approx(expected, rel=1e-6)
        told = finished.summary["students"]["feed"][task]
        figures = metrics_of(known[f"student_{task}"].to_numpy(), labels, expected)
        labelled = pc.sum(pc.is_valid(table[f"label_{task}"])).as_py()
        assert told["rows_left_out"] == labelled - known.num_rows  # no snapshot had learned anything yet
        assert told["student"]["ne"] == pytest.approx(figures.ne, rel=1e-6)
        assert (told["rows"], told["positives"]) == (figures.rows, figures.positives)
    clicks = finished.summary["students"]["feed"]["ctr"]
    assert 0.3 < clicks["student"]["gauc"] < 1
    assert clicks["gain_by_group"]["clusters"] > clicks["gauc_groups"] > 20


def test_a_sweep_of_its_lake_cuts_weighs_and_leaves_out_as_its_students_did(finished, tmp_path):
    """With weights, rates, histories of labels and of logits, two settlement groups and a student of one task alone."""
    config = finished.config
    sweep, fresh = Spec(config="-", seeds=(config.seed,), arms={"none": ArmSpec()}), Condition()
    workspace = AsItIs(sweep, config, tmp_path, finished.run_dir)
    for student in config.students:
        data = data_of(stream_of(workspace, config.seed, fresh), config, student)
        told = read_predictions(finished.run_dir.predictions(student.name))
        assert told is not None
        learned = np.concatenate([batch.rows for batch in data.stream if batch.learned])
        assert data.places[learned].tolist() == told["lake_seq"].to_pylist()
        life = learned_alone(workspace, config.seed, student, data)
        assert np.isfinite(life["logits"]).all()
        for t, task in enumerate(config.student_tasks(student)):
            assert (life["as_learned"][learned, t] == told[f"student_{task}"].to_numpy()).all()


@pytest.mark.slow
def test_a_run_that_was_stopped_and_reads_ahead_leaves_out_the_same_rows(finished, broker, tmp_path):
    config = config_of(broker, read_ahead=2, read_rows=700)
    fill(config)
    stopped = False

    def stop(status: Any) -> None:
        nonlocal stopped
        trained = any(name.startswith("student") and w.report and w.report.rows for name, w in status.workers.items())
        if trained and not stopped:
            stopped = True
            os.kill(os.getpid(), signal.SIGTERM)

    status, _ = run(config, RunDir(tmp_path / "run"), local=True, until_end=True, watch=stop)
    assert status.state is RunState.STOPPED
    again = to_the_end(config, tmp_path / "run")
    assert_same_run(finished, again)
    for worker in again.models:
        key = "left_out_by_sampling"
        assert again.checkpoint(worker)[1].get(key) == finished.checkpoint(worker)[1].get(key)
