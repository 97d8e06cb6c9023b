"""Generated pages can be made from the code and hold what it has; the committed schema of configs is up to date."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import docs.generate
from docs.conf import generated, link_files
from docs.generate import GENERATED_PAGES, SCHEMA, api, commands, markdown, schema_text, settings, tree
from tests.support.documents import broken
from tests.support.places import ROOT
from tests.support.tracked_files import tied_to_a_machine


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return {(GENERATED_PAGES / name).as_posix(): text for name, text in docs.generate.pages().items()}


def test_links_of_generated_pages_lead_somewhere(made):
    assert {page: found for page, text in made.items() if (found := broken(page, text, made))} == {}


def test_generated_pages_name_no_machine(made):
    assert tied_to_a_machine(made) == []


def test_a_planted_broken_link_between_generated_pages_is_found(made):
    page = (GENERATED_PAGES / "commands.md").as_posix()
    text = "[a](settings.md#alarms), [b](settings.md#nothing), [c](rooms.md)"
    assert len(broken(page, text, made)) == 2


def test_every_file_of_the_packages_has_a_heading(made):
    headings = {line for text in made.values() for line in text.splitlines() if line.startswith("### `")}
    files = [path for package in tree.PACKAGES for path in (ROOT / package).rglob("*.py")]
    expected = {f"### `{path.relative_to(ROOT).as_posix()}`" for path in files if not path.name.startswith("_")}
    assert len(expected) > 100
    assert expected - headings == set()


def test_the_site_has_the_generated_pages_in_its_navigation(made, monkeypatch, tmp_path):
    monkeypatch.setattr("docs.conf.DOCS", tmp_path)
    folder = tmp_path / "reference" / "generated"
    folder.mkdir(parents=True)
    names = sorted(Path(page).name for page in made)
    for name in names:
        (folder / name).touch()
    assert [path.name for path in generated(folder.parent.relative_to(tmp_path))] == names


def test_the_site_links_every_source_file_that_a_page_names(made, monkeypatch):
    monkeypatch.setattr("docs.conf.generated", lambda folder: [folder / "generated" / Path(page).name for page in made])
    page = [
        "see `exfm/features/batch.py`, `runs/demo/x.py`, [`exfm/features/batch.py`](a.md)\n\n"
        "```sh\n`exfm/features/batch.py`\n```\n"
    ]
    link_files(None, "concepts/map", page)
    linked = "[`exfm/features/batch.py`](../reference/generated/api-exfm.md#exfmfeaturesbatchpy)"
    assert page[0].count(linked) == 1
    assert broken("docs/concepts/map.md", linked, made) == []


def test_the_schema_of_configs_is_up_to_date():
    assert (ROOT / SCHEMA).read_text() == schema_text(), "run .venv/bin/python -m docs.generate"


@pytest.mark.parametrize("module", [api, commands, markdown, settings, tree])
def test_examples_of_the_generator_hold(module):
    assert doctest.testmod(module).failed == 0


def test_every_setting_has_a_meaning():
    """Of a config and of a sweep. A section is explained by its own docstring or by the description of its field."""
    tables = (settings.settings_page() + settings.sweep_settings_page()).splitlines()
    rows = [line for line in tables if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.endswith("|  |")] == []
