"""What the repository may hold: known rooms, files of readable length, nothing that ties it to one machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from pipelines.cli import app
from tests.support.places import ROOT

ROOMS = ("exfm", "streaming", "pipelines")
LONGEST = 400
TOP_LEVEL = {
    *ROOMS, "configs", "tests", "requirements", "docs", ".ci", ".readme", ".gitignore", ".dockerignore",
    ".pre-commit-config.yaml", "pyproject.toml", "Makefile", "README.md", "LICENSE", "compose.yaml",
}  # fmt: skip


def spelt(*pieces: str) -> str:
    """Put together here what this file itself must not hold."""
    return "".join(pieces)


MACHINE_FOLDERS = (spelt("wo", "rk"), spelt("ro", "ot"), spelt("ho", "me"), spelt("Us", "ers"))
MACHINE_PATH = re.compile(rf"(?<![\w./-])/(?:{'|'.join(MACHINE_FOLDERS)})/[\w.]")
HOSTS = (spelt("py", "pi.org"), spelt("python", "hosted"), spelt("ma", "ven.org"), spelt("ma", "ven.apache"))
REGISTRY_HOST = re.compile("|".join(map(re.escape, HOSTS)))


def tracked(root: Path = ROOT) -> dict[str, str]:
    """Path -> text of every text file under version control (every file where there is no git)."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = {}
    for name in filter(None, listed.stdout.split("\0")):
        try:
            files[name] = (root / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # a picture; a file removed but not committed
    return files


def tied_to_a_machine(files: dict[str, str]) -> list[str]:
    """`path:line` of every path of one machine and every package registry's host name."""
    return [
        f"{path}:{number}"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line)
    ]


def too_long(files: dict[str, str]) -> list[str]:
    """Python files of the three packages past `LONGEST` lines: look for the second noun."""
    return [
        f"{path}: {len(text.splitlines())} lines"
        for path, text in files.items()
        if path.endswith(".py") and path.partition("/")[0] in ROOMS and len(text.splitlines()) > LONGEST
    ]


def test_no_file_names_a_machine_or_a_registry():
    assert tied_to_a_machine(tracked()) == []


@pytest.mark.parametrize(
    "line", [f"/{MACHINE_FOLDERS[1]}/.cache/uv", f"cd '/{MACHINE_FOLDERS[0]}/main'", f"https://{HOSTS[0]}/simple"]
)
def test_a_planted_machine_path_or_host_is_found(line):
    assert tied_to_a_machine({"README.md": f"first\n{line}\n"}) == ["README.md:2"]


def test_a_path_of_the_repository_is_no_machine_path():
    line = "pipelines/work/x, runs/home/y, ./root/z and https://arxiv.org/abs/1906.00091"
    assert tied_to_a_machine({"README.md": line}) == []


def test_no_file_is_too_long_to_read():
    assert too_long(tracked()) == []


def test_a_planted_long_file_is_found():
    assert too_long({"exfm/all.py": "pass\n" * 401, "tests/x.py": "pass\n" * 999}) == ["exfm/all.py: 401 lines"]


def test_the_top_level_holds_known_rooms_only():
    assert {name.partition("/")[0] for name in tracked()} - TOP_LEVEL == set()


def commands(command: object = None, name: str = "exfm") -> dict[str, object]:
    """Every public sub-command that can be run: name -> click command."""
    command = get_command(app) if command is None else command
    inner = getattr(command, "commands", None)
    if inner is None:
        return {name: command}
    found = {}
    for key, value in inner.items():
        if not value.hidden:
            found |= commands(value, f"{name} {key}")
    return found


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_has_help_with_an_example(name):
    command = commands()[name]
    assert command.help, f"`{name}` needs a docstring"
    said = f"{command.help} {command.epilog or ''}"
    assert f"Example: {name}" in said, f"`{name}` needs a line `Example: {name} ...` in its docstring or epilog"


def test_a_command_without_an_example_is_found():
    bare = typer.Typer()
    bare.command("bare")(lambda: None)
    assert not commands(get_command(bare), "exfm bare")["exfm bare"].epilog
