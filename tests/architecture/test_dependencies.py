"""pyproject.toml against the imports: what a package imports is declared where it is needed, and nothing else is."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipelines.data.doctor.requirements import parse
from pipelines.track.wheel import SERVING
from tests.support.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"exfm", "streaming", "pipelines", "tests", "docs", "examples", "requirements"}
LOADED_BY_KAFKA_PYTHON = {"lz4", "zstandard"}  # compression: it imports them where they are
SHARED_NAMES = {"opentelemetry": "opentelemetry-sdk"}  # of several distributions' modules; it needs the others
LOADED_BY_UVICORN = {"httptools"}  # by its protocol that `pipelines/serve/protocol.py` builds on
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
MODULES = metadata.packages_distributions()


def requirements(extra: str | None) -> list[Requirement]:
    lines = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def declared(extra: str | None) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements(extra)} - {"exfm"}


ADDED = {
    "exfm": declared(None),
    "streaming": declared("streaming") | declared("s3"),
    "pipelines": declared("pipelines"),
}
ALLOWED = {
    "exfm": ADDED["exfm"],
    "streaming": ADDED["exfm"] | ADDED["streaming"],
    "pipelines": ADDED["exfm"] | ADDED["streaming"] | ADDED["pipelines"],
    "tests": ADDED["exfm"] | ADDED["streaming"] | ADDED["pipelines"] | declared("dev"),
}


def modules(source: str) -> Iterator[str]:
    """Top-level names of the modules that a file imports, inside functions and by a literal name too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(a.value).partition(".")[0] for a in node.args if isinstance(a, ast.Constant))


@functools.cache
def imported(package: str) -> dict[str, str]:
    """Distribution -> one of the files of `package` that import it."""
    found: dict[str, str] = {}
    for path in (ROOT / package).rglob("*.py"):
        for name in set(modules(path.read_text())) - OURS - sys.stdlib_module_names:
            found[distribution(name)] = path.relative_to(ROOT).as_posix()
    return found


def distribution(module: str) -> str:
    """The one that provides a module; both builds of fbgemm are `fbgemm-gpu`, the name that torchrec asks for."""
    names = {SHARED_NAMES[module]} if module in SHARED_NAMES else set(MODULES.get(module, [module]))
    (name,) = names & {module} or names  # mlflow's parts bring a module `mlflow` each
    return canonicalize_name(name).removesuffix("-cpu")


@pytest.mark.parametrize("package", ALLOWED)
def test_what_a_package_imports_is_declared(package):
    assert {name: path for name, path in imported(package).items() if name not in ALLOWED[package]} == {}


@pytest.mark.parametrize("package", ADDED)
def test_what_is_declared_is_imported(package):
    assert ADDED[package] - imported(package).keys() - LOADED_BY_KAFKA_PYTHON - LOADED_BY_UVICORN == set()


def test_the_kafka_client_loads_what_is_declared_for_it():
    files = [file for file in metadata.files("kafka-python") or [] if file.suffix == ".py"]
    sources = "".join(file.read_text() for file in files)
    assert {name for name in LOADED_BY_KAFKA_PYTHON if f"import {name}" in sources} == LOADED_BY_KAFKA_PYTHON


def test_the_server_loads_what_is_declared_for_it():
    (found,) = [file for file in metadata.files("uvicorn") or () if str(file).endswith("http/httptools_impl.py")]
    assert {name for name in LOADED_BY_UVICORN if f"import {name}" in found.read_text()} == LOADED_BY_UVICORN


@pytest.mark.parametrize("extra", [None, *PROJECT["optional-dependencies"]])
def test_every_dependency_has_a_lower_bound_that_the_pinned_list_meets(extra):
    lists = ("docs",) if extra == "docs" else ("cpu", "cuda")
    for variant in lists:
        pins = parse((ROOT / "requirements" / f"{variant}.txt").read_text())
        for requirement in requirements(extra):
            if requirement.name == "exfm":
                continue
            assert any(bound.operator == ">=" for bound in requirement.specifier), requirement
            name = canonicalize_name(requirement.name)
            pinned = pins[f"{name}-cpu" if (variant, name) == ("cpu", "fbgemm-gpu") else name]
            assert requirement.specifier.contains(pinned), f"{requirement}, but {variant}.txt has {pinned}"


def hashed(text: str) -> dict[str, list[str]]:
    """Every pin of a list, as its line says it, and its hashes."""
    found: dict[str, list[str]] = {}
    for entry in text.replace(" \\\n", "").splitlines():
        if entry and not entry.startswith("#"):
            pin, *hashes = re.split(r" +--hash=", entry)
            found[pin.strip()] = hashes
    return found


def unhashed(pins: dict[str, list[str]]) -> list[str]:
    """Pins that name no file by its hash: whoever serves the index could put another in its place."""
    return [pin for pin, hashes in pins.items() if not hashes or not all(map(SHA256.fullmatch, hashes))]


@pytest.mark.parametrize("variant", ["cpu", "cuda", "docs"])
def test_every_pin_has_the_hashes_of_its_files(variant):
    pins = hashed((ROOT / "requirements" / f"{variant}.txt").read_text())
    assert len(pins) > 30
    assert unhashed(pins) == []


def test_a_planted_pin_without_a_hash_is_found():
    one = "sha256:" + "0a" * 32
    linux = "torch==2.0 ; sys_platform == 'linux'"
    said = f"# why\nsix==1.0 \\\n    --hash={one} \\\n    --hash={one}\n{linux}\nray==2.1 --hash=md5:0"
    assert hashed(said)["six==1.0"] == [one, one]
    assert unhashed(hashed(said)) == [linux, "ray==2.1"]


def test_a_pin_of_both_lists_has_the_same_hashes():
    cpu, cuda = (hashed((ROOT / "requirements" / f"{variant}.txt").read_text()) for variant in ("cpu", "cuda"))
    assert {pin for pin in cpu.keys() & cuda.keys() if cpu[pin] != cuda[pin]} == set()


def test_set_up_takes_no_file_whose_hash_is_not_in_the_list():
    commands = [line for line in (ROOT / "Makefile").read_text().splitlines() if re.search(r"pip install.* -r ", line)]
    assert len(commands) == 4
    assert [line for line in commands if "--require-hashes" not in line] == []


def test_what_a_served_model_needs_is_the_base_and_pandas_whose_frames_it_is_given():
    needed = {canonicalize_name(name) for name in SERVING}
    assert needed - ADDED["exfm"] == {"pandas"} <= ALLOWED["pipelines"]
    assert imported("exfm").keys() - {"fbgemm-gpu"} - needed == {
        "llvmlite",
        "scipy",
    }  # numba brings the one; metrics alone ask for the other
