"""Training goes on while its checkpoints are written, and what is written is the moment the copy was taken."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from exfm.models.served import load_served
from exfm.snapshots import checkpoint
from exfm.snapshots.checkpoint import checkpoint_names, load_checkpoint
from pipelines.core.config.settings import load as load_config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.feeds.student import StudentBatch
from pipelines.live.rules.causes import cause_of
from pipelines.live.rules.restarts import Cause
from pipelines.live.training.predictions import read_predictions
from pipelines.live.workers import checkpointer
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.teacher.worker import TeacherWorker
from pipelines.live.workers.worker import Orders
from streaming.delivery.reader import Block, BlockPosition
from streaming.errors import StreamingError
from streaming.lake.readers import Readers
from streaming.position import Partition, SourcePosition
from tests.support.models.states import same
from tests.support.pipelines.disks import DiskFull, disk_of_its_own, fill, waits_for_disk
from tests.support.pipelines.stored_run import SMALL_RUN, rows_of
from tests.support.waiting import PATIENCE_S, eventually

CONFIG = load_config(SMALL_RUN, ["teacher.batch_rows=32", "teacher.saves=whole"])
NO_LAKE: Any = None


class SlowDisk:
    """Every checkpoint waits until the test lets it through; `full`: there is no room for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._allowed = threading.Semaphore(0)
        self.full = False
        self.began = 0
        save = checkpoint.save_checkpoint

        def slow(*args, **kwargs):
            if kwargs["kind"].endswith("-snapshot"):
                return save(*args, **kwargs)
            self.began += 1
            assert self._allowed.acquire(timeout=PATIENCE_S)
            if self.full:
                raise DiskFull(28, "No space left on device")
            return save(*args, **kwargs)

        monkeypatch.setattr(checkpointer, "save_checkpoint", slow)

    def let_through(self, count: int) -> None:
        for _ in range(count):
            self._allowed.release()


@pytest.fixture
def disk(monkeypatch):
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.let_through(100)


@pytest.fixture
def teacher(tmp_path, disk):
    worker = TeacherWorker(CONFIG, RunDir(tmp_path))
    worker.resume()
    yield worker
    disk.let_through(100)
    worker.abandon()
    worker.engine.close()


@pytest.fixture
def student(tmp_path, disk):
    worker = StudentWorker(CONFIG, CONFIG.students[0], RunDir(tmp_path))
    worker.resume()
    worker.state.record.predictions.open(worker.position)
    yield worker
    disk.let_through(100)
    worker.abandon()


class Topic:
    """A reader of the examples topic: these blocks, then nothing, and at its end whatever is asked for."""

    def __init__(self, *blocks: Block) -> None:
        self.blocks = list(blocks)

    def next_batch(self, wait_s: float) -> Block | None:
        return self.blocks.pop(0) if self.blocks else None

    def at_end(self) -> bool:
        return True

    def seek(self, position: BlockPosition) -> None:
        pass

    def close(self) -> None:
        pass


def block_of(number: int, positions: dict[Partition, SourcePosition] | None = None) -> Block:
    return Block(number, number * 32, number * 32 + 31, rows_of(number), positions or {})


def learn_block(worker: TeacherWorker, number: int) -> dict[str, torch.Tensor]:
    """One block; returns the state at its end."""
    worker.feed_from(Topic(block_of(number)), NO_LAKE)
    while worker.place.version == number:
        worker.step()
    return worker.engine.state()


def test_a_disk_that_stands_still_delays_no_step_of_the_teacher_until_the_queue_is_full(
    teacher, disk, tmp_path, monkeypatch
):
    waits = waits_for_disk(monkeypatch)
    states = [learn_block(teacher, 0)]
    eventually(lambda: disk.began == 1)  # it is being written, and stands still
    states.append(learn_block(teacher, 1))  # waits in the queue, whose bound is 1
    assert set(teacher.watch.phases_s) >= {"train", "metrics", "checkpoint"}
    assert "wait for disk" not in teacher.watch.phases_s
    assert checkpoint_names(tmp_path / "checkpoints" / "teacher") == []

    late = threading.Thread(target=lambda: states.append(learn_block(teacher, 2)))
    late.start()
    assert waits.wait(PATIENCE_S)
    late.join(0.1)
    assert late.is_alive()  # full: memory does not grow, training waits for the disk
    disk.let_through(1)
    late.join(PATIENCE_S)
    assert not late.is_alive()
    assert teacher.watch.phases_s["wait for disk"] > 0.05

    disk.let_through(2)
    eventually(lambda: teacher.checkpointer.idle)
    saved = tmp_path / "checkpoints" / "teacher"
    assert checkpoint_names(saved) == ["v00000002", "v00000003"]
    for version in (2, 3):  # each is its own moment, although training went on while it was written
        name = f"v{version:08d}"
        stored = load_checkpoint(saved / name).tensors
        assert same(states[version - 1], {key: stored[key] for key in states[version - 1]})
        snapshot = load_checkpoint(tmp_path / "snapshots" / "teacher" / name).tensors
        assert same(snapshot, {key: states[version - 1][key] for key in snapshot})
    assert checkpoint_names(tmp_path / "snapshots" / "teacher")[-3:] == [f"v{version:08d}" for version in (1, 2, 3)]


def test_the_snapshot_never_comes_before_its_checkpoint_nor_the_readers_position_before_either(teacher, disk, tmp_path):
    def position() -> int:
        return next(r.position for r in Readers(RunDir(tmp_path).readers).all() if r.name == "teacher")

    assert position() == -1
    learn_block(teacher, 0)
    eventually(lambda: disk.began == 1)
    assert not (tmp_path / "snapshots" / "teacher" / "v00000001").exists()
    assert position() == -1
    disk.let_through(1)
    eventually(lambda: teacher.checkpointer.idle)
    assert position() == 31
    for number in (1, 2):
        learn_block(teacher, number)
        disk.let_through(1)
    eventually(lambda: teacher.checkpointer.idle)
    assert position() == 63  # the checkpoint before the last is kept too, and would go on from there


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_snapshot_that_was_set_aside_as_damaged_is_written_again_to_the_same_bytes(teacher, disk, tmp_path):
    disk.let_through(100)
    for number in range(3):
        learn_block(teacher, number)
    eventually(lambda: teacher.checkpointer.idle)
    snapshots = tmp_path / "snapshots" / "teacher"
    before = {name: contents(snapshots / name) for name in checkpoint_names(snapshots)}
    assert list(before) == [f"v{version:08d}" for version in (1, 2, 3)]
    for name in ("v00000002", "v00000003"):  # those whose checkpoints are kept
        checkpoint.set_checkpoint_aside(snapshots / name)
    teacher.feed_from(Topic(), NO_LAKE)
    for _ in range(3):  # a step that finds nothing to learn looks for them
        assert not teacher.step()
        eventually(lambda: teacher.checkpointer.idle)
    assert {name: contents(snapshots / name) for name in checkpoint_names(snapshots)} == before


def test_a_worker_at_the_end_of_its_stream_is_done_once_everything_is_on_disk(teacher, disk, tmp_path):
    teacher.orders = Orders(end_seq=31)
    learn_block(teacher, 0)
    assert not teacher.step()
    assert not teacher.step()
    assert not teacher.done
    disk.let_through(1)
    eventually(teacher.step)
    assert teacher.done
    assert checkpoint_names(tmp_path / "checkpoints" / "teacher") == ["v00000001"]


def test_nobody_takes_up_a_students_work_while_its_predecessor_may_still_write(student, tmp_path):
    successor = StudentWorker(CONFIG, CONFIG.students[0], RunDir(tmp_path))
    with pytest.raises(StreamingError, match="another process still works as `student-feed`"):
        successor.resume()
    student.abandon()
    successor.resume()
    successor.abandon()


class Quiet:
    """A lake up to `lake_seq` 99, none of whose rows pass the student's filter."""

    end_seq = None

    def open(self, position: int | None = None) -> None:
        pass

    def next_batch(self) -> None:
        return None

    def position(self) -> int:
        return 99

    def close(self) -> None:
        pass


def test_a_student_whose_vertical_is_quiet_moves_past_the_rows_of_others_too(student, disk, tmp_path, monkeypatch):
    disk.let_through(1)
    student.feed_from(Quiet())
    assert not student.step()
    assert checkpoint_names(tmp_path / "checkpoints" / "student-feed") == []  # it has registered just now
    monkeypatch.setattr(checkpointer, "REGISTER_EVERY_S", 0.0)
    assert not student.step()
    readers = Readers(tmp_path / "lake" / "readers")
    eventually(lambda: readers.lowest(now_s=0, expiry_s=1e12) == 98)
    assert checkpoint_names(tmp_path / "checkpoints" / "student-feed") == ["v00000100"]


def test_the_last_rows_come_from_the_lake_where_the_topic_has_forgotten_them(teacher, disk, tmp_path):
    disk.let_through(2)
    lake: Any = SimpleNamespace(refresh=lambda: None, blocks=lambda after, upto: iter([rows_of(0)]))
    teacher.feed_from(Topic(), lake)
    assert not teacher.step()  # nothing on the topic yet
    teacher.orders = Orders(end_seq=31)
    eventually(lambda: teacher.step() and teacher.done)
    assert load_checkpoint(tmp_path / "checkpoints" / "teacher" / "v00000001").meta["lake_seq"] == 31


def test_a_position_is_what_was_trained_and_not_what_was_read_ahead(teacher, disk, tmp_path):
    disk.let_through(5)
    topic = Partition(CONFIG.kafka.examples.topic, 0)
    reader = Topic(*(block_of(n, {topic: SourcePosition(n + 1)}) for n in range(4)))
    teacher.feed_from(reader, NO_LAKE)
    eventually(lambda: len(reader.blocks) == 2)  # two batches lie ready, of two blocks
    while teacher.place.version < 1:
        teacher.step()
    eventually(lambda: len(reader.blocks) == 1)
    eventually(lambda: checkpoint_names(tmp_path / "checkpoints" / "teacher") == ["v00000001"])
    meta = load_checkpoint(tmp_path / "checkpoints" / "teacher" / "v00000001").meta
    assert (meta["lake_seq"], meta["positions"]) == (31, [[*topic, *SourcePosition(1)]])
    assert teacher.place.lake_seq == 31
    phases = teacher.watch.phases_s
    assert {
        "read",
        "batch",
        "train",
        "wait for rows",
    } <= phases.keys()  # the thread's time shows, and is not counted twice
    assert teacher.watch.busy_s < sum(seconds for phase, seconds in phases.items() if not phase.startswith("wait"))


def test_what_the_reading_thread_dies_of_the_worker_dies_of(teacher, disk):
    reader: Any = SimpleNamespace(next_batch=lambda wait_s: 1 / 0, close=lambda: None)
    teacher.feed_from(reader, NO_LAKE)
    with pytest.raises(ZeroDivisionError):
        eventually(teacher.step)


def learn(worker: StudentWorker, block: int) -> None:
    worker.learn(StudentBatch(rows_of(block), worker.build(rows_of(block))))  # a checkpoint is due after every 16 rows


def test_what_a_killed_writer_left_is_cleared_away_and_what_is_damaged_is_not(tmp_path):
    folder = tmp_path / "checkpoints" / "student-feed"
    for name in (".v00000001.0123abcd", ".damaged-v00000002"):
        (folder / name).mkdir(parents=True)
    worker = StudentWorker(CONFIG, CONFIG.students[0], RunDir(tmp_path))
    worker.resume()
    worker.abandon()
    assert [path.name for path in folder.iterdir()] == [".damaged-v00000002"]


def test_a_disk_that_fails_ends_the_worker_at_its_next_step_also_when_there_is_nothing_to_learn(teacher, disk):
    learn_block(teacher, 0)
    disk.full = True
    disk.let_through(1)
    with pytest.raises(DiskFull, match="No space left"):
        eventually(lambda: teacher.checkpointer.check() is not None)
    for ask in (teacher.step, teacher.checkpointer.close):
        with pytest.raises(DiskFull, match="No space left"):
            ask()


@pytest.mark.parametrize("bits", [None, 4])
def test_a_snapshot_that_a_full_disk_has_no_room_for_is_written_after_the_restart(tmp_path, bits):
    changes = ["teacher.batch_rows=32", "teacher.saves=whole", f"teacher.publish_bits={bits or 'null'}"]
    config = load_config(SMALL_RUN, changes)

    def published(root: Path, blocks: range) -> TeacherWorker:
        worker = TeacherWorker(config, RunDir(root))
        worker.resume()
        for number in blocks:
            learn_block(worker, number)
        return worker

    def closed(worker: TeacherWorker) -> None:
        worker.checkpointer.close()
        worker.engine.close()

    closed(published(tmp_path / "one", range(2)))
    undisturbed = RunDir(tmp_path / "one").snapshots
    run_dir = RunDir(tmp_path / "other")
    with disk_of_its_own(run_dir.snapshots) as place:
        worker = published(tmp_path / "other", range(1))
        eventually(lambda: worker.checkpointer.idle)
        ballast = fill(place)
        learn_block(worker, 1)
        with pytest.raises(OSError, match="No space left") as full:
            eventually(lambda: worker.checkpointer.check() is not None)
        assert cause_of(full.value) is Cause.DISK_FULL
        assert str(run_dir.snapshots / "v00000002") in str(full.value)
        worker.abandon()
        worker.engine.close()
        assert checkpoint_names(run_dir.checkpoints("teacher")) == ["v00000001", "v00000002"]
        assert {path.name for path in place.iterdir()} == {"ballast", "v00000001"}  # nothing half-written

        ballast.unlink()
        worker = published(tmp_path / "other", range(0))
        assert worker.place.version == 2
        worker.publish()
        closed(worker)
        assert checkpoint_names(place) == ["v00000001", "v00000002"]
        assert [contents(place / name) for name in checkpoint_names(place)] == [
            contents(undisturbed / name) for name in checkpoint_names(undisturbed)
        ]


def test_what_a_student_serves_is_the_moment_of_its_checkpoint_though_it_learned_on_meanwhile(student, disk, tmp_path):
    for first in range(3):
        learn(student, first)
        if first == 0:
            probe = student.build(rows_of(9))
            said = student.state.engine.score(probe)
            eventually(lambda: disk.began == 1)
            assert "wait for disk" not in student.watch.phases_s
        if first == 1:
            disk.let_through(1)
    disk.let_through(2)
    eventually(lambda: student.checkpointer.idle)
    assert checkpoint_names(tmp_path / "checkpoints" / "student-feed") == ["v00000064", "v00000096"]
    assert checkpoint_names(tmp_path / "snapshots" / "students" / "feed") == ["v00000064", "v00000096"]
    served = load_served(tmp_path / "snapshots" / "students" / "feed" / "v00000096")
    np.testing.assert_allclose(served.score(probe), student.state.engine.score(probe), atol=1e-6)
    assert np.abs(said - student.state.engine.score(probe)).max() > 1e-4  # it had learned on
    predicted = read_predictions(tmp_path / "predictions" / "feed")
    assert predicted["lake_seq"].to_pylist() == list(range(96))


def test_an_export_that_is_not_the_student_of_its_moment_is_refused_and_training_goes_on(
    student, disk, monkeypatch, tmp_path
):
    from pipelines.live.workers.student import export as module

    load = module.load_student
    disk.let_through(3)
    learn(student, 0)
    eventually(lambda: student.checkpointer.idle)
    monkeypatch.setattr(module, "load_student", lambda served, state: None)  # serves what it was before
    learn(student, 1)
    eventually(lambda: student.checkpointer.idle)
    exported = tmp_path / "snapshots" / "students" / "feed"
    assert checkpoint_names(exported) == ["v00000032"]
    assert checkpoint_names(tmp_path / "checkpoints" / "student-feed") == ["v00000032", "v00000064"]
    assert "export v00000064 of the no_teacher was refused: the export differs from the student" in student.alarm
    monkeypatch.setattr(module, "load_student", load)
    learn(student, 2)
    eventually(lambda: student.checkpointer.idle)
    assert student.alarm is None
    assert checkpoint_names(exported) == ["v00000032", "v00000096"]


def test_a_student_keeps_the_row_that_its_export_is_checked_with(student, disk, tmp_path):
    disk.let_through(1)
    learn(student, 0)
    eventually(lambda: student.checkpointer.idle)
    (reader,) = Readers(tmp_path / "lake" / "readers").all()
    assert reader.position == 30
