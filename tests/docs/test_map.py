"""The map of the code and the walk through it name files that are there, and names that those files define."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.documents import code_spans
from tests.support.places import ROOT

PAGES = (
    "docs/concepts/architecture.md",
    "docs/concepts/one-impression.md",
    "docs/contributing/where-to-put-what.md",
)
FILE = re.compile(r"(?:exfm|streaming|pipelines|tests|docs|examples)/[\w/]+\.py")
NAMES = r"(?:`[A-Za-z_][\w.]*`(?:, )?)+"
SYMBOLS = re.compile(rf"`({FILE.pattern})`(?: \(|, )({NAMES})")


def named(text: str) -> list[tuple[str, str]]:
    """(file, name) of every name that stands behind a file: `a/b.py` (`Name`, `other`), or within brackets."""
    return [(path, name) for path, names in SYMBOLS.findall(text) for name in re.findall(r"`([^`]+)`", names)]


def defined(source: str) -> set[str]:
    """The names that a file defines: at its top, and those of its classes as `Class.name`."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        own = {getattr(node, "name", "")}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            own = {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            methods = [inner for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)]
            own |= {f"{node.name}.{method.name}" for method in methods}
        names |= own
    return names


@pytest.mark.parametrize("page", PAGES)
def test_names_on_the_map_are_defined_where_it_says(page):
    text = (ROOT / page).read_text()
    assert len(named(text)) >= 5
    missing = [
        f"{path}: {name}"
        for path, name in named(text)
        if not (ROOT / path).is_file() or name not in defined((ROOT / path).read_text())
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_files_on_the_map_are_there(page):
    spans = code_spans((ROOT / page).read_text())
    assert [path for span in spans for path in FILE.findall(span) if not (ROOT / path).is_file()] == []


def test_a_line_of_the_map_names_a_file_and_what_is_in_it():
    text = (ROOT / "docs/concepts/architecture.md").read_text()
    rows = [line for line in text[text.index("## Where to look") :].splitlines() if line.startswith("| ")][1:]
    bare = [row for row in rows if not named(row) and "](" not in row and "pipelines/cli/" not in row]
    assert len(rows) > 15
    assert bare == []


def test_a_planted_name_is_found():
    text = "see `exfm/features/batch.py` (`BatchBuilder`, `Cook`), and (`exfm/features/batch.py`, `Batch.only`)"
    names = named(text)
    assert names == [("exfm/features/batch.py", name) for name in ("BatchBuilder", "Cook", "Batch.only")]
    there = defined((ROOT / "exfm/features/batch.py").read_text())
    assert [name for _, name in names if name not in there] == ["Cook"]
