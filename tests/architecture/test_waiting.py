"""Tests wait for what is to hold (`eventually` in tests/support/waiting.py), never for a time to pass."""

from __future__ import annotations

import ast

import pytest

from tests.support.tracked_files import tracked

EVENTUALLY = "tests/support/waiting.py"


def sleeps(files: dict[str, str]) -> list[str]:
    """Calls of time.sleep and asyncio.sleep in tests; one that is work itself says so in its line: `# work: …`."""
    places = []
    for path, text in files.items():
        if not path.startswith("tests/") or not path.endswith(".py") or path.startswith("tests/benchmarks/"):
            continue
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)) if "sleep" in text and path != EVENTUALLY else ():
            called = isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "asyncio.sleep")
            imported = isinstance(node, ast.ImportFrom) and "sleep" in [name.name for name in node.names]
            if imported or (called and "# work: " not in lines[node.end_lineno - 1]):
                places.append(f"{path}:{node.lineno}")
    return places


def test_no_test_sleeps_for_another():
    assert sleeps(tracked()) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("time.sleep(0.1)", 1),
        ("time.sleep(\n    0.1\n)", 1),
        ("from time import sleep", 1),
        ("asyncio.sleep(1)", 1),
        ("time.sleep(0.1)  # work: a step", 0),
        ("clock.sleep(3600)", 0),
        ('SCRIPT = "time.sleep(600)"', 0),
    ],
)
def test_a_planted_sleep_is_found(line, found):
    assert len(sleeps({"tests/unit/test_x.py": line})) == found
