"""Paths and tests that the documents name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import code_spans, documents
from tests.support.places import ROOT

DOCUMENTS = documents()
PACKAGES = ("exfm", "streaming", "pipelines")
TOP = "configs|docs|examples|benchmarks|exfm|pipelines|streaming|tests|requirements|[.]ci"
PATH = re.compile(rf"(?<![\w./<-])((?:{TOP})/[\w./-]*\w|[\w-]+[.](?:py|ipynb|yaml|md|toml|cff|png|svg))/?(?![\w*{{])")
# of a run directory, or the reader's
NOT_OURS = {"config.yaml", "ne.png", "curves.png", "sweep.md", "clicks.yaml", "mine.yaml", "index.md"}
WITH_TESTS = [page for page in DOCUMENTS if page not in ("CONTRIBUTING.md", "docs/contributing/testing.md")]  # examples
TEST = re.compile(r"(?<![\w/])(test_\w+)(?![\w.]|/)")


def named_paths(text: str) -> set[str]:
    return {path for span in code_spans(text) for path in PATH.findall(span)} - NOT_OURS


def files() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for room in (*PACKAGES, "tests") for path in (ROOT / room).rglob("*.py")]


@pytest.mark.parametrize("page", DOCUMENTS)
def test_every_file_that_is_named_exists(page):
    there = files()
    missing = {
        path
        for path in named_paths(DOCUMENTS[page])
        if not (ROOT / path).exists() and not any(known.endswith(f"/{path}") for known in there)
    }
    assert missing == set()


def test_every_test_that_is_named_exists():
    defined = {
        name
        for path in files()
        if path.startswith("tests/")
        for name in (Path(path).stem, *re.findall(r"def (test_\w+)\(", (ROOT / path).read_text()))
    }
    pages = [
        text for page, text in DOCUMENTS.items() if page != "docs/contributing/testing.md" and "CONTRIB" not in page
    ]
    named = {
        name for text in pages for span in code_spans(text) for name in TEST.findall(span.partition("::")[2] or span)
    }
    assert len(named) > 20
    assert named - defined == set()


def test_a_planted_name_is_looked_for():
    text = "see `exfm/nowhere.py`, `runs/demo/lake`, `tests/unit/`"
    assert named_paths(text) == {"exfm/nowhere.py", "tests/unit"}
