"""Whatever is interrupted wherever: the run that goes on ends like one that never was, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from exfm.models.student import Student
from exfm.models.teacher import Teacher
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.training.predictions import PredictionLog
from pipelines.live.workers.checkpointer import Checkpointer
from pipelines.live.workers.student import export
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.teacher.worker import TeacherWorker
from streaming.delivery.outbox import CommitRecord, Outbox
from streaming.delivery.publisher import ExamplesPublisher
from streaming.kafka.writer import TopicWriter
from streaming.lake.readers import Readers
from streaming.lake.side_tables import SideTable
from streaming.lake.writer import LakeWriter
from streaming.settlement.settlement import Settlement
from tests.support.pipelines.crashes import Point, crash_at
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_same_run,
    everything,
    small,
    stop_after,
    to_the_end,
)

pytestmark = pytest.mark.broker

STREAM: dict[str, Any] = {
    "source__impressions": 3000,
    "source__chunk_rows": 1000,
    "source__duplicate_rate": 0.01,
    "source__malformed_rate": 0.02,
    "rows__tasks": [{"name": "ctr", "window_s": 900}, {"name": "cvr", "window_s": 7200, "given": "ctr"}],
    "pace__block_rows": 512,
    "teacher__batch_rows": 200,
    "kafka__examples__partitions": 2,
    "resources": {"min_free_disk_gb": 0, "max_restarts": 20},  # all crashes of a test may meet one student
}
Settings = Callable[..., Config]
AHEAD = {"teacher__read_ahead": 3, "resources": STREAM["resources"] | {"read_ahead": 3}}


def to_topic(stem: str, partition: int) -> Callable[..., bool]:
    return lambda writer, number, *args, **kwargs: writer.topic.startswith(stem) and number == partition


def end_marker(writer: TopicWriter, number: int, payloads: list[bytes], **kwargs: Any) -> bool:
    return payloads == [b""]


def to_table(name: str) -> Callable[..., bool]:
    return lambda table, rows, **kwargs: table.path.name == name and rows.num_rows


def of_kind(wanted: str) -> Callable[..., bool]:
    return lambda checkpointer, *args, kind, **kwargs: kind == wanted


def moved_on(worker: str) -> Callable[..., bool]:
    """A reader has said that it needs rows it once needed no more: the last act of a checkpoint."""
    return lambda readers, name, position, **kwargs: name == worker and position >= 0


POINTS = {
    "augmentation before it commits": [Point(Settlement, "save", 2), Point(CommitRecord, "save", 4)],
    "augmentation once it has committed": [
        Point(LakeWriter, "commit", 1),
        Point(LakeWriter, "commit", 4),
        Point(LakeWriter, "commit", 1, lambda writer, rows, **kwargs: rows is None),  # the last, which has no rows
    ],
    "augmentation while it delivers and publishes": [
        Point(SideTable, "append", 1, to_table("late_feedback")),
        Point(SideTable, "append", 2, to_table("dead_letters")),
        Point(TopicWriter, "write", 9, to_topic("small-dead_letters", 0)),
        Point(Outbox, "deliver", 5),
        Point(TopicWriter, "write", 2, to_topic("small-examples", 0)),
        Point(TopicWriter, "write", 4, to_topic("small-examples", 1)),
        Point(ExamplesPublisher, "publish", 5),
    ],
    # Files of models are written by a thread beside the training: a crash there is noticed some steps later.
    "the teacher": [
        Point(Teacher, "train_step", 5),
        Point(TeacherWorker, "checkpoint", 3),  # the copy is taken, nothing of it may be on disk
        Point(Checkpointer, "write", 3, of_kind("teacher-checkpoint")),
        Point(Checkpointer, "write", 6, of_kind("teacher-snapshot")),
        Point(Readers, "register", 1, moved_on("teacher")),
    ],
    "a student": [
        Point(Student, "train_step", 7),
        Point(StudentWorker, "checkpoint", 3),
        Point(PredictionLog, "write", 2),
        Point(Checkpointer, "write", 3, of_kind("student-checkpoint")),
        Point(export, "save_served", 4),
        Point(Readers, "register", 1, moved_on("student-feed")),
    ],
    "ingest": [
        Point(TopicWriter, "write", 2, to_topic("small-impressions", 1)),
        Point(TopicWriter, "write", 2, to_topic("small-feedback", 0)),
        Point(TopicWriter, "write", 1, end_marker),
    ],
}
MODELS = ("the teacher", "a student")
"""Whose state is larger where `everything` is on."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("pipelines.live.rules.restarts.FIRST_DELAY_S", 0.01)


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory) -> Callable[[Settings], Finished]:
    """The run of such settings that nothing interrupts: one for all tests."""

    @cache
    def to_its_end(settings: Settings) -> Finished:
        # Those that crash read ahead.
        config = settings(broker.bootstrap_servers, **STREAM, teacher__read_ahead=0)
        finished = to_the_end(config, tmp_path_factory.mktemp("undisturbed") / "run")
        assert len(finished.side_table("dead_letters")) > 30
        assert len(finished.side_table("late_feedback")) > 30
        assert_learned_the_lake(finished)
        return finished

    return to_its_end


@pytest.mark.parametrize("who", POINTS)
def test_a_crash_changes_nothing_of(who, undisturbed, broker, tmp_path, monkeypatch):
    crashed: list[Point] = []
    for point in POINTS[who]:
        crash_at(monkeypatch, point, crashed)
    settings = everything if who in MODELS else small
    config = settings(broker.bootstrap_servers, **STREAM | AHEAD)
    finished = to_the_end(config, tmp_path / "run")
    assert set(crashed) == set(POINTS[who])
    assert_same_run(finished, undisturbed(settings))
    assert finished.published() == list(range(finished.lake.num_rows))


def test_a_run_that_was_stopped_twice_goes_on_where_it_was(undisturbed, broker, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)
    config, run_dir = everything(broker.bootstrap_servers, **STREAM), RunDir(tmp_path / "run")
    for rows in (500, 2000):
        status, summary = run(config, run_dir, local=True, until_end=True, watch=stop_after(rows))
        assert status.state is RunState.STOPPED
        assert summary is None
    assert_same_run(to_the_end(config, tmp_path / "run"), undisturbed(everything))
