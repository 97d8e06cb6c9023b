"""A student's increments in its worker: published while they are wanted, never in the way of what it learns."""

from __future__ import annotations

import os

import pytest

from exfm.snapshots.increments.follower import Follower
from pipelines.core.config.settings import load
from pipelines.core.run_dir.lease import Lease
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.writer import Writer
from pipelines.live.workers.student.increments import Increments
from tests.support.models.states import same
from tests.support.pipelines.stored_run import SMALL_RUN, rows_of
from tests.support.pipelines.student_at_work import learn, starting
from tests.support.waiting import eventually

ALWAYS = ("registry.increments=always",)


class AtWork:
    """A worker's student with increments by a clock that is moved by hand."""

    def __init__(self, worker, root, *settings):
        config = load(SMALL_RUN, list(settings))
        self.worker, self.now, self.block = worker, 1000.0, 0
        self.root = RunDir(root).live("feed")
        self.increments = Increments(
            worker.state.engine.student, self.root, config.registry, worker.watch, lambda: self.now, identity="settings"
        )
        self.worker.increments = self.increments
        self.follower = Follower(self.root)

    def step(self, seconds: float) -> str | None:
        """A batch is learned, and so much time goes by; the version that a server would have then."""
        learn(self.worker, self.block)
        self.block += 1
        self.now += seconds
        self.increments.publish()
        eventually(self.idle)
        self.follower.look()
        return None if self.follower.value is None else self.follower.value.version

    def idle(self) -> bool:
        writers = [value for value in vars(self.increments).values() if isinstance(value, Writer)]
        return all(writer.idle for writer in writers)


@pytest.fixture
def at_work(tmp_path):
    with starting(load(SMALL_RUN), tmp_path) as start:
        yield lambda *settings: AtWork(start(), tmp_path, *settings)


def test_nothing_is_published_until_it_is_wanted_and_no_longer_than_it_is(at_work):
    work = at_work()
    assert work.step(2) is None
    assert not work.root.exists()
    lease = Lease(work.root / "wanted")
    lease.renew()
    work.now = (work.root / "wanted").stat().st_mtime
    assert work.step(1) == "v00000064+2"
    assert work.step(1) == "v00000096+3"
    work.now += 100
    assert work.step(1) == "v00000096+3"
    os.utime(work.root / "wanted", (work.now, work.now))
    assert work.step(1) == "v00000160+5"  # a full version: what was touched meanwhile was not counted
    exported = work.worker.state.engine.student.export().state_dict()
    assert same(work.follower.value.served.state_dict(), exported)


def test_an_increment_is_due_after_so_many_seconds_or_rows(at_work):
    work = at_work("registry.increments=always", "registry.increments_every_s=5", "registry.increments_every_rows=96")
    assert work.step(1) == "v00000032+2"
    assert [work.step(0.5) for _ in range(3)] == ["v00000032+2", "v00000032+2", "v00000128+3"]
    assert work.step(5) == "v00000160+4"


def test_never_means_never(at_work):
    work = at_work("registry.increments=never")
    work.root.mkdir(parents=True)
    Lease(work.root / "wanted").renew()
    work.now = (work.root / "wanted").stat().st_mtime
    assert work.step(1) is None


def test_trouble_with_the_disk_costs_increments_and_no_step_and_ends_with_a_full_version(at_work, monkeypatch):
    work = at_work("registry.increments=always")
    assert work.step(1) == "v00000032+2"
    with monkeypatch.context() as patch:
        patch.setattr(
            "exfm.snapshots.increments.chain.write_increment", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
        )
        assert work.step(1) == "v00000032+2"
    assert work.increments.trouble == "increments are not published: [Errno 28] full"
    assert work.step(1) == "v00000032+2"  # not at once
    assert work.step(20) == "v00000128+4"
    assert work.increments.trouble is None
    assert work.step(1) == "v00000160+5"


def test_what_was_learned_last_is_published_when_the_student_closes(at_work):
    work = at_work("registry.increments=always")
    work.step(1)
    assert work.step(0.1) == "v00000032+2"
    work.increments.close()
    work.follower.look()
    assert work.follower.value.version == "v00000064+3"
    work.worker.increments = None


def test_what_was_published_answers_until_a_student_that_started_again_has_learned_as_much(at_work):
    work = at_work(*ALWAYS)
    assert [work.step(1) for _ in range(3)] == ["v00000032+2", "v00000064+3", "v00000096+4"]
    started_again(work, "settings")  # from a checkpoint far back
    notice = "servers that follow it live keep v00000096+4 until lake_seq 95 is learned again"
    assert [(publishes(work, block), work.increments.notice) for block in (0, 1)] == [("v00000096+4", notice)] * 2
    assert (publishes(work, 2), work.increments.notice) == ("v00000096+6", None)
    assert publishes(work, 3) == "v00000128+7"
    started_again(work, "other settings")
    assert publishes(work, 0) == "v00000032+9"


def started_again(work, identity):
    work.increments.close()
    work.increments = Increments(
        work.worker.state.engine.student, work.root, load(SMALL_RUN, list(ALWAYS)).registry,
        work.worker.watch, lambda: work.now, identity=identity,
    )  # fmt: skip


def publishes(work, block):
    """The version that a server has, once the student has learned this block."""
    work.increments.note(work.worker.build(rows_of(block)), 32 * (block + 1) - 1, 32 * (block + 1))
    work.now += 1
    work.increments.publish()
    eventually(work.idle)
    work.follower.look()
    return work.follower.value.version


def test_a_student_learns_the_same_bits_with_increments_and_without(tmp_path):
    states = []
    for name, settings in (("with", ["registry.increments=always"]), ("without", ["registry.increments=never"])):
        with starting(load(SMALL_RUN), tmp_path / name) as start:
            work = AtWork(start(), tmp_path / name, *settings)
            for _ in range(4):
                work.step(1)
            states.append(work.worker.state.engine.state())
    assert same(*states)
