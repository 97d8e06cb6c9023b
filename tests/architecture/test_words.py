"""Words of the code: docstrings say what a thing is, a public name is one class, and replaced names stay away."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

import pytest

from tests.support.tracked_files import tracked

PACKAGES = ("exfm/", "streaming/", "pipelines/", "examples/", "docs/generate/")

RIDDLES = re.compile(
    r"(Of|What|Whether|(With|By|As) (what|whom|which|a)|Where|It|That|Who|Whose|Which|How|Why|Those|Have|Be"
    r"|None where)\b"
)
"""A first sentence is a noun phrase or an imperative: one with such an opening describes what it does not name."""

REPLACED = {
    "Keeper": "Checkpointer", "keeper": "checkpointer", "Lesson": "Targets", "lesson": "targets",
    "Slopes": "Gradients", "of_x": "grad_x", "Sight": "Health", "Raised": "RaisedAlarm",
    "Trial": "ChallengerTest, FamilyTrial", "Standing": "Aliases", "Stretches": "FeatureCache, BatchChunks",
    "Commons": "SharedCache", "Past": "Provenance", "Looked": "Lookup", "Places": "RowIndices", "mend": "repair",
    "Shelf": "ModelStore", "shelf": "model_store", "Asked": "PredictionRequest", "Origin": "ModelSource",
    "sieved": "learn_good_rows", "Wish": "DesiredState", "wish": "desired", "granted": "accepted",
    "Wanted": "WorkerSpec, DesiredVersion", "WorkerRecipe": "WorkerBuilder", "by_hand": "fused",
    "as_code": "exportable", "EarlierLegs": "EarlierAttempts", "Meters": "ServingMetrics",
    "Way": "LabelRule, ComputeMode", "Cut": "StudentBatch", "Portion": "BlockShare",
}  # fmt: skip
"""A name of our own -> the field's term."""


@cache
def product() -> Mapping[str, ast.Module]:
    files = {path: text for path, text in tracked().items() if path.startswith(PACKAGES) and path.endswith(".py")}
    return {path: ast.parse(text) for path, text in files.items()}


def riddles(files: Mapping[str, ast.Module]) -> list[str]:
    """`path: name: sentence` of every module, class and function whose docstring opens as `RIDDLES` has it."""
    return [
        f"{path}: {name}: {sentence}"
        for path, tree in files.items()
        for name, sentence in _first_lines(tree, path.rpartition("/")[2])
        if RIDDLES.match(sentence)
    ]


def _first_lines(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (docstring := ast.get_docstring(node)):
            yield getattr(node, "name", name), docstring.partition("\n")[0]


def names_of_two_classes(files: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Public class names that more than one file defines, with these files."""
    places = defaultdict(list)
    for path, tree in files.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def replaced_names(files: Mapping[str, ast.Module]) -> list[str]:
    """`path:line name → term` of every identifier that has a term of the field."""
    return [
        f"{path}:{line} {name} → {REPLACED[name]}"
        for path, tree in files.items()
        for line, name in _identifiers(tree)
        if name in REPLACED
    ]


def _identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.alias(name=name, asname=other):
                yield from ((node.lineno, each) for each in (name, other) if each is not None)


def test_a_docstring_begins_with_what_a_thing_is():
    assert riddles(product()) == []


def test_a_public_class_name_stands_for_one_class():
    assert names_of_two_classes(product()) == {}


def test_a_name_is_the_term_of_the_field():
    assert replaced_names(product()) == []


@pytest.mark.parametrize("opening", ["Of rows", "What is kept", "Whether it fits", "Where it lies", "It waits", "Who"])
def test_a_planted_riddle_is_found(opening):
    module = (
        f'"""Rows."""\n\nclass Table:\n    """A table."""\n\n    def size(self):\n        """{opening}, of it."""\n'
    )
    assert riddles({"exfm/rows.py": ast.parse(module)}) == [f"exfm/rows.py: size: {opening}, of it."]
    assert riddles({"exfm/rows.py": ast.parse(f'"""{opening}."""')}) == [f"exfm/rows.py: rows.py: {opening}."]


def test_a_planted_riddle_of_a_private_name_is_found():
    code = 'class _Table:\n    """Of rows."""\n\n    def _size(self):\n        """Those."""'
    assert len(riddles({"exfm/rows.py": ast.parse(code)})) == 2


def test_a_planted_second_class_is_found():
    files = {"exfm/a.py": ast.parse("class Rows: ..."), "streaming/b.py": ast.parse("class Rows: ...\nclass _Row: ...")}
    assert names_of_two_classes(files | {"exfm/c.py": ast.parse("class _Row: ...")}) == {
        "Rows": ["exfm/a.py", "streaming/b.py"]
    }


@pytest.mark.parametrize("code", ["class Keeper: ...", "from a import Keeper", "x.Keeper()", "def f(Keeper): ..."])
def test_a_planted_name_that_was_replaced_is_found(code):
    assert replaced_names({"exfm/a.py": ast.parse(code)}) == ["exfm/a.py:1 Keeper → Checkpointer"]
