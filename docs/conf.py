"""The site: Sphinx reads docs/ through MyST, which is CommonMark as GitHub shows it, and Furo is its theme.

`make docs` builds it with warnings as errors. docs/decisions/0005-site-generator.md says why these three.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

project = "ExFM"
author = "The ExFM contributors"
project_copyright = f"{author}, Apache-2.0"
html_title = "ExFM"

extensions = ["myst_parser"]
myst_heading_anchors = 6  # GitHub's anchors
exclude_patterns = ["*.py", "generate"]
root_doc = "index"
nitpicky = True

html_theme = "furo"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

DOCS = Path(__file__).parent
PAGE = re.compile(r"(?<!!)\[([^\]]+)\]\(([\w./-]+)\.md\)")
SOURCE = re.compile(r"(?<!\[)`((exfm|streaming|pipelines)/(?:\w+/)*[a-z]\w*\.py)`")
SECTIONS = (
    "tutorials/index",
    "guides/index",
    "concepts/index",
    "operations/index",
    "reference/index",
    "papers",
    "results/index",
    "contributing/index",
    "decisions/index",
)


def children(page: str, text: str) -> list[str]:
    """The pages below an index page in the navigation: those of its own folder that it links, in that order."""
    linked = dict.fromkeys(path for _, path in PAGE.findall(text))
    return [path for path in linked if not path.startswith("..") and path != PurePosixPath(page).name]


def generated(folder: PurePosixPath) -> list[PurePosixPath]:
    """The pages beside an index page that `docs.generate` wrote, which no committed page can link."""
    return sorted(folder / "generated" / path.name for path in (DOCS / folder).glob("generated/*.md"))


def add_navigation(app: Any, page: str, source: list[str]) -> None:
    """A hidden tree at the end of every index page. The pages have none, so that they read on the web as they are."""
    if PurePosixPath(page).name == "index":
        below = list(SECTIONS) if page == root_doc else children(page, source[0])
        below += [f"{path.parent.name}/{path.name}" for path in generated(PurePosixPath(page).parent)]
        source[0] += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(below) + "\n```\n"


def link_files(app: Any, page: str, source: list[str]) -> None:
    """Link every source file that a page names in back quotes to its place in the pages of the Python API."""
    here = PurePosixPath(page).parent
    above = "../" * len(here.parts)
    there = {path.name for path in generated(PurePosixPath("reference"))}

    def link(match: re.Match[str]) -> str:
        path, package = match[1], match[2]
        if f"api-{package}.md" not in there:
            return match[0]
        return f"[`{path}`]({above}reference/generated/api-{package}.md#{re.sub(r'[^a-z0-9_-]', '', path.lower())})"

    if here.name != "generated":
        parts = re.split(r"(^```.*?^```$)", source[0], flags=re.M | re.S)
        source[0] = "".join(part if part.startswith("```") else SOURCE.sub(link, part) for part in parts)


def setup(app: Any) -> None:
    app.connect("source-read", add_navigation)
    app.connect("source-read", link_files)
