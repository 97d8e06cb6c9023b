"""A node of a Ray cluster is lost with its workers: they go on elsewhere, and the run ends as if nothing had been."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from ray._private import ray_constants
from ray.cluster_utils import Cluster

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from tests.support.pipelines.small_runs import Finished, assert_same_run, everything, to_the_end
from tests.support.ranks.teacher_ranks import as_undisturbed

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

STREAM = {"source__impressions": 6000, "pace__block_rows": 200}
NODE = {"num_cpus": 2, "object_store_memory": 100 << 20}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    yield cluster
    cluster.shutdown()


def workers_on(node, status: RunStatus) -> set[str]:
    """The names of those whose processes are children of the node's raylet."""
    raylet = node.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process.pid
    children = {child.pid for child in psutil.Process(raylet).children(recursive=True)}
    return {name for name, worker in status.workers.items() if worker.report and worker.report.pid in children}


def test_the_loss_of_a_node_with_a_rank_of_the_teacher_starts_all_ranks_on_the_others(broker, cluster, tmp_path):
    second = cluster.add_node(**NODE)
    two = {"teacher__ranks": 2, "kafka__examples__partitions": 2, "students": [], "resources__address": cluster.address}
    config = everything(broker.bootstrap_servers, **STREAM, **two)
    raylet = second.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process.pid
    lost: list[int] = []

    def watch(status: RunStatus) -> None:
        teacher = status.workers["teacher"].report
        if not lost and teacher is not None and teacher.rows >= 1000:
            children = {child.pid for child in psutil.Process(raylet).children(recursive=True)}
            lost.extend(rank.pid for rank in teacher.ranks if rank.pid in children)
            assert len(lost) == 1, "the ranks are not spread over the nodes"
            cluster.remove_node(second, allow_graceful=False)

    status, _ = run(config, RunDir(tmp_path / "run"), until_end=True, watch=watch)
    assert status.state is RunState.DONE, status.reason
    assert status.workers["teacher"].restarts >= 1
    as_undisturbed(Finished(config, tmp_path / "run"), tmp_path / "undisturbed")


def test_the_loss_of_a_node_changes_nothing(broker, cluster, tmp_path):
    undisturbed = to_the_end(everything(broker.bootstrap_servers, **STREAM), tmp_path / "undisturbed")
    second = cluster.add_node(**NODE)
    config = everything(broker.bootstrap_servers, **STREAM, resources__address=cluster.address)
    lost: set[str] = set()

    def watch(status: RunStatus) -> None:
        if not lost and status.lake.rows >= 1000:
            lost.update(workers_on(second, status))
            assert lost, "nobody was on the second node"
            cluster.remove_node(second, allow_graceful=False)

    status, _ = run(config, RunDir(tmp_path / "run"), until_end=True, watch=watch)
    assert status.state is RunState.DONE, status.reason
    assert lost
    unfinished = {name for name in lost if name != "ingest"}
    assert {name for name in unfinished if status.workers[name].restarts} == unfinished
    assert_same_run(Finished(config, tmp_path / "run"), undisturbed)
