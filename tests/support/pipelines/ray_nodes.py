"""Nodes of a Ray cluster on this machine, each with processes of its own, that tests kill and stop.

with nodes() as cluster:
    config = small(servers, resources__address=cluster.address)
    node = node_of(cluster, status, "teacher")
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from ray._private import ray_constants
from ray.cluster_utils import Cluster

from pipelines.live.status.status import RunStatus

NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}
SOON_LOST = {
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "health_check_initial_delay_ms": 0,
}
"""A node that does not answer is given up after some 4 s, not after half a minute."""


@contextmanager
def nodes(count: int = 2, *, head: dict[str, Any] | None = None, first: dict[str, Any] | None = None) -> Iterator[Any]:
    """A head, without room for workers unless `head` gives it some, and so many nodes that have it; `head`, `first`:
    further arguments of the head and the first node."""
    of_head = NODE | {"num_cpus": 0, "include_dashboard": False, "_system_config": SOON_LOST} | (head or {})
    cluster = Cluster(initialize_head=True, head_node_args=of_head)
    try:
        for number in range(count):
            cluster.add_node(**NODE, **(first or {} if number == 0 else {}))
        yield cluster
    finally:
        cluster.shutdown()


def raylet(node: Any) -> psutil.Process:
    return psutil.Process(node.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process.pid)


def workers_on(node: Any, status: RunStatus) -> set[str]:
    """The names of those that have a process among the children of the node's raylet."""
    children = {child.pid for child in raylet(node).children(recursive=True)}
    found = set()
    for name, worker in status.workers.items():
        if (report := worker.report) is not None:
            pids = {report.pid, *(rank.pid for rank in report.ranks or ())}
            found |= {name} if pids & children else set()
    return found


def node_of(cluster: Any, status: RunStatus, worker: str) -> Any:
    """The node that a worker is on; None where it is on none yet."""
    return next((node for node in cluster.worker_nodes if worker in workers_on(node, status)), None)


def kill(cluster: Any, node: Any) -> None:
    """Lose a node as a machine is lost: its processes at once, its raylet first."""
    processes = [raylet(node), *raylet(node).children(recursive=True)]
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    cluster.remove_node(node, allow_graceful=False)


def reap(node: Any) -> bool:
    """True once its raylet has ended. As a zombie it would be alive to its workers, which are to end with it; on a
    machine of its own it is init's child."""
    return node.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process.poll() is not None


class Stopped:
    """All processes of a node, as if its network were cut: nothing of it answers, and nothing of it has ended."""

    def __init__(self, node: Any) -> None:
        self.node, self.raylet = node, raylet(node)
        self.workers = self.raylet.children(recursive=True)
        for process in (self.raylet, *self.workers):
            process.send_signal(signal.SIGSTOP)

    def go_on(self, processes: list[psutil.Process]) -> None:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
