"""The threat model: every line names a test that is there, and none twice."""

from __future__ import annotations

import ast
import re

from tests.support.places import ROOT

PAGE = (ROOT / "docs/operations/security.md").read_text()
NAMED = re.compile(r"`([^`]+\.py)::(\w+)`")


def lines(page: str) -> list[list[str]]:
    """The cells of the table of threats."""
    table = page.split("## Threats\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines() if line[:2] == "| "][
        1:
    ]


def missing(page: str) -> list[str]:
    """Threats without a test that exists."""
    found = []
    for threat, _, named in lines(page):
        match = NAMED.fullmatch(named.removesuffix(" |"))
        file = None if match is None else ROOT / match[1]
        tree = ast.parse(file.read_text()) if file is not None and file.exists() else ast.Module([], [])
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        if match is None or match[2] not in names:
            found.append(threat)
    return found


def test_every_threat_has_a_test():
    assert missing(PAGE) == []
    assert len(lines(PAGE)) > 20


def test_a_test_stands_for_one_threat():
    tests = [named for _, _, named in lines(PAGE)]
    assert sorted(set(tests)) == sorted(tests)


def test_a_threat_whose_test_is_gone_is_found():
    planted = PAGE.replace("::test_nothing_but_reading_is_answered", "::test_that_was_renamed")
    assert len(missing(planted)) == 1
