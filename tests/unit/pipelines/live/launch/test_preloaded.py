"""Which server the workers of a run are forked from."""

import os
import subprocess
import sys

import pytest

from pipelines.live.launch import preloaded


class Server:
    """In place of a ForkServer, whose processes import for seconds."""

    def __init__(self, modules=(), environment=None, last=(), *, of_owner=False):
        self.environment, self.closed = environment, False

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def servers(monkeypatch):
    monkeypatch.setattr(preloaded, "ForkServer", Server)


def test_one_that_was_started_before_is_taken():
    given = preloaded.worker_forks()
    assert preloaded.fitting(given, 1, None) is given
    assert not given.closed


def test_one_of_another_number_of_threads_makes_way_for_a_new_one():
    given = preloaded.worker_forks()
    taken = preloaded.fitting(given, 4, None)
    assert given.closed
    assert taken.environment["OMP_NUM_THREADS"] == "4"


def test_a_cluster_has_none():
    given = preloaded.worker_forks()
    assert preloaded.fitting(given, 1, "10.0.0.1:6379") is None
    assert given.closed
    assert preloaded.fitting(None, 1, "10.0.0.1:6379") is None


def test_to_start_one_imports_next_to_nothing():
    code = "import sys, pipelines.live.launch.preloaded; print({'torch', 'numpy', 'yaml', 'ray'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_a_process_is_prepared_to_be_forked_before_it_imports_torch_alone():
    code = """
import os, sys
from pipelines.live.launch.preloaded import prepare_to_fork
if sys.argv[1:]:
    import torch
print(prepare_to_fork(), os.environ.get("OMP_NUM_THREADS"))
"""
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for given, said in (([], "True 1\n"), (["torch"], "False None\n")):
        done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, env=kept)
        assert done.stdout == said
