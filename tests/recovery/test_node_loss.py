"""A node of a Ray cluster is lost with its workers: they go on elsewhere, and the run ends as if nothing had been."""

from __future__ import annotations

import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from tests.support.pipelines.ray_nodes import kill, node_of, nodes, workers_on
from tests.support.pipelines.small_runs import Finished, assert_same_run, small, to_the_end

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.timeout(300)]

STREAM = {"source__impressions": 3000, "pace__block_rows": 200}


def run_losing(cluster, config, root, worker: str, rows: int = 600) -> tuple[RunStatus, set[str]]:
    """Run `config` to its end, and lose the node of `worker` once the lake has so many rows; ingest's as soon as it is
    somewhere."""
    lost: set[str] = set()

    def watch(status: RunStatus) -> None:
        node = node_of(cluster, status, worker) if not lost else None
        if node is not None and (status.lake.rows >= rows or worker == "ingest"):
            lost.update(workers_on(node, status))
            kill(cluster, node)

    status, _ = run(config, RunDir(root), until_end=True, watch=watch)
    assert status.state is RunState.DONE, status.reason
    assert worker in lost
    return status, lost


def test_the_loss_of_a_node_changes_nothing(broker, tmp_path):
    undisturbed = to_the_end(small(broker.bootstrap_servers, **STREAM), tmp_path / "undisturbed")
    with nodes() as cluster:
        config = small(broker.bootstrap_servers, **STREAM, resources__address=cluster.address)
        status, _ = run_losing(cluster, config, tmp_path / "run", "augmentation")
    assert status.workers["augmentation"].restarts >= 1
    assert_same_run(Finished(config, tmp_path / "run"), undisturbed)
