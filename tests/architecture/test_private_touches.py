"""Tests go through public faces: what a class keeps to itself may change without a test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from streaming.kafka import patches
from tests.support.tracked_files import tracked

MOST = 10
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
