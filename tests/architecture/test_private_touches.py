"""Tests go through public faces, and the product through those of other packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from streaming.kafka import patches
from tests.support.tracked_files import tracked

MOST = 10
MOST_OF_OTHERS = 58
PRODUCT = ("exfm/", "streaming/", "pipelines/")
# Public in spite of their names: a named tuple's methods, and a process's end that no handler sees.
PUBLIC = {"_asdict", "_fields", "_make", "_replace", "_exit"}


def private_touches(source: str) -> list[tuple[int, str]]:
    """(line, expression) of every attribute with one leading underscore of anything but `self` and `cls`, in scripts
    that stand in strings too, and of those that are replaced by their name (`setattr(Worker, "_save", …)`)."""
    return [(line, text) for line, text in _touches(ast.parse(source)) if text.rpartition(".")[2] not in PUBLIC]


def _touches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):
            for name in node.args[1:2]:
                if isinstance(name, ast.Constant) and _private(str(name.value)):
                    yield node.lineno, f"{ast.unparse(node.args[0])}.{name.value}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\nimport " in f"\n{node.value}":
            try:
                script = ast.parse(node.value)
            except SyntaxError:
                continue
            yield from ((node.lineno + line - 1, text) for line, text in _touches(script))


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_tests_hardly_reach_into_what_is_private():
    files = {path: text for path, text in tracked().items() if path.startswith("tests/") and path.endswith(".py")}
    found = [f"{path}:{line} {touched}" for path, text in files.items() for line, touched in private_touches(text)]
    assert len(found) < MOST, "\n".join(found)


def test_one_file_touches_what_the_kafka_client_keeps_to_itself_and_it_fits_the_client_that_is_installed():
    files = {path: text for path, text in tracked().items() if path.startswith("streaming/kafka/")}
    touching = {path for path, text in files.items() if path.endswith(".py") and private_touches(text)}
    assert touching == {"streaming/kafka/patches.py"}
    assert version("kafka-python") == patches.FITS


def names_of_others(sources: dict[str, str]) -> list[str]:
    """`path:line expression` of every private name that none of these files defines, and of private modules imported
    from other packages; of calls, such keywords."""
    trees = {path: ast.parse(text) for path, text in sources.items()}
    own = {name for tree in trees.values() for name in _defined(tree)}
    touches = []
    for path, tree in trees.items():
        for line, text in _touches(tree):
            if text.rpartition(".")[2] not in PUBLIC | own:
                touches.append(f"{path}:{line} {text}")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not f"{node.module}".startswith(tuple(p[:-1] for p in PRODUCT)):
                hidden = any(map(_private, f"{node.module}".split(".")))
                names = [alias.name for alias in node.names if hidden or _private(alias.name)]
                touches += [f"{path}:{node.lineno} {node.module}.{name}" for name in names]
            elif isinstance(node, ast.Call):
                names = [f"{keyword.arg}" for keyword in node.keywords if _private(f"{keyword.arg}")]
                touches += [f"{path}:{node.lineno} {ast.unparse(node.func)}({name}=…)" for name in names]
    return touches


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def test_the_product_touches_few_private_names_of_other_packages():
    files = {path: text for path, text in tracked().items() if path.startswith(PRODUCT) and path.endswith(".py")}
    touches = names_of_others(files)
    assert len(touches) <= MOST_OF_OTHERS, "\n".join(touches)


def test_a_private_name_of_another_package_is_found():
    source = "from ray._private import node\nray._raylet.go()\nself._mine = 1\nother._mine"
    assert len(names_of_others({"pipelines/a.py": source})) == 2


@pytest.mark.parametrize(
    "source",
    [
        "worker._learn()",
        "x = teacher.net._dense",
        "Stored._load",
        "a[0]._b = 1",
        'monkeypatch.setattr(Tracker, "_connect", None)',
        "SCRIPT = '''\n" + "import sys\nprint(sys._b)\n'''",
    ],
)
def test_a_planted_touch_is_found(source):
    assert len(private_touches(source)) == 1


def test_what_is_public_or_ones_own_is_let_through():
    assert private_touches("self._seen = cls._all\nx.__class__\nfrom _pytest import runner\nrow._replace(a=1)") == []
