"""Imports point one way: pipelines -> {exfm, streaming}; inside each, from later folders to earlier ones, each naming
the file that defines; one file knows MLflow, two Kafka (its client, and what is changed inside it), and four Ray.

Read from the syntax tree, imports inside functions included, so nothing is imported here.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.places import ROOT

ROOMS = ("exfm", "streaming", "pipelines")
# Every folder, in the order in which they build on each other: a folder imports earlier ones only. Modules that lie in
# a package's root come first.
ORDER = [
    "exfm",
    "exfm.kernels",
    "exfm.snapshots",
    "exfm.features",
    "exfm.features.histories",
    "exfm.embeddings",
    "exfm.embeddings.kinds",
    "exfm.distillation",
    "exfm.interactions",
    "exfm.parallel",
    "exfm.baselines",
    "exfm.models",
    "exfm.snapshots.increments",
    "exfm.metrics",
    "exfm.models.growth",
    "exfm.parallel.planning",
    "streaming",
    "streaming.store",
    "streaming.messages",
    "streaming.kafka",
    "streaming.broker",
    "streaming.asof",
    "streaming.intake",
    "streaming.settlement",
    "streaming.settlement.saved",
    "streaming.lake.delta",
    "streaming.lake.erasure",
    "streaming.lake",
    "streaming.sources.tables",
    "streaming.sources",
    "streaming.sources.synthetic",
    "streaming.delivery",
    "pipelines",
    "pipelines.core",
    "pipelines.core.shipped",
    "pipelines.report",
    "pipelines.core.run_dir",
    "pipelines.track.registry",
    "pipelines.live",
    "pipelines.live.training",
    "pipelines.live.feeds",
    "pipelines.core.config",
    "pipelines.data",
    "pipelines.data.profile",
    "pipelines.data.doctor",
    "pipelines.live.rules",
    "pipelines.live.workers",
    "pipelines.live.launch",
    "pipelines.live.status",
    "pipelines.report",
    "pipelines.report.results",
    "pipelines.data.checks",
    "pipelines.teacher",
    "pipelines.teacher.plan",
    "pipelines.report.screens",
    "pipelines.track",
    "pipelines.live.workers.teacher",
    "pipelines.live.workers.augmentation",
    "pipelines.live.workers.student",
    "pipelines.teacher.replace",
    "pipelines.live.loop",
    "pipelines.lab",
    "pipelines.lab.judging",
    "pipelines.lab.spec",
    "pipelines.lab.logits",
    "pipelines.lab.replay",
    "pipelines.lab.report",
    "pipelines.lab.scaling",
    "pipelines.erasure",
    "pipelines.cli.tools",
    "pipelines.lab.verify",
    "pipelines.live.roster",
    "pipelines.why",
    "pipelines.ui",
    "pipelines.capacity",
    "pipelines.deploy",
    "pipelines.serve",
    "pipelines.data.checks.served",
    "pipelines.data.propose",
    "pipelines.cli.teachers",
    "pipelines.cli",
]
# Façades, where users import. Everyone else imports the file that defines.
FACADES = ["exfm", "exfm.distillation", "exfm.metrics", "streaming.lake"]
# What a room may not know.
FORBIDDEN = {
    "exfm": {"streaming", "pipelines", "ray", "mlflow", "kafka", "deltalake"},
    "streaming": {"exfm", "pipelines", "torch", "torchrec", "fbgemm_gpu", "ray", "mlflow"},
    "pipelines": {"kafka", "deltalake"},
}
# The files that know a library: of Ray its actors, processes, machines and Serve; of Kafka its client and our patches.
OWNERS = {
    "ray": {
        "pipelines/live/launch/cluster.py",
        "pipelines/live/launch/ray.py",
        "pipelines/live/launch/ray_node.py",
        "pipelines/serve/ray_serve.py",
    },
    "mlflow": {"pipelines/track/mlflow.py"},
    "kafka": {"streaming/kafka/client.py", "streaming/kafka/patches.py"},
    "boto3": {"streaming/store/s3.py"},
    "botocore": {"streaming/store/s3.py"},
}
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
        for library, owners in OWNERS.items():
            if library in names and path not in owners and library not in FORBIDDEN[room]:
                found.append(f"{path} imports {library}; only {', '.join(sorted(owners))} may")
    return found


def files_of_the_rooms() -> dict[str, str]:
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def test_imports_point_one_way():
    assert violations(files_of_the_rooms()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("exfm/features/batch.py", "import streaming.schema"),
        ("exfm/features/batch.py", "def late():\n    from pipelines.core import config"),
        ("streaming/lake/writer.py", "import torch.nn as nn"),
        ("streaming/lake/writer.py", "from kafka.admin import KafkaAdminClient"),
        ("pipelines/live/loop/live_run.py", "import ray"),
        ("pipelines/live/workers/teacher/worker.py", "from mlflow.tracking import MlflowClient"),
        ("pipelines/live/loop/preflight.py", "import importlib\nimportlib.import_module('kafka.errors')"),
    ],
)
def test_a_planted_violation_is_found(path, source):
    assert len(violations({path: source})) == 1


def test_an_allowed_import_is_let_through():
    allowed = {
        "streaming/kafka/client.py": "import kafka",
        "pipelines/live/launch/ray.py": "import ray\nimport exfm.models.teacher\nfrom streaming import lake",
        "streaming/intake/merge.py": "from . import kafka\nfrom streaming.kafka import TopicReader",
    }
    assert violations(allowed) == []


def folder_of(module: str) -> str:
    """The folder that holds a module, or is it.

    >>> folder_of("exfm.distillation"), folder_of("exfm.distillation.arm"), folder_of("exfm.errors")
    ('exfm.distillation', 'exfm.distillation', 'exfm')
    """
    return module if module in ORDER else module.rpartition(".")[0]


def own_imports(path: str, source: str) -> Iterator[str]:
    """The modules of ours that a file imports, relative ones and those inside functions included."""
    package = path.rpartition("/")[0].replace("/", ".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in ROOMS)
        elif isinstance(node, ast.ImportFrom):
            module = f"{package}.{node.module}" if node.level else str(node.module)
            if module.partition(".")[0] in ROOMS:
                names = (f"{module}.{alias.name}" for alias in node.names)
                yield from (name if is_module(name) else module for name in names)


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def wrong_ways(files: dict[str, str]) -> list[str]:
    """Imports of a later folder, and those of a folder's name where a file defines it."""
    wrong = []
    for path, source in files.items():
        own = folder_of(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        for module in own_imports(path, source):
            other = folder_of(module)
            if ORDER.index(other) > ORDER.index(own):
                wrong.append(f"{path} imports {module}: {other} stands later than {own}")
            elif module == other and other not in ROOMS:
                wrong.append(f"{path} imports {module}: name the file that defines")
    return wrong


def test_folders_build_on_earlier_ones_and_name_the_file_that_defines():
    assert wrong_ways(files_of_the_rooms()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("exfm/features/batch.py", "from exfm.models.student import Student"),
        ("exfm/models/student.py", "from exfm.distillation import Arm"),
        ("exfm/models/student.py", "def late():\n    import exfm.distillation"),
        ("pipelines/live/rules/states.py", "import pipelines.live.loop.monitor"),
    ],
)
def test_a_planted_wrong_way_is_found(path, source):
    assert len(wrong_ways({path: source})) == 1


def test_every_folder_has_its_place():
    folders = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
    }
    assert folders == set(ORDER)


@pytest.mark.parametrize("folder", ORDER)
def test_a_folder_says_what_it_is_for_and_only_a_facade_imports(folder):
    init = ast.parse((ROOT / folder.replace(".", "/") / "__init__.py").read_text())
    assert ast.get_docstring(init)
    assert folder in FACADES or folder in ROOMS or len(init.body) == 1


def test_the_stubs_are_those_of_the_facades():
    stubs = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.pyi")}
    assert stubs == {ROOT / facade.replace(".", "/") for facade in FACADES}


@pytest.mark.parametrize("facade", FACADES)
def test_a_facade_lists_what_it_offers(facade):
    path = ROOT / facade.replace(".", "/")
    stub = ast.parse((path / "__init__.pyi").read_text())
    offered = {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    (listed,) = (ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))
    assert sorted(offered) == sorted(listed)
    modules = {file.stem for file in path.glob("*.py")} - {"errors"}
    assert offered & modules == set(), "a module of that name would hide it"


def test_every_name_of_every_facade_is_there():
    """In a process of its own: what a façade loads stays loaded."""
    code = f"import importlib\nfor name in {FACADES}: importlib.import_module(name)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"EAGER_IMPORT": "1"}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("library", sorted(OWNERS))
def test_only_its_owners_know(library):
    knowing = {path for path, source in files_of_the_rooms().items() if library in imported(source)}
    assert knowing == OWNERS[library]
