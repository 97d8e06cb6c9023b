"""The demo's own config where its machines are lost: Ray nodes in each phase of a run, and all disks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from tests.support.pipelines.lost_machines import Machines
from tests.support.pipelines.ray_nodes import kill, nodes, workers_on
from tests.support.pipelines.small_runs import Finished, assert_same_run, to_the_end
from tests.support.places import NUMBERS, ROOT

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(3600)]

IMPRESSIONS = int(os.environ.get("IMPRESSIONS", "80000"))
"""As `QUICK=1 make demo`."""


def demo(servers: str, **resources: Any) -> Config:
    """The demo, shorter; `tablet` joins at half of it. Topics that no other run uses, and no MLflow."""
    number = next(NUMBERS)
    settings = {"kafka.bootstrap_servers": servers, "source.impressions": IMPRESSIONS, "tracking.enabled": "false"}
    settings |= {f"kafka.{of}_timeout_s": 60 for of in ("connect", "request")}
    settings |= {
        f"kafka.{of}.topic": f"demo-{of}-{number}" for of in ("impressions", "feedback", "examples", "dead_letters")
    }
    settings |= {f"resources.{name}": value for name, value in resources.items()}
    config = load(ROOT / "configs" / "demo.yaml", [f"{path}={value}" for path, value in settings.items()])
    *students, tablet = config.students
    tablet = tablet.model_copy(update={"joins_at_rows": IMPRESSIONS // 2})
    return config.model_copy(update={"students": (*students, tablet)})


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory) -> Finished:
    return to_the_end(demo(broker.bootstrap_servers), tmp_path_factory.mktemp("demo") / "run")


def joins(status: RunStatus) -> bool:
    return "student-tablet" in status.workers


PHASES: dict[str, Callable[[RunStatus], bool]] = {
    "starting": lambda status: any(worker.node for worker in status.workers.values()),
    "first block": lambda status: 0 < status.lake.rows < IMPRESSIONS // 4,
    "middle": lambda status: status.lake.rows >= IMPRESSIONS // 4,
    "a student joins": joins,
    "ending": lambda status: status.state is RunState.DRAINING,
}


@pytest.mark.ray
def test_a_node_of_three_is_lost_in_each_phase(broker, tmp_path, undisturbed, monkeypatch):
    """The node with most workers, each time, and another comes in its place."""
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")
    lost: dict[str, set[str]] = {}
    patient = {
        "_system_config": {"health_check_timeout_ms": 20_000}
    }  # three nodes start at once; a kill is seen anyhow
    with nodes(3, head=patient) as cluster:
        config = demo(broker.bootstrap_servers, address=cluster.address, max_restarts=100)

        def watch(status: RunStatus) -> None:
            phase = next((name for name, is_on in PHASES.items() if name not in lost and is_on(status)), None)
            if phase is None or any(w.state == "restarting" for w in status.workers.values()):
                return
            held = {node: workers_on(node, status) for node in cluster.worker_nodes}
            node = max(held, key=lambda one: len(held[one]))
            if held[node] or phase == "starting":
                lost[phase] = held[node]
                print(f"{phase}: {status.state}, {status.lake.rows:,} rows, lost {', '.join(sorted(held[node]))}")
                kill(cluster, node)
                cluster.add_node(num_cpus=2, object_store_memory=100 << 20)

        status, _ = run(config, RunDir(tmp_path / "run"), until_end=True, watch=watch)
    assert status.state is RunState.DONE, status.reason
    assert lost.keys() == PHASES.keys()
    assert set().union(*lost.values()) >= {"augmentation", "teacher"}
    finished = Finished(config, tmp_path / "run")
    assert finished.summary["students"] == undisturbed.summary["students"]
    assert finished.summary["counts"] == undisturbed.summary["counts"]
    assert_same_run(finished, undisturbed)


def test_on_object_storage_it_goes_on_where_its_machines_were_lost_with_their_disks(
    s3_server, broker, tmp_path, undisturbed, monkeypatch
):
    config = demo(broker.bootstrap_servers)
    machines = Machines(config, "s3://bucket/runs/demo", tmp_path, monkeypatch)
    machines.patience_s = 3000
    try:
        s3_server.fail(0.0)  # counts begin
        for share in (0.1, 0.6):
            command = machines.start()
            command.until(lambda status, share=share: status["lake"]["rows"] >= share * IMPRESSIONS)
            machines.lose(command)
        last = machines.start()
        assert last.wait() == 0, last.log.read_text()[-3000:]
    finally:
        counts = s3_server.counts()
        for command in machines.commands:
            command.clean_up()
    found = machines.look(config)
    commits = found.lake["block"][-1].as_py() + 1
    print(
        f"\n{commits} blocks, requests {counts['requests']}, {sum(counts['requests'].values()) / commits:.0f} a block;"
    )
    print(f"{counts['bytes_in'] / 1e6:.1f} MB put, {counts['bytes_out'] / 1e6:.1f} MB read")
    assert_same_run(undisturbed, found)
