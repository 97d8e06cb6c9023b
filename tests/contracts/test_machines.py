"""Machines of a Ray cluster, joined through its client from a process that is none of them: each gets this source, and
is examined before a run."""

from __future__ import annotations

import pytest

from pipelines.core.config.sections import Resources
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.cluster import require_machines
from pipelines.live.launch.ray import RayLauncher
from streaming.errors import BadInput
from streaming.ports import free_port
from tests.support.pipelines.ray_nodes import nodes

pytestmark = [
    pytest.mark.ray,
    pytest.mark.check,
]  # the quick one: tests/unit/pipelines/live/launch/test_machine_look.py


def test_machines_get_the_source_and_what_they_lack_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)  # its nodes have no checkout to fall back on, or another one
    port, said = free_port(), list[str]()
    with nodes(head={"ray_client_server_port": port}) as cluster:
        launcher = RayLauncher(Resources(address=f"ray://127.0.0.1:{port}"))
        try:
            require_machines(RunDir(tmp_path), [], [str(tmp_path)], said.append)
            with pytest.raises(BadInput) as refused:
                require_machines(RunDir(tmp_path), [], ["/nowhere/clicks.parquet"], said.append)
            assert launcher.died is None
        finally:
            launcher.shutdown()
        words = str(refused.value)
    assert words.startswith("2 of 2 machines of Ray cannot take part:\n")
    for node in cluster.worker_nodes:
        assert f"(node {node.node_id[:8]}): it has no /nowhere/clicks.parquet, which the config names" in words
    assert said == []  # processors that differ
    assert list(tmp_path.iterdir()) == []
