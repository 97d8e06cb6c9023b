"""The README against the code: its snippets run, its graph is the imports' own, what it names is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
from typer.main import get_command

from pipelines.cli import app
from pipelines.config import load
from tests.support.places import ROOT
from tests.support.tracked_files import tied_to_a_machine

README = (ROOT / "README.md").read_text()
PACKAGES = ("exfm", "streaming", "pipelines")
LONGEST = 740
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
NODE = re.compile(r'^\s*(\w+)\["(.+?)"\]\s*$', re.M)
ARROW = re.compile(r"^\s*(\w+) --> (\w+(?: & \w+)*)\s*$", re.M)
TOP = "configs|exfm|pipelines|streaming|tests|requirements|[.]readme|[.]ci"
PATH = re.compile(rf"(?<![\w./<-])((?:{TOP})/[\w./-]*\w|[\w-]+[.](?:py|yaml|md|toml|png|svg))/?(?![\w*{{])")
# files of a run directory, or the reader's
NOT_THE_REPOSITORYS = {"config.yaml", "ne.png", "sweep.md", "clicks.yaml", "live.yaml", "mine.yaml"}
COMMAND = re.compile(r"exfm ((?:[a-z]+)(?: [a-z]+)?)")


def section(title: str, text: str = README) -> str:
    """The text under the heading that begins with `title`, up to the next heading of its level."""
    match = re.search(rf"^(#+) [^\n]*{re.escape(title)}[^\n]*\n(.*?)(?=^\1 |\Z)", text, re.M | re.S)
    assert match, f"the README has no section `{title}`"
    return match[2]


def fenced(language: str, text: str = README) -> list[str]:
    return [body for kind, body in FENCE.findall(text) if kind == language]


# --- snippets ----------------------------------------------------------------------------------------------------


def test_the_snippet_of_ones_own_loop_runs_without_ray_or_kafka():
    (snippet,) = fenced("python", section("own training loop"))
    absent = "import sys\nfor name in ('ray', 'kafka', 'mlflow', 'streaming', 'pipelines'): sys.modules[name] = None\n"
    subprocess.run([sys.executable, "-c", absent + snippet], check=True, timeout=120, cwd=ROOT)


def test_every_python_snippet_is_python():
    for snippet in fenced("python"):
        ast.parse(snippet)


def test_the_example_config_is_valid(tmp_path):
    import yaml

    def read(config):
        (tmp_path / "clicks.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        load(tmp_path / "clicks.yaml")

    configs = [yaml.safe_load(text) for text in fenced("yaml", section("Five minutes"))]
    whole = [config for config in configs if "rows" in config]
    assert whole
    for config in whole:
        read(config)
        for piece in (config for config in configs if "rows" not in config):
            read({key: value for key, value in config.items() if key != "source"} | piece)


# --- names -------------------------------------------------------------------------------------------------------


def named_paths(text: str) -> set[str]:
    """Paths and file names in back quotes or links; those of a reader's own are left out."""
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text)) + re.findall(r"\]\(([^)#]+)\)", text)
    return {path for span in spans for path in PATH.findall(span)} - NOT_THE_REPOSITORYS


def test_every_file_that_is_named_exists():
    there = [path.relative_to(ROOT).as_posix() for room in PACKAGES for path in (ROOT / room).rglob("*.py")]
    there += [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")]
    missing = {
        path
        for path in named_paths(README)
        if not (ROOT / path).exists() and not any(known.endswith(f"/{path}") for known in there)
    }
    assert missing == set()


def test_every_test_that_is_named_exists():
    named = re.findall(r"`((?:tests/)?[\w/]+[.]py)::(\w+)`", README)
    assert named
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


def test_a_planted_name_is_looked_for():
    assert named_paths("see `exfm/nowhere.py`, [a picture](.readme/x.png), `runs/demo/lake`, `tests/unit/`") == {
        "exfm/nowhere.py",
        ".readme/x.png",
        "tests/unit",
    }


def known_commands() -> set[str]:
    found: set[str] = set()
    for name, command in getattr(get_command(app), "commands", {}).items():
        found |= {name, *(f"{name} {inner}" for inner in getattr(command, "commands", {}))}
    return found


def unknown_commands(text: str) -> set[str]:
    """`exfm X` and `exfm X Y` (for groups) in back quotes or code that the command line does not have."""
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text)) + [body for kind, body in FENCE.findall(text)]
    known = known_commands()
    groups = {name.partition(" ")[0] for name in known if " " in name}
    found: set[str] = set()
    for words in (match.split() for span in spans for match in COMMAND.findall(span)):
        name = " ".join(words) if words[0] in groups else words[0]
        found |= {name} - known
    return found


def test_every_command_that_is_named_exists():
    assert unknown_commands(README.replace(section("Not yet"), "")) == set()


def test_what_is_not_yet_there_is_not_there():
    named = set(COMMAND.findall(section("Not yet")))
    assert named
    assert named & known_commands() == set()


def test_a_planted_command_is_found():
    assert unknown_commands("`exfm fly` and `exfm broker dance`, `exfm broker start`") == {"fly", "broker dance"}


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", README)) + [b for kind, b in FENCE.findall(README) if kind == "sh"]
    named = {name for span in spans for name in re.findall(r"(?:^|\s)make ([a-z]+)", span)}
    assert named >= {"demo", "test"}
    assert named - targets == set()


def test_it_names_no_machine_and_is_readable_in_one_sitting():
    assert tied_to_a_machine({"README.md": README}) == []
    assert len(README.splitlines()) <= LONGEST


@pytest.mark.parametrize("picture", re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README))
def test_pictures_are_there(picture):
    assert (ROOT / picture).stat().st_size > 1000
