"""Imports point one way: pipelines -> {exfm, streaming}; one file each knows Ray, MLflow and Kafka.

Read from the syntax tree, imports inside functions included, so nothing is imported here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("exfm", "streaming", "pipelines")
# What a room may not know.
FORBIDDEN = {
    "exfm": {"streaming", "pipelines", "ray", "mlflow", "kafka", "deltalake"},
    "streaming": {"exfm", "pipelines", "torch", "torchrec", "fbgemm_gpu", "ray", "mlflow"},
    "pipelines": {"kafka", "deltalake"},
}
# The one file that knows a library.
OWNERS = {"ray": "pipelines/actors.py", "mlflow": "pipelines/tracking.py", "kafka": "streaming/kafka_client.py"}
DYNAMIC = {"importlib.import_module", "import_module", "__import__"}


def imported(source: str) -> set[str]:
    """Top-level names of everything a file imports, dynamic imports with a literal name included."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
        elif (
            isinstance(node, ast.Call) and ast.unparse(node.func) in DYNAMIC and isinstance(node.args[0], ast.Constant)
        ):
            names.add(str(node.args[0].value).partition(".")[0])
    return names


def violations(files: dict[str, str]) -> list[str]:
    """What is wrong with `files`, path -> source, in words."""
    found = []
    for path, source in files.items():
        names = imported(source)
        room = path.partition("/")[0]
        found += [f"{path} imports {name}, which {room} must not know" for name in sorted(names & FORBIDDEN[room])]
        for library, owner in OWNERS.items():
            if library in names and path != owner and library not in FORBIDDEN[room]:
                found.append(f"{path} imports {library}; only {owner} does")
    return found


def files_of_the_rooms() -> dict[str, str]:
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def test_imports_point_one_way():
    assert violations(files_of_the_rooms()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("exfm/batch.py", "import streaming.schema"),
        ("exfm/batch.py", "def late():\n    from pipelines import config"),
        ("streaming/lake.py", "import torch.nn as nn"),
        ("streaming/lake.py", "from kafka.admin import KafkaAdminClient"),
        ("pipelines/coordinator.py", "import ray"),
        ("pipelines/workers/teacher.py", "from mlflow.tracking import MlflowClient"),
        ("pipelines/preflight.py", "import importlib\nimportlib.import_module('kafka.errors')"),
    ],
)
def test_a_planted_violation_is_found(path, source):
    assert len(violations({path: source})) == 1


def test_an_allowed_import_is_let_through():
    allowed = {
        "streaming/kafka_client.py": "import kafka",
        "pipelines/actors.py": "import ray\nimport exfm.teacher\nfrom streaming import lake",
        "streaming/merge.py": "from . import kafka\nfrom streaming.kafka import TopicReader",
    }
    assert violations(allowed) == []


@pytest.mark.parametrize("library", sorted(OWNERS))
def test_exactly_one_file_knows(library):
    knowing = [path for path, source in files_of_the_rooms().items() if library in imported(source)]
    assert knowing == [OWNERS[library]]
