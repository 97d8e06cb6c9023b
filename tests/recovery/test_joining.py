"""A run that is stopped, and continues with other students: whoever stays ends as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.core.config.settings import Config, dump, load, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.loop.live_run import LiveRun
from pipelines.live.rules.states import RunState
from streaming.errors import BadInput
from streaming.lake.readers import Readers
from streaming.store.files import read_json
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_same_student,
    everything,
    stop_after,
    to_the_end,
)

pytestmark = pytest.mark.broker

STREAM: dict[str, Any] = {"source__impressions": 3000, "pace__block_rows": 256, "teacher__batch_rows": 128}


def with_students(config: Config, *students: dict[str, Any]) -> Config:
    raw = yaml.safe_load(dump(config))
    kept = {student["name"]: student for student in raw["students"]}
    raw["students"] = [kept.get(student["name"], {}) | student for student in students]
    return parse(raw)


def stopped(config: Config, root: Path, rows: int) -> list[str]:
    said: list[str] = []
    status, _ = run(config, RunDir(root), local=True, until_end=True, watch=stop_after(rows), say=said.append)
    assert status.state is RunState.STOPPED, status.reason
    return said


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)


FEED, BRAND, CLICKS = ({"name": name} for name in ("feed", "brand", "clicks"))


def late_student(config: Config) -> dict[str, Any]:
    model = config.students[0].model.model_dump(mode="json")
    return {"name": "late", "verticals": ["travel", "shop"], "batch_rows": 100, "model": model}


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory) -> Finished:
    """With all four students from its beginning to its end."""
    config = everything(broker.bootstrap_servers, **STREAM)
    everyone = with_students(config, FEED, BRAND, CLICKS, late_student(config))
    return to_the_end(everyone, tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.slow
def test_students_join_and_leave_a_stopped_run_and_no_one_else_notices(undisturbed, broker, tmp_path):
    first = everything(broker.bootstrap_servers, **STREAM)
    late, feed, brand, clicks = late_student(first), FEED, BRAND, CLICKS
    root, run_dir = tmp_path / "run", RunDir(tmp_path / "run")
    stopped(first, root, 700)
    joined = with_students(first, feed, brand, late, clicks)
    said = stopped(joined, root, 1500)
    assert any(line.startswith("student `late` joins and learns the lake from its first row on") for line in said)

    with pytest.raises(BadInput, match="student `late` has learned under other settings \\(batch_rows was 100, is 50"):
        run(with_students(first, feed, brand, late | {"batch_rows": 50}, clicks), run_dir, local=True)

    without_brand = with_students(first, feed, late, clicks)
    said = []
    finished = to_the_end(without_brand, root, say=said.append)
    assert any(line.startswith("student `brand` leaves") for line in said)
    assert {reader.name for reader in Readers(run_dir.readers).all()} == {
        "teacher", "student-feed", "student-late", "student-clicks", "examples topic",
    }  # fmt: skip

    assert finished.rows.equals(undisturbed.rows)
    assert finished.summary["counts"] == undisturbed.summary["counts"]
    assert finished.checkpoint("teacher")[0] == undisturbed.checkpoint("teacher")[0]
    for student in ("feed", "clicks", "late"):
        assert_same_student(finished, undisturbed, student)
    assert "brand" not in finished.summary["students"]
    assert_learned_the_lake(finished)

    # Finished, and not finished with one more: it learns the whole lake; the one that left is back with its checkpoint.
    said = []
    again = to_the_end(with_students(first, feed, late, clicks, brand), root, say=said.append)
    assert any(line.startswith("student `brand` is back") for line in said)
    assert_same_student(again, undisturbed, "brand")
    assert again.summary["students"] == undisturbed.summary["students"]
    assert again.checkpoint("teacher") == finished.checkpoint("teacher")


@pytest.mark.slow
def test_students_join_and_leave_a_run_that_is_up_and_no_one_else_notices(undisturbed, broker, tmp_path):
    config, run_dir = everything(broker.bootstrap_servers, **STREAM), RunDir(tmp_path / "run")
    late = late_student(config)

    def attend(live: LiveRun) -> None:
        workers = live.workers
        if "student-late" not in workers and live.status.lake.rows > 700:
            with pytest.raises(BadInput, match="two students are named `feed`"):
                live.spawn(late | {"name": "feed"})
            live.spawn(late)
        states = {name: str(worker.status.state) for name, worker in workers.items()}
        if states.get("student-late") == "running" and states["student-brand"] != "retired":
            live.retire("brand")

    finished = to_the_end(config, run_dir.root, attend=attend)
    assert finished.rows.equals(undisturbed.rows)
    assert finished.summary["counts"] == undisturbed.summary["counts"]
    assert finished.checkpoint("teacher")[0] == undisturbed.checkpoint("teacher")[0]
    for student in ("feed", "clicks", "late"):
        assert_same_student(finished, undisturbed, student)
    assert set(finished.summary["students"]) == {"feed", "clicks", "late"}
    assert [student.name for student in load(run_dir.config).students] == ["feed", "clicks", "late"]
    assert "student-brand" not in {reader.name for reader in Readers(run_dir.readers).all()}
    assert read_json(run_dir.status)["workers"]["student-brand"]["state"] == "retired"
