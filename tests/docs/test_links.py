"""Links between pages lead somewhere, every page can be reached, and no page ties itself to one machine."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from docs.conf import SECTIONS, children
from tests.support.documents import DOCS, broken, documents, is_external, links, target_of
from tests.support.places import ROOT
from tests.support.tracked_files import tied_to_a_machine

DOCUMENTS = documents()
LONGEST_README = 200


@pytest.mark.parametrize("page", DOCUMENTS)
def test_links_lead_somewhere(page):
    assert broken(page, DOCUMENTS[page]) == []


def test_planted_broken_links_are_found():
    text = "[a](nowhere.md), [b](index.md#nothing), ![c](x.png), [d](../README.md), [e](https://example.org)"
    assert len(broken("docs/index.md", text)) == 4


def test_every_page_can_be_reached_from_the_first():
    reached, ahead = set(), ["docs/index.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page not in DOCUMENTS:
            continue
        reached.add(page)
        ahead += [target_of(page, link)[0] for _, link in links(DOCUMENTS[page]) if not is_external(link)]
    assert {page for page in DOCUMENTS if page.startswith("docs/")} - reached == set()


def navigation(pages: dict[str, str]) -> set[str]:
    """The pages that the site's navigation has: `make docs` refuses a page without a place in it."""
    found, ahead = set(), [("index", list(SECTIONS))]
    while ahead:
        page, below = ahead.pop()
        found.add(f"docs/{page}.md")
        for path in (PurePosixPath(page).parent / child for child in below):
            text = pages.get(f"docs/{path}.md", "")
            ahead.append((str(path), children(path.name, text) if path.name == "index" else []))
    return found


def test_every_page_has_a_place_in_the_navigation():
    assert {page for page in DOCUMENTS if page.startswith("docs/")} - navigation(DOCUMENTS) == set()


def test_a_page_that_only_another_page_links_is_found():
    index = {"docs/results/index.md": "[a](a.md)", "docs/results/a.md": "[b](b.md)", "docs/results/b.md": ""}
    assert set(index) - navigation(index) == {"docs/results/b.md"}


def test_every_picture_is_shown_somewhere():
    shown = {target_of(page, link)[0] for page, text in DOCUMENTS.items() for picture, link in links(text) if picture}
    assert {path.relative_to(ROOT).as_posix() for path in (DOCS / "pictures").iterdir()} - shown == set()


def test_pages_name_no_machine():
    assert tied_to_a_machine(DOCUMENTS) == []


def test_the_readme_is_read_in_one_sitting():
    assert len(DOCUMENTS["README.md"].splitlines()) <= LONGEST_README
