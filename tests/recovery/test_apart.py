"""A run on object storage whose workers are on several machines, with nothing that two of them share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.object_storage import working_copy
from pipelines.core.run_dir.paths import RunDir
from pipelines.erasure.inventory import kind_of
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from streaming.store.objects import store_at
from streaming.store.working_copy import copy_of
from tests.support.pipelines.commands import Command
from tests.support.pipelines.ray_nodes import Stopped, kill, node_of, nodes, reap, workers_on
from tests.support.pipelines.resumed_commands import rows_in_lake
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_same_run,
    small,
    to_the_end,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.timeout(300)]

MODEL = {"width": 4, "trunk": {"name": "dlrm", "mlp": [16], "bottom": [8]}}
ONE_STUDENT = [{"name": "feed", "batch_rows": 100, "checkpoint_every_rows": 300, "twin": True, "model": MODEL}]
STREAM = {"source__impressions": 1200, "source__chunk_rows": 100, "pace__block_rows": 200, "students": ONE_STUDENT}


class Apart:
    """Three nodes, each with a cache of its own, and the coordinator with one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.caches: dict[Any, Path] = {}
        self.coordinator("coordinator")

    def coordinator(self, name: str) -> Path:
        """Go to a machine on which nothing was yet, with a cache folder of its own."""
        self._monkeypatch.setenv("XDG_CACHE_HOME", str(cache := self._folder / name))
        return cache

    def start(self, config: Config, url: str, name: str) -> Command:
        """`exfm stream` on another machine."""
        cache, path = self.coordinator(name), self._folder / "config.yaml"
        path.write_text(dump(config))
        command = Command(path, Path(url), self._folder / f"{name}.log")
        command.run_dir = RunDir(cache / "exfm" / "runs" / url.replace("://", "/"))
        return command

    @contextmanager
    def nodes(self, count: int = 3, near: int = 0) -> Iterator[Any]:
        """`near`: how many of them are near a broker."""
        with nodes(0) as cluster:
            for number in range(count):
                cache = self._folder / f"node-{number}"
                node = cluster.add_node(
                    num_cpus=1,
                    object_store_memory=100 << 20,
                    env_vars={"XDG_CACHE_HOME": str(cache)},
                    resources={"broker": 1} if number < near else {},
                )
                self.caches[node] = cache
            yield cluster

    def run(self, config: Config, url: str, watch: Callable[[RunStatus], None] = lambda status: None) -> RunStatus:
        status, _ = run(config, RunDir(working_copy(url)), until_end=True, watch=watch)
        assert status.state is RunState.DONE, status.reason
        return status

    def look(self, config: Config, url: str) -> Finished:
        """What the run left, from a machine that had no part in it."""
        self.coordinator("elsewhere")
        copy = copy_of(root := working_copy(url))
        assert copy is not None
        for found in copy.store.list("lake/"):
            copy.fetched(root / found.key)
        return Finished(config, root)


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory):
    return to_the_end(small(broker.bootstrap_servers, **STREAM), tmp_path_factory.mktemp("disk") / "run")


@pytest.fixture
def apart(tmp_path, monkeypatch):
    return Apart(tmp_path, monkeypatch)


def test_workers_on_machines_that_share_nothing_make_the_run_of_one_folder(s3_server, broker, apart, undisturbed):
    url = "s3://bucket/runs/apart"
    with apart.nodes() as cluster:
        config = small(broker.bootstrap_servers, **STREAM, resources__address=cluster.address)
        apart.run(config, url)
        used = [cache for cache in apart.caches.values() if (cache / "exfm").exists()]
    assert len(used) == 3
    found = apart.look(config, url)
    assert_same_run(found, undisturbed)
    assert_learned_the_lake(found)
    assert [put.key for put in store_at(url).list("") if kind_of(put.key) is None] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_of_one_model_share_a_machine_and_its_copy_and_are_lost_with_it(s3_server, broker, apart, tmp_path):
    ranked = [{**ONE_STUDENT[0], "ranks": 2}]
    changes = STREAM | {"students": ranked, "teacher__ranks": 2, "kafka__examples__partitions": 2}
    url, lost = "s3://bucket/runs/ranked", list[Any]()

    def lose(status: RunStatus) -> None:
        node = None if lost or status.lake.rows < 500 else node_of(cluster, status, "teacher")
        if node is not None:
            kill(cluster, node)
            shutil.rmtree(apart.caches.pop(node))
            lost.append(node)

    with apart.nodes() as cluster:
        config = small(broker.bootstrap_servers, **changes, resources__address=cluster.address)
        status, _ = run(config, RunDir(tmp_path / "folder"), until_end=True)
        assert status.state is RunState.DONE, status.reason
        config = small(broker.bootstrap_servers, **changes, resources__address=cluster.address)
        status = apart.run(config, url, lose)
    assert status.workers["teacher"].restarts
    found = apart.look(config, url)
    assert_same_run(found, Finished(config, tmp_path / "folder"))
    assert_learned_the_lake(found)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_machines_are_lost_with_their_disks_while_they_hold_each_kind_of_worker(s3_server, broker, apart, undisturbed):
    url = "s3://bucket/runs/lost-nodes"
    to_lose = [("augmentation", 300), ("teacher", 500), ("student-feed", 900)]
    lost: list[str] = []

    def watch(status: RunStatus) -> None:
        worker, rows = next(((w, r) for w, r in to_lose if w not in lost), (None, 0))
        node = node_of(cluster, status, worker) if worker is not None and status.lake.rows >= rows else None
        if worker is not None and node is not None:
            kill(cluster, node)
            shutil.rmtree(apart.caches.pop(node))
            lost.append(worker)

    with apart.nodes(4) as cluster:
        config = small(broker.bootstrap_servers, **STREAM, resources__address=cluster.address)
        status = apart.run(config, url, watch)
    assert lost == [worker for worker, _ in to_lose]
    assert all(status.workers[worker].restarts for worker in lost)
    found = apart.look(config, url)
    assert_same_run(found, undisturbed)
    assert_learned_the_lake(found)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("worker", ["teacher", "augmentation"])
def test_a_machine_that_was_cut_off_and_comes_back_puts_nothing(s3_server, broker, apart, undisturbed, worker):
    """All its processes stand still until its workers' successors have worked; then its workers go on."""
    url = f"s3://bucket/runs/cut-off-{worker}"
    stopped: list[Stopped] = []
    rows_then, is_back = 0, False

    def watch(status: RunStatus) -> None:
        nonlocal rows_then, is_back
        if not stopped:
            node = node_of(cluster, status, worker)
            if node is not None and status.lake.rows >= 300:
                stopped.append(Stopped(node))
                rows_then = status.lake.rows
        elif not is_back and status.lake.rows >= rows_then + 400:
            is_back = True
            stopped[0].go_on(stopped[0].workers)

    def fenced() -> bool:
        logs = apart.caches[stopped[0].node].rglob(f"{worker}.log")
        return any("fenced: " in log.read_text() for log in logs)

    with apart.nodes() as cluster:
        config = small(broker.bootstrap_servers, **STREAM, resources__address=cluster.address)
        status = apart.run(config, url, watch)
        assert is_back, "the run was over before the machine came back"
        assert eventually(fenced)
        stopped[0].go_on([stopped[0].raylet])
        assert eventually(lambda: reap(stopped[0].node))
    assert status.workers[worker].restarts
    assert_same_run(apart.look(config, url), undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_coordinator_is_lost_with_its_disk_and_the_same_command_goes_on_elsewhere(
    s3_server, broker, tmp_path, apart, undisturbed
):
    url = "s3://bucket/runs/coordinator"
    with apart.nodes() as cluster:
        config = small(broker.bootstrap_servers, **STREAM, resources__address=cluster.address)
        first = apart.start(config, url, "first")
        first.until(rows_in_lake(400))
        first.kill()
        shutil.rmtree(tmp_path / "first")
        again = apart.start(config, url, "again")
        assert again.wait() == 0, again.log.read_text()[-3000:]
    assert_same_run(apart.look(config, url), undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_partitions_are_settled_on_two_machines_of_which_one_is_lost(s3_server, broker, tmp_path, apart):
    url = "s3://bucket/runs/partitions"
    partitions = {f"kafka__{topic}__partitions": 4 for topic in ("impressions", "feedback")}
    stream = STREAM | partitions | {"settlement__by": "partition"}
    undisturbed = to_the_end(small(broker.bootstrap_servers, **stream), tmp_path / "one")
    lost: list[Any] = []

    def watch(status: RunStatus) -> None:
        node = node_of(cluster, status, "augmentation") if not lost and status.lake.rows >= 400 else None
        if node is not None:
            assert sum("augmentation" in workers_on(each, status) for each in cluster.worker_nodes) == 2
            lost.append(node)
            kill(cluster, node)
            shutil.rmtree(apart.caches.pop(node))

    with apart.nodes(near=2) as cluster:
        more = {"augmentation__workers": 2, "resources__address": cluster.address}
        config = small(broker.bootstrap_servers, **stream, **more)
        status = apart.run(config, url, watch)
    assert status.workers["augmentation"].restarts
    assert_same_run(apart.look(config, url), undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_logits_of_a_further_teacher_reach_a_student_on_another_machine(s3_server, broker, tmp_path, apart):
    url = "s3://bucket/runs/further"
    large = {"name": "large", "model": {"width": 12, "layers": 1, "num_fmb": 6, "num_lcb": 4, "rank": 4}}
    students = [ONE_STUDENT[0] | {"logits": "large"}]
    stream = STREAM | {"teachers": [large | {"batch_rows": 256}], "students": students}
    undisturbed = to_the_end(small(broker.bootstrap_servers, **stream), tmp_path / "one")
    with apart.nodes() as cluster:
        config = small(broker.bootstrap_servers, **stream, resources__address=cluster.address)
        apart.run(config, url)
    found = apart.look(config, url)
    assert_same_run(found, undisturbed)
    assert_learned_the_lake(found)
