"""Modules that a process does without, each in a process of its own."""

import subprocess
import sys

import pytest

from tests.support.places import ROOT


def said_by(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.check
def test_a_server_imports_no_clients_of_kafka_and_the_lake():
    program = """
import sys
import pipelines.serve.processes
from exfm.models.served import load_served
print(sorted({"kafka", "deltalake", "ray", "mlflow"} & sys.modules.keys()))
"""
    assert said_by(program) == "[]\n"


@pytest.mark.check
@pytest.mark.parametrize("module", ["pipelines.live.workers.student.worker", "pipelines.lab.replay.jobs"])
def test_a_process_of_students_imports_neither_ray_nor_mlflow(module):
    program = f"""
import sys
import {module}
print(sorted({{"mlflow", "ray"}} & sys.modules.keys()))
"""
    assert said_by(program) == "[]\n"


@pytest.mark.check
def test_the_command_imports_neither_pandas_nor_what_trains_tables():
    """Its imports come before those of every worker, and what it shares with them is forked once it has them."""
    program = """
import sys
from pipelines.live.loop.lifecycle import run, start_over
print(sorted({"pandas", "torchrec", "fbgemm_gpu", "mlflow", "ray"} & sys.modules.keys()))
"""
    assert said_by(program) == "[]\n"
