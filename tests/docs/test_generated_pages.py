"""The reference pages are those that the code makes now."""

from __future__ import annotations

import doctest
import importlib.util
import sys
from types import ModuleType

import pytest

from tests.support.documents import ROOT

SCRIPT = ROOT / "docs" / "generate_reference.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(generator):
    made = {path.as_posix(): text for path, text in generator.pages().items()}
    stale = [path for path, text in made.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text]
    assert stale == [], "run .venv/bin/python docs/generate_reference.py"


def test_its_examples_hold(generator):
    result = doctest.testmod(generator)
    assert result.attempted > 0
    assert result.failed == 0
