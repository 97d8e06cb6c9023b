"""Who stands still holds up those only that must wait for it, and nobody's memory grows meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import prepare
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from pipelines.live.workers.report import Report
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.teacher.worker import TeacherWorker
from pipelines.live.workers.worker import Orders, Worker
from streaming.kafka.topics import ensure_topics
from streaming.lake.writer import LakeTable
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.topics import by_hand, ipc, send
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.broker

ROWS, MESSAGE_ROWS, BUFFER_ROWS, BLOCK_ROWS = 6000, 50, 300, 256


def fed(servers: str, **settings: Any) -> Config:
    """A config, and its topics filled with `ROWS` impressions and their feedback, without an end."""
    config = small(
        servers,
        source=None,
        pace__block_rows=BLOCK_ROWS,
        augmentation__buffer_rows=BUFFER_ROWS,
        resources__read_rows=400,
        **settings,
    )
    shown, feedback = by_hand(config, ROWS)
    inputs = (
        (config.kafka.impressions.topic, shown, config.rows.impression),
        (config.kafka.feedback.topic, feedback, config.rows.feedback),
    )
    outputs = {topic.topic: 1 for topic in (config.kafka.examples, config.kafka.dead_letters)}
    ensure_topics(config.kafka, {topic: 2 for topic, *_ in inputs} | outputs)
    messages = []
    for topic, rows, schema in inputs:
        for partition in (0, 1):
            mine = [r for r in rows if r["impression_id"] % 2 == partition]
            messages += [
                (topic, partition, ipc(mine[n : n + MESSAGE_ROWS], schema)) for n in range(0, len(mine), MESSAGE_ROWS)
            ]
    send(servers, messages)
    return config


class Scene:
    """Workers of one run, opened; each is stepped only when told to."""

    def __init__(self, config: Config, root: Path) -> None:
        run_dir = RunDir(root)
        root.mkdir()
        prepare(config, run_dir)
        LakeTable(run_dir.lake, config.rows).open_writer()
        self.augmentation = AugmentationWorker(config, run_dir, until_end=False)
        self.teacher = TeacherWorker(config, run_dir)
        self.students = [StudentWorker(config, student, run_dir) for student in config.students]
        self.most_held = 0
        for worker in self.all:
            worker.open()

    @property
    def all(self) -> list[Worker]:
        return [self.augmentation, self.teacher, *self.students]

    def held(self) -> int:
        """Rows in augmentation's own buffers: read ahead, and settled and not yet committed."""
        return self.augmentation.stream.feed.intake._merge.buffered_rows + self.augmentation.block.num_rows

    def step(self, workers: list[Worker], until: Callable[[dict[str, Report]], bool]) -> dict[str, Report]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            reports = {}
            for worker in workers:
                reports[worker.name] = worker.advance(0.05, Orders())
                self.most_held = max(self.most_held, self.held())
            if until(reports):
                return reports
            assert time.monotonic() < deadline, {name: (r.lake_seq, r.note) for name, r in reports.items()}

    def close(self) -> None:
        for worker in self.all:
            worker.close()


@pytest.fixture
def scene(tmp_path):
    scenes: list[Scene] = []

    def make(config: Config) -> Scene:
        scenes.append(Scene(config, tmp_path / "run"))
        return scenes[-1]

    yield make
    for each in scenes:
        each.close()


BOUND = 4 * (BUFFER_ROWS + MESSAGE_ROWS) + BLOCK_ROWS
"""What the config allows: each of four partitions is read ahead by so much, in whole messages, and a block waits."""


def test_in_lockstep_augmentation_waits_for_a_teacher_that_stands_still_and_holds_no_more_meanwhile(broker, scene):
    config = fed(broker.bootstrap_servers)
    stage = scene(config)
    lag = config.pace.lag
    reports = stage.step([stage.augmentation], lambda r: r["augmentation"].note == "waiting for snapshot 1")
    assert reports["augmentation"].lake_seq == lag * BLOCK_ROWS - 1  # these are not scored
    held, read = stage.held(), stage.augmentation.rows
    for _ in range(10):
        stage.augmentation.advance(0.05, Orders())
    assert (stage.held(), stage.augmentation.rows) == (held, read)
    assert held <= BOUND

    # Students go on with what there is, and all goes on with the teacher.
    stage.step([*stage.students], lambda r: all(report.lag_rows == 0 for report in r.values()))
    stage.step([stage.augmentation, stage.teacher], lambda r: r["augmentation"].lake_seq >= 8 * BLOCK_ROWS - 1)
    assert stage.most_held <= BOUND


def test_in_free_pace_a_teacher_that_stands_still_stops_neither_the_lake_nor_students_nor_fills_memory(broker, scene):
    config = fed(broker.bootstrap_servers, pace__mode="free", pace__commit_interval_s=0.5)
    stage = scene(config)
    going = [stage.augmentation, *stage.students]

    def through(reports: dict[str, Report]) -> bool:
        lag = max(report.lag_rows or 0 for name, report in reports.items() if name != "augmentation")
        return (reports["augmentation"].lake_seq or 0) > 0.5 * ROWS and lag == 0

    reports = stage.step(going, through)
    assert reports["augmentation"].teacher_version is None
    assert reports["augmentation"].counts["teacher_inferences"] == 0
    assert stage.teacher.rows == 0
    assert stage.most_held <= BOUND
    # The lake waits for the teacher; nothing of it is held for it in memory.
    stage.step([stage.teacher], lambda r: r["teacher"].lag_rows == 0)


def test_a_student_that_stands_still_delays_nobody_and_finds_everything_later(broker, scene):
    config = fed(broker.bootstrap_servers)
    stage = scene(config)
    late, *others = stage.students
    goal = 10 * BLOCK_ROWS - 1
    going = [stage.augmentation, stage.teacher, *others]
    stage.step(going, lambda r: all((report.lake_seq or 0) >= goal for report in r.values()))
    assert late.rows == 0
    assert stage.most_held <= BOUND
    held = []

    def caught_up(reports: dict[str, Report]) -> bool:
        held.append(late.feed.waiting_rows)
        return reports[late.name].lag_rows == 0

    stage.step([late], caught_up)
    assert late.rows > 400
    assert max(held) <= 2 * config.resources.read_rows  # it reads the lake by the config's measure, not all at once
