"""Commands of the documents: every sub-command, option, make target, module and script that they name exists."""

from __future__ import annotations

import importlib.util
import re
import shlex
from typing import Any

import pytest
from typer.main import get_command

from pipelines.cli.console import app
from tests.support.documents import code_spans, documents, fenced
from tests.support.places import ROOT

DOCUMENTS = documents()
PLANNED = "docs/reference/planned.md"
COMMAND = re.compile(r"(?<![\w./-])exfm ([a-z][a-z-]*(?: [a-z]+)?)")


def groups() -> dict[str, Any]:
    return get_command(app).commands


def known() -> set[str]:
    found: set[str] = set()
    for name, command in groups().items():
        found |= {name, *(f"{name} {inner}" for inner in getattr(command, "commands", {}))}
    return found


def unknown_commands(text: str) -> set[str]:
    """`exfm X`, and `exfm X Y` of a group, in code, that the command line does not have."""
    names, found = known(), set()
    grouped = {name.partition(" ")[0] for name in names if " " in name}
    for span in (*code_spans(text), *fenced(text, "sh", "")):
        for words in (match.split() for match in COMMAND.findall(span)):
            name = " ".join(words) if words[0] in grouped else words[0]
            found |= {name} - names
    return found


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path != PLANNED])
def test_every_command_that_is_named_exists(path):
    assert unknown_commands(DOCUMENTS[path]) == set()


def test_a_planted_command_is_found():
    assert unknown_commands("`exfm fly` and `exfm broker dance`, `exfm broker start`") == {"fly", "broker dance"}


def test_what_is_planned_is_not_there():
    named = {name.partition(" ")[0] for span in code_spans(DOCUMENTS[PLANNED]) for name in COMMAND.findall(span)}
    assert named & known() == set()


# --- whole command lines -----------------------------------------------------------------------------------------


def lines(text: str) -> list[str]:
    """The commands of sh blocks, and of blocks that show a session after a `$`."""
    found = [line for block in fenced(text, "sh") for line in block.replace("\\\n", " ").splitlines()]
    found += [line[2:] for block in fenced(text, "") for line in block.splitlines() if line.startswith("$ ")]
    return [line.strip() for line in found if line.strip() and not line.lstrip().startswith("#")]


def parse(words: list[str]) -> None:
    """Parse `exfm …` as the console does, without running it. Raises what click raises for a wrong option."""
    command, name = get_command(app), "exfm"
    while hasattr(command, "commands"):
        name = words.pop(0)
        command = command.commands[name]
    command.make_context(name, words)


EXFM = sorted({line for text in DOCUMENTS.values() for line in lines(text) if line.startswith(".venv/bin/exfm ")})


@pytest.mark.parametrize("line", EXFM)
def test_every_command_line_parses(line):
    parse(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("line", ["exfm stream a.yaml --untl-end", "exfm lake compact", "exfm broker start --fast"])
def test_a_planted_wrong_option_is_found(line):
    with pytest.raises(Exception, match=r"(?i)no such option|missing"):
        parse(line.split()[1:])


def spans_and_lines() -> list[str]:
    return [item for text in DOCUMENTS.values() for item in (*code_spans(text), *lines(text))]


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {name for item in spans_and_lines() for name in re.findall(r"(?:^|\s)make ([a-z]+)", item)}
    assert named >= {"demo", "test", "docs"}
    assert named - targets == set()


def test_modules_and_scripts_that_are_run_exist():
    modules = {name for item in spans_and_lines() for name in re.findall(r"bin/python -m ([\w.]+)", item)}
    scripts = {name for item in spans_and_lines() for name in re.findall(r"bin/python ([\w/]+[.]py)", item)}
    assert modules
    assert {name for name in modules if importlib.util.find_spec(name) is None} == set()
    assert {name for name in scripts if not (ROOT / name).is_file()} == set()
