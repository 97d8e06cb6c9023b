"""The reference pages are those that the code makes now."""

from __future__ import annotations

import doctest

import pytest

import docs.generate
from docs.generate import api, commands, markdown, rooms, settings
from tests.support.places import ROOT


def test_generated_pages_are_up_to_date():
    made = {path.as_posix(): text for path, text in docs.generate.pages().items()}
    stale = [path for path, text in made.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text]
    assert stale == [], "run .venv/bin/python -m docs.generate"


@pytest.mark.parametrize("module", [api, commands, markdown, rooms, settings])
def test_examples_of_the_generator_hold(module):
    assert doctest.testmod(module).failed == 0
