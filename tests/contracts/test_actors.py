"""What becomes of a worker in a real Ray actor: each way to end, as the coordinator sees it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from pipelines.core.config.sections import Resources
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.fork_server import ForkServer
from pipelines.live.launch.preloaded import PLAIN, worker_forks
from pipelines.live.launch.ray import RayLauncher
from pipelines.live.loop.worker_spec import WorkerSpec
from pipelines.live.rules.causes import Died
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.restarts import Cause
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders, Worker
from streaming.errors import BrokerAway, DataLost, StreamingError
from streaming.store.files import read_json
from tests.support.pipelines.scripted_run import live_run
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.ray


class Scripted(Worker):
    """Steps until it has lived for so many steps, then does what it was made for."""

    kind = "teacher"

    def __init__(self, ending: str, place: Path) -> None:
        super().__init__("teacher")
        self._ending, self._place = ending, place
        self._done = False

    def open(self) -> None:
        pass

    @property
    def done(self) -> bool:
        return self._done

    def step(self) -> bool:
        self.rows += 1
        time.sleep(0.01)  # work: a step
        first = not (self._place / "died").exists()
        if self.rows == 100:
            (self._place / "died").touch()
            if first:
                self._end()
            self._done = True
        return True

    def _end(self) -> None:
        if self._ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._ending == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._ending == "broker":
            raise StreamingError("publishing failed") from BrokerAway("nobody answers at 127.0.0.1:9092")
        elif self._ending == "disk":
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            except OSError:
                raise ValueError("while writing a checkpoint")  # noqa: B904
        elif self._ending == "gap":
            raise DataLost("retention has deleted all before 7")


@pytest.fixture(scope="module")
def forks() -> ForkServer:
    return worker_forks()


@pytest.fixture(scope="module")
def launcher(forks: ForkServer) -> Iterator[RayLauncher]:
    launcher = RayLauncher(Resources(cpus_per_worker=0.1), forks)
    yield launcher
    launcher.shutdown()


PLAIN_START = """
import sys
from functools import partial
from pathlib import Path
import psutil
from pipelines.core.config.sections import Resources
from pipelines.live.launch.ray import RayLauncher
from pipelines.live.rules.causes import Died
from tests.contracts.test_actors import build, lived
launcher = RayLauncher(Resources(cpus_per_worker=0.1))
report = lived(launcher, "none", Path(sys.argv[1]))
servers = [each for each in psutil.Process().children() if "fork_server" in " ".join(each.cmdline())]
print(servers, not isinstance(report, Died), report.done)
launcher.shutdown()
"""


def build(ending: str, place: Path, rendezvous: Rendezvous) -> Worker:
    return Scripted(ending, place)


def lived(launcher: RayLauncher, ending: str, place: Path) -> Report | Died:
    """Poll a worker until it is done or dead."""
    handle = launcher.start("teacher", partial(build, ending, place), place / "teacher.log")

    def ended() -> Report | None:
        report = handle.poll(Orders())
        return report if report is not None and report.done else None

    try:
        report: Report = eventually(ended, lambda: "it neither ends nor dies", look_s=0.02)
        return report
    except Died as death:
        return death
    finally:
        handle.kill()


def test_a_worker_is_a_fork_of_the_server_that_was_started_first(forks, launcher, tmp_path):
    handle = launcher.start("teacher", partial(build, "none", tmp_path), tmp_path / "teacher.log")
    report = eventually(lambda: handle.poll(Orders()), look_s=0.02)
    assert psutil.Process(report.pid).ppid() == forks.pid
    handle.kill()


@pytest.mark.slow
def test_workers_run_too_where_ray_starts_them_by_itself(tmp_path):
    """In a process of its own: a process has one Ray."""
    script = tmp_path / "plain.py"
    script.write_text(PLAIN_START)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, PLAIN: "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE_S,
    )
    assert done.stdout.splitlines() == ["[] True True"], done.stderr


@pytest.mark.parametrize(
    ("ending", "cause", "words"),
    [
        ("killed", Cause.CRASH, "actor"),
        ("broker", Cause.BROKER_AWAY, "StreamingError: publishing failed"),
        pytest.param("disk", Cause.DISK_FULL, "ValueError: while writing a checkpoint", marks=pytest.mark.slow),
        pytest.param("gap", Cause.PERMANENT, "DataLost: retention has deleted all before 7", marks=pytest.mark.slow),
    ],
)
def test_the_cause_of_a_death_comes_out_of_the_actors_process(launcher, tmp_path, ending, cause, words):
    death = lived(launcher, ending, tmp_path)
    assert isinstance(death, Died)
    assert death.cause is cause
    assert words in str(death)


def test_where_a_limit_on_processes_was_met_the_worker_is_given_up_on_at_once_and_the_limit_is_named(
    launcher, tmp_path, monkeypatch
):
    """Its process says so to Ray's logs alone, and ends, or stands still."""
    monkeypatch.setattr("pipelines.live.launch.ray.LOOK_S", 0.0)
    (raylet,) = (child for child in psutil.Process().children() if child.name() == "raylet")
    (folder,) = (word.partition("=")[2] for word in raylet.cmdline() if word.startswith("--log_dir="))
    log = Path(folder) / "worker-of-the-test.err"
    log.write_text("E1126 08:22:01.783694 15227 thd.cc:157] pthread_create failed: Resource temporarily unavailable\n")
    try:
        death = lived(launcher, "none", tmp_path)
        assert isinstance(death, Died)
        assert death.cause is Cause.PERMANENT
        assert "no process for teacher within 0 s: no more processes or threads can be started here: " in str(death)
        monkeypatch.undo()
        death = lived(launcher, "killed", tmp_path)
        assert isinstance(death, Died)
        assert death.cause is Cause.CRASH
        assert "actor" in str(death)
        assert "no more processes or threads can be started here: " in str(death)
    finally:
        log.unlink()


@pytest.mark.check
def test_a_worker_stopped_by_a_signal_is_killed_after_its_silence_and_started_again(launcher, tmp_path):
    run_dir, pids = RunDir(tmp_path), []

    def watch(status: RunStatus) -> None:
        report = status.workers["teacher"].report
        pids.extend({report.pid} - set(pids) if report is not None else ())

    jobs = [WorkerSpec("teacher", Kind.TEACHER, partial(build, "stopped", tmp_path))]
    (tmp_path / "logs").mkdir()
    resources = Resources(hang_s=10, min_free_disk_gb=0)
    assert live_run(launcher, run_dir, RunStatus("silent"), jobs, resources).run(watch) is RunState.DONE
    worker = read_json(run_dir.status)["workers"]["teacher"]
    assert (worker["state"], worker["restarts"], worker["rows"]) == ("done", 1, 100)
    assert len(pids) == 2
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert psutil.wait_procs(left, timeout=PATIENCE_S)[1] == []


class Counting(Worker):
    """Counts until it learns that the stream has ended, and the test has seen enough."""

    kind = "student"

    def __init__(self, name: str, place: Path) -> None:
        super().__init__(name)
        self._place = place

    def open(self) -> None:
        pass

    @property
    def done(self) -> bool:
        return self.orders.end_seq is not None and (self._place / "enough").exists()

    def step(self) -> bool:
        self.rows += 1
        time.sleep(0.01)  # work: a step
        return True

    def close(self) -> None:
        (self._place / f"{self.name}-closed").write_text(str(self.rows))

    def describe(self, report: Report) -> None:
        report.lake_seq = 99


class Ending(Counting):
    """The writer of a lake that ends after a while."""

    kind = "augmentation"

    @property
    def done(self) -> bool:
        return (self._place / "end").exists()


def build_counting(name: str, place: Path, rendezvous: Rendezvous) -> Worker:
    return Ending(name, place) if name == "augmentation" else Counting(name, place)


def test_students_join_and_leave_a_run_of_real_actors_also_after_the_streams_end(launcher, tmp_path):
    """One leaves and one joins while rows flow, another joins after the stream's end; the run waits for both."""
    run_dir = RunDir(tmp_path)
    (tmp_path / "logs").mkdir()

    def wanted(name: str, kind: Kind = Kind.STUDENT) -> WorkerSpec:
        return WorkerSpec(name, kind, partial(build_counting, name, tmp_path))

    def watch(status: RunStatus) -> None:
        states = {name: str(worker.state) for name, worker in status.workers.items()}
        if status.state is RunState.RUNNING and states.get("student-early") == "running":
            live.leave("student-early")
            live.join(wanted("student-late"))
        if states.get("student-late") == "running":
            (tmp_path / "end").touch()
        if status.state is RunState.DRAINING and "student-last" not in states:
            live.join(wanted("student-last"))
        if states.get("student-last") == "running":
            (tmp_path / "enough").touch()

    jobs = [wanted("augmentation", Kind.AUGMENTATION), wanted("student-early")]
    resources = Resources(min_free_disk_gb=0)
    live = live_run(launcher, run_dir, RunStatus("joined"), jobs, resources)
    assert live.run(watch) is RunState.DONE
    workers = read_json(run_dir.status)["workers"]
    assert {name: worker["state"] for name, worker in workers.items()} == {
        "augmentation": "done", "student-early": "retired", "student-late": "done", "student-last": "done"
    }  # fmt: skip
    assert int((tmp_path / "student-early-closed").read_text()) == workers["student-early"]["rows"] > 0
    assert workers["student-early"]["pid"] is None
    assert all(workers[name]["rows"] > 0 for name in ("student-late", "student-last"))
