"""What the repository may hold: known rooms of readable size, nothing that ties it to one machine."""

from __future__ import annotations

import re

import pytest
import typer
from typer.main import get_command

from pipelines.cli.console import app
from tests.support.tracked_files import (
    HOSTS,
    MACHINE_FOLDERS,
    tied_to_a_machine,
    tracked,
)

ROOMS = ("exfm", "streaming", "pipelines")
MOST_LINES = 3_000
TOP_LEVEL = {
    *ROOMS, "configs", "examples", "tests", "requirements", "docs", ".ci", ".gitignore", ".dockerignore",
    ".pre-commit-config.yaml", "pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
    "SECURITY.md", "CITATION.cff", "LICENSE", "compose.yaml", "Dockerfile",
}  # fmt: skip


def too_large(files: dict[str, str]) -> list[str]:
    """Folders of the three packages whose own Python files hold more than `MOST_LINES` lines together."""
    lines: dict[str, int] = {}
    for path, text in files.items():
        folder, _, name = path.rpartition("/")
        if name.endswith(".py") and folder.partition("/")[0] in ROOMS:
            lines[folder] = lines.get(folder, 0) + len(text.splitlines())
    return [f"{folder}: {count} lines" for folder, count in lines.items() if count > MOST_LINES]


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


def identifiers_named_apart(files: dict[str, str]) -> list[str]:
    """Files that write the name of a table's transaction identifier themselves, outside the one that names them."""
    return [
        path
        for path, text in files.items()
        if path.endswith(".py")
        and path.startswith(("streaming/", "pipelines/"))
        and path != "streaming/lake/delta/identifiers.py"
        and re.search(r"""["']exfm/[a-z_]+["']""", text)
    ]


def test_the_identifiers_of_tables_have_one_home():
    assert identifiers_named_apart(tracked()) == []
    assert identifiers_named_apart({"streaming/lake/x.py": 'STATE = "exfm/state"'}) == ["streaming/lake/x.py"]


def test_no_room_is_too_large_to_hold_in_one_head():
    assert too_large(tracked()) == []


def test_a_planted_large_room_is_found():
    files = {"exfm/all.py": "pass\n" * 2_000, "exfm/more.py": "pass\n" * 1_001, "exfm/features/x.py": "pass\n" * 3_000}
    assert too_large(files) == ["exfm: 3001 lines"]


def test_the_top_level_holds_known_rooms_only():
    assert {name.partition("/")[0] for name in tracked()} - TOP_LEVEL == set()


def unlisted(files: dict[str, str]) -> list[str]:
    """Modules that the docstring of their package leaves out, though it lists others of the package."""
    found = []
    for path in files:
        folder, slash, name = path.rpartition("/")
        listing = files.get(f"{folder}/__init__.py")
        if not slash or not name.endswith(".py") or name == "__init__.py" or folder.partition("/")[0] not in ROOMS:
            continue
        listed = re.findall(r"^(\w+)(?:/|,| (?= *\S))", (listing or "").partition("\n\n")[2], flags=re.MULTILINE)
        beside = {other.rpartition("/")[2][:-3] for other in files if other.rpartition("/")[0] == folder}
        if beside & set(listed) and name[:-3] not in re.findall(r"\w+", listing or ""):
            found.append(path)
    return found


def test_a_package_that_lists_its_modules_lists_them_all():
    assert unlisted(tracked()) == []


def test_a_planted_module_that_is_not_listed_is_found():
    listing = '"""Parts.\n\nwheel  turns\naxle   holds it\n"""\n\nimport lazy_loader\n'
    car = {f"exfm/car/{name}.py": "" for name in ("wheel", "axle", "brake")} | {"exfm/car/__init__.py": listing}
    assert unlisted(car) == ["exfm/car/brake.py"]
    assert unlisted(car | {"exfm/car/__init__.py": '"""A car of parts."""\n'}) == []


def rooms_unnamed(files: dict[str, str]) -> list[str]:
    """Rooms that the docstring of the room above does not name, and names with a slash there that are no room."""
    folders = {path.rpartition("/")[0] for path in files if path.partition("/")[0] in ROOMS and path.endswith(".py")}
    wrong = []
    for folder in folders:
        listing = files.get(f"{folder}/__init__.py", "")
        inside = {other.rpartition("/")[2] for other in folders if other.rpartition("/")[0] == folder}
        wrong += [f"{folder}/{name}" for name in inside - set(re.findall(r"\w+", listing))]
        listed = re.findall(r"^ *(\w+)/ ", listing, flags=re.MULTILINE)
        wrong += [f"{folder}/{name}/" for name in listed if name not in inside]
    return sorted(wrong)


def test_a_room_names_the_rooms_inside_it_and_no_others():
    assert rooms_unnamed(tracked()) == []


def test_a_planted_room_that_is_not_named_and_one_that_is_gone_are_found():
    car = {"exfm/car/__init__.py": '"""Car.\n\nseats/  sat on\n"""', "exfm/car/motor/__init__.py": '"""Motor."""'}
    assert rooms_unnamed(car | {"exfm/__init__.py": '"""A car."""'}) == ["exfm/car/motor", "exfm/car/seats/"]


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
