"""A Ray of the run's own that does not come up, or that dies under the run: words that say so, and no process left."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import psutil
import pytest
from ray._private import services
from ray._private.node import Node

from pipelines.core.config.sections import Resources
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.ray import RayLauncher
from pipelines.live.loop.worker_spec import WorkerSpec
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.worker import Worker
from streaming.errors import BadInput, StreamingError
from streaming.ports import free_port
from tests.support.pipelines.scripted_run import live_run
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.ray


class Endless(Worker):
    kind = "student"

    def __init__(self, name: str, at: Rendezvous) -> None:
        super().__init__(name)

    def open(self) -> None:
        pass

    @property
    def done(self) -> bool:
        return False

    def step(self) -> bool:
        self.rows += 1
        time.sleep(0.01)  # work: a step
        return True


def children(*names: str) -> list[psutil.Process]:
    """Processes of Ray that this one has started and that are alive."""
    own = psutil.Process().children()
    return [child for child in own if child.status() != psutil.STATUS_ZOMBIE and child.name() in names]


@pytest.mark.parametrize("process", ["raylet", pytest.param("gcs_server", marks=pytest.mark.slow)])
def test_where_ray_dies_the_run_fails_at_once_and_says_so(tmp_path, process):
    run_dir, status, pids = RunDir(tmp_path), RunStatus("of its own"), set()
    (tmp_path / "logs").mkdir()
    resources = Resources(cpus_per_worker=0.1, min_free_disk_gb=0)
    launcher = RayLauncher(resources)
    killed: list[float] = []

    def watch(status: RunStatus) -> None:
        reports = [worker.report for worker in status.workers.values()]
        if not killed and all(reports):
            pids.update(report.pid for report in reports if report is not None)
            (running,) = children(process)
            running.kill()
            killed.append(time.monotonic())

    try:
        jobs = [WorkerSpec(name, Kind.STUDENT, partial(Endless, name)) for name in ("student-one", "student-two")]
        assert live_run(launcher, run_dir, status, jobs, resources).run(watch) is RunState.FAILED
        assert time.monotonic() - killed[0] < 5
    finally:
        launcher.shutdown()
    assert (status.reason or "").startswith(
        f"Ray has died on this machine: its process {process} was ended by signal 9; what was committed is kept"
    )
    assert not status.mistaken
    assert not status.permanent  # the same command resumes
    assert len(pids) == 2
    assert psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], PATIENCE_S)[1] == []
    eventually(lambda: not children("raylet", "gcs_server"))


def test_a_ray_that_is_not_up_in_time_is_ended_and_its_log_is_shown(monkeypatch):
    def unknown(gcs_address: str, node_id: str) -> Any:
        raise RuntimeError("not there yet")

    monkeypatch.setattr(services, "get_node", unknown)
    words = (
        r"^Ray did not come up here within \d+ s \(its raylet does not register\); a busy machine takes longer: raise "
        r"resources\.placement_timeout_s; last lines of /.*/raylet\.\w+:\n."
    )
    with pytest.raises(StreamingError, match=words):
        RayLauncher(Resources(placement_timeout_s=0.4))
    eventually(lambda: not children("raylet", "gcs_server"))


def test_a_ray_whose_raylet_dies_while_it_starts_is_not_waited_for(monkeypatch):
    begin = Node.start_ray_processes

    def dying(node: Any) -> None:
        begin(node)
        (raylet,) = node.all_processes["raylet"]
        raylet.process.kill()
        raylet.process.wait()

    monkeypatch.setattr(Node, "start_ray_processes", dying)
    began = time.monotonic()
    with pytest.raises(StreamingError, match=r"within \d+ s \(its process raylet was ended by signal 9\); "):
        RayLauncher(Resources(placement_timeout_s=2 * PATIENCE_S))
    assert time.monotonic() - began < PATIENCE_S
    eventually(lambda: not children("raylet", "gcs_server"))


def test_a_clusters_address_at_which_nobody_answers_is_refused_at_once():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(BadInput, match=f"^no Ray answers at {address} .*resources.address"):
        RayLauncher(Resources(address=address))
