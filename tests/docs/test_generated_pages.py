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


def test_every_setting_has_a_meaning():
    """Of a config and of a sweep. A section is explained by its own docstring or by the description of its field."""
    tables = (settings.settings_page() + settings.sweep_settings_page()).splitlines()
    rows = [line for line in tables if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.endswith("|  |")] == []
