"""Nodes of a Ray cluster are lost, stopped for a while, or lose their head: the run ends as if nothing had been."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from streaming.ports import free_port
from tests.support.pipelines.commands import Command
from tests.support.pipelines.ray_nodes import Stopped, kill, node_of, nodes, raylet, reap, workers_on
from tests.support.pipelines.resumed_commands import rows_in_lake
from tests.support.pipelines.small_runs import Finished, assert_same_run, everything, small, to_the_end
from tests.support.ranks.teacher_ranks import as_undisturbed
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.timeout(300)]

STREAM = {"source__impressions": 3000, "pace__block_rows": 200}
MODEL = {"width": 4, "trunk": {"name": "dlrm", "mlp": [16], "bottom": [8]}}
ONE_STUDENT = [{"name": "feed", "batch_rows": 100, "model": MODEL}]


def run_losing(cluster: Any, config: Config, root: Path, worker: str, rows: int = 600) -> tuple[RunStatus, Any]:
    """Run `config` to its end, and lose the node of `worker` once the lake has so many rows; ingest's as soon as it is
    somewhere. Returns the last status and the node."""
    lost: list[Any] = []

    def watch(status: RunStatus) -> None:
        node = node_of(cluster, status, worker) if not lost else None
        if node is not None and (status.lake.rows >= rows or worker == "ingest"):
            lost.append(node)
            kill(cluster, node)

    status, _ = run(config, RunDir(root), until_end=True, watch=watch)
    assert status.state is RunState.DONE, status.reason
    assert status.workers[worker].restarts
    return status, lost[0]


def test_the_loss_of_a_node_changes_nothing(broker, tmp_path):
    """Augmentation is on the node that offers `broker`, and goes where none does: to the head's."""
    stream = {"source__impressions": 2000, "pace__block_rows": 200, "students": ONE_STUDENT}
    undisturbed = to_the_end(small(broker.bootstrap_servers, **stream), tmp_path / "undisturbed")
    with nodes(1, head={"num_cpus": 2}, first={"resources": {"broker": 1}}) as cluster:
        config = small(broker.bootstrap_servers, **stream, resources__address=cluster.address)
        (near,) = cluster.worker_nodes
        _, lost = run_losing(cluster, config, tmp_path / "run", "augmentation", rows=400)
    assert lost is near
    assert_same_run(Finished(config, tmp_path / "run"), undisturbed)


def exfm_stream(config: Config, folder: Path) -> Command:
    path = folder / "config.yaml"
    path.write_text(dump(config))
    return Command(path, folder / "run", folder / "stream.log")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("worker", ["ingest", "augmentation", "teacher", "student-brand"])
def test_a_node_is_lost_while_it_holds_a(broker, tmp_path, worker):
    """Through the cluster's client where it holds a student."""
    stream = STREAM | {"source__chunk_rows": 100}
    undisturbed = to_the_end(everything(broker.bootstrap_servers, **stream), tmp_path / "undisturbed")
    port = free_port()
    with nodes(head={"ray_client_server_port": port}) as cluster:
        address = f"ray://127.0.0.1:{port}" if worker == "student-brand" else cluster.address
        slow = stream | {"source__rate": "300", "resources__address": address}
        config = everything(broker.bootstrap_servers, **slow)
        run_losing(cluster, config, tmp_path / "run", worker)
    assert_same_run(Finished(config, tmp_path / "run"), undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_ranks_of_a_teacher_are_on_one_node_and_go_on_another_when_it_is_lost(broker, tmp_path):
    two = {"teacher__ranks": 2, "kafka__examples__partitions": 2, "students": []}
    with nodes() as cluster:
        config = everything(broker.bootstrap_servers, **STREAM, **two, resources__address=cluster.address)
        lost: list[int] = []

        def watch(status: RunStatus) -> None:
            teacher = status.workers["teacher"].report
            if not lost and teacher is not None and teacher.rows >= 600:
                node = node_of(cluster, status, "teacher")
                children = {child.pid for child in raylet(node).children(recursive=True)}
                lost.extend(rank.pid for rank in teacher.ranks if rank.pid in children)
                kill(cluster, node)

        status, _ = run(config, RunDir(tmp_path / "run"), until_end=True, watch=watch)
    assert len(lost) == 2, "the ranks are not packed"
    assert status.state is RunState.DONE, status.reason
    assert status.workers["teacher"].restarts >= 1
    as_undisturbed(Finished(config, tmp_path / "run"), tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_that_is_cut_off_and_comes_back_writes_nothing(broker, tmp_path):
    """All its processes stand still until Ray has given it up and another augmentation has committed; then its workers
    go on, before its raylet learns that it was given up."""
    undisturbed = to_the_end(small(broker.bootstrap_servers, **STREAM), tmp_path / "undisturbed")
    stopped: list[Stopped] = []
    rows_then, back_at = 0, float("inf")

    def watch(status: RunStatus) -> None:
        nonlocal rows_then, back_at
        if not stopped:
            node = node_of(cluster, status, "augmentation")
            if node is not None and status.lake.rows >= 600:
                assert "teacher" not in workers_on(node, status), "without a teacher nothing else is committed"
                stopped.append(Stopped(node))
                rows_then = status.lake.rows
        elif status.lake.rows >= rows_then + 400 and back_at == float("inf"):
            stopped[0].go_on(stopped[0].workers)
            back_at = time.monotonic() + 3  # work: what its workers were at
        elif time.monotonic() >= back_at:
            stopped[0].go_on([stopped[0].raylet])
            reap(stopped[0].node)

    with nodes() as cluster:
        config = small(broker.bootstrap_servers, **STREAM, resources__address=cluster.address)
        status, _ = run(config, RunDir(tmp_path / "run"), until_end=True, watch=watch)
        assert eventually(lambda: reap(stopped[0].node))
        assert psutil.wait_procs([stopped[0].raylet, *stopped[0].workers], PATIENCE_S)[1] == []
    assert status.state is RunState.DONE, status.reason
    assert back_at != float("inf"), "the run was over before the node came back"
    assert status.workers["augmentation"].restarts >= 1
    assert_same_run(Finished(config, tmp_path / "run"), undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_head_takes_the_run_over_with_the_same_command(broker, tmp_path):
    stream = STREAM | {"source__impressions": 8000, "source__chunk_rows": 50}
    undisturbed = to_the_end(small(broker.bootstrap_servers, **stream), tmp_path / "undisturbed")
    port = free_port()
    with nodes(head={"gcs_server_port": port}) as cluster:
        slow = stream | {"source__rate": "200", "resources__address": cluster.address}
        config = small(broker.bootstrap_servers, **slow)
        first = exfm_stream(config, tmp_path)
        first.until(rows_in_lake(400))
        cluster.remove_node(cluster.head_node, allow_graceful=False)
        assert first.wait() == 1
        assert "the head of Ray at" in first.log.read_text()
        with nodes(head={"gcs_server_port": port}):  # the old nodes' workers still hold their locks
            again = exfm_stream(config, tmp_path)
            assert eventually(lambda: all(map(reap, cluster.worker_nodes)))
            assert again.wait() == 0, again.log.read_text()[-2000:]
    assert_same_run(Finished(config, tmp_path / "run"), undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_coordinator_that_is_killed_leaves_a_cluster_on_which_the_same_command_resumes(broker, tmp_path):
    stream = STREAM | {"source__chunk_rows": 50}
    undisturbed = to_the_end(small(broker.bootstrap_servers, **stream), tmp_path / "undisturbed")
    with nodes() as cluster:
        slow = stream | {"source__rate": "200", "resources__address": cluster.address}
        config = small(broker.bootstrap_servers, **slow)
        first = exfm_stream(config, tmp_path)
        first.until(rows_in_lake(400))
        first.kill()
        again = exfm_stream(config, tmp_path)
        assert again.wait() == 0, again.log.read_text()[-2000:]
    assert_same_run(Finished(config, tmp_path / "run"), undisturbed)
