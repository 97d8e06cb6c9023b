"""Makes what a release consists of, in dist/, and tries it as a user would.

    make release                    # or: .venv/bin/python requirements/release.py
    make release ARGS=--draft       # of a version that is not ready to be tagged

    exfm-VERSION-py3-none-any.whl   built from the sdist, which is built from what is committed
    exfm-VERSION.tar.gz
    cpu.txt, cuda.txt               the pinned lists, which are installed first, with --no-deps
    exfm-VERSION.cdx.json           bill of materials, CycloneDX
    LICENCES.txt                    the licence of every package
    SHA256SUMS

The wheel and the list are installed into an empty environment by the two lines that `docs/contributing/releasing.md`
gives to users, and `exfm --version`, `exfm doctor` and a small run are asked for there. Nothing is tagged or uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LISTS = ("cpu", "cuda")
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
PATCH_ONLY = {"Fixed", "Security"}
"""Sections of the changelog that a version may have which changes its last number only."""
SMALL_RUN = ("stream", "demo", "--until-end", "--local", "--run-dir", "run", "--set", "source.impressions=3000")

Number = tuple[int, int, int]


def number(version: str) -> Number | None:
    """Semantic version as numbers; None for anything else.

    >>> number("0.10.2"), number("v1"), number("1.0.0rc1")
    ((0, 10, 2), None, None)
    """
    match = VERSION.fullmatch(version)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def sections(changelog: str) -> dict[str, tuple[str | None, str]]:
    """Version -> date, and text, of a changelog in the form of keepachangelog; newest first.

    >>> sections("# x\\n## [Unreleased]\\n\\n## [0.1.0] - 2026-11-21\\n\\nFirst.\\n")
    {'Unreleased': (None, ''), '0.1.0': ('2026-11-21', 'First.')}
    """
    heads = list(re.finditer(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", changelog, re.M))
    ends = [head.start() for head in heads[1:]] + [len(changelog)]
    return {head[1]: (head[2], changelog[head.end() : end].strip()) for head, end in zip(heads, ends, strict=True)}


def version_problems(version: str, changelog: str, tags: Iterable[str]) -> list[str]:
    """Reasons why this version cannot be tagged, in words; none if it can.

    >>> version_problems("0.2.0", "## [Unreleased]\\n## [0.2.0] - 2026-12-01\\n### Added\\n- x", ["v0.1.0"])
    []
    """
    own = number(version)
    if own is None:
        return [f"the version {version} is no semantic one; write X.Y.Z in exfm/__init__.py"]
    found, problems = sections(changelog), []
    if found.get("Unreleased", (None, ""))[1]:
        problems.append(f"CHANGELOG.md has lines under [Unreleased]; move them below `## [{version}] - DATE`")
    if version not in found:
        problems.append(f"CHANGELOG.md has no section [{version}]; add `## [{version}] - DATE`")
    elif found[version][0] is None:
        problems.append(f"CHANGELOG.md gives no date for [{version}]; write `## [{version}] - YYYY-MM-DD`")
    earlier = max((n for tag in tags if (n := number(tag.removeprefix("v"))) is not None), default=None)
    if earlier is None:
        return problems
    major, minor, patch = earlier
    steps = [(major, minor, patch + 1), (major, minor + 1, 0), (major + 1, 0, 0)]
    if own not in steps:
        possible = ", ".join(".".join(map(str, step)) for step in steps)
        problems.append(
            f"the newest tag is v{'.'.join(map(str, earlier))}, and {version} does not follow: {possible} do"
        )
    elif own == steps[0]:
        more = set(re.findall(r"^### (.+)$", found.get(version, (None, ""))[1], re.M)) - PATCH_ONLY
        if more:
            problems.append(
                f"{version} changes the last number only, and has {', '.join(sorted(more))}: take a minor one"
            )
    return problems


def stated(package: metadata.Distribution, field: str) -> str:
    """First value of a field of a package's metadata; empty where it has none."""
    return "".join((package.metadata.get_all(field) or [])[:1]).strip()


def licence(package: metadata.Distribution) -> str:
    """Licence of a package, as it states it: an SPDX expression where it has one."""
    if expression := stated(package, "License-Expression"):
        return expression
    classifiers = package.metadata.get_all("Classifier") or []
    classified = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]
    first = "".join(stated(package, "License").splitlines()[:1])[:80]
    file = stated(package, "License-File")
    return " OR ".join(classified) or first or (f"as its file {file} says" if file else "not stated")


def installed(site: Path) -> list[metadata.Distribution]:
    """Packages of an environment by name, without pip, which made it."""
    found = {canonicalize_name(each.metadata["Name"]): each for each in metadata.distributions(path=[str(site)])}
    return [found[name] for name in sorted(found) if name != "pip"]


def hashes_of(listed: str) -> dict[str, list[str]]:
    """Package -> sha256 of its files, of a pinned list.

    >>> hashes_of("# why\\nPyYAML==6.0.3 \\\\\\n    --hash=sha256:0a \\\\\\n    --hash=sha256:0b\\n")
    {'pyyaml': ['0a', '0b']}
    """
    found: dict[str, list[str]] = {}
    name = ""
    for line in listed.splitlines():
        if (pin := re.match(r"([\w.-]+)==", line)) is not None:
            name = canonicalize_name(pin[1])
        elif (file := re.match(r"\s+--hash=sha256:(\w+)", line)) is not None:
            found.setdefault(name, []).append(file[1])
    return found


def bill_of_materials(version: str, packages: Iterable[metadata.Distribution], listed: str) -> dict[str, Any]:
    """CycloneDX 1.6 of a release: its packages with versions, licences and the hashes that may be installed."""
    hashes = hashes_of(listed)

    def component(package: metadata.Distribution) -> dict[str, Any]:
        name = canonicalize_name(package.metadata["Name"])
        said = stated(package, "License-Expression")
        licences = {"expression": said} if said else {"license": {"name": licence(package)}}
        files = [{"type": "distribution", "url": f"urn:sha256:{one}", "hashes": [{"alg": "SHA-256", "content": one}]}
                 for one in hashes.get(name, [])]  # fmt: skip
        purl = f"pkg:pypi/{name}@{package.version}"
        return {
            "type": "library", "bom-ref": purl, "name": name, "version": package.version, "purl": purl,
            "licenses": [licences],
        } | ({"externalReferences": files} if files else {})  # fmt: skip

    components = [component(each) for each in packages if canonicalize_name(each.metadata["Name"]) != "exfm"]
    root = f"pkg:pypi/exfm@{version}"
    about = {"type": "application", "bom-ref": root, "name": "exfm", "version": version, "purl": root}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, json.dumps(components, sort_keys=True) + root)}",
        "version": 1,
        "metadata": {"component": about | {"licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": components,
    }


def licence_table(packages: Iterable[metadata.Distribution]) -> str:
    """The licences as a page."""
    rows = [f"| {each.metadata['Name']} | {each.version} | {licence(each).replace('|', '/')} |" for each in packages]
    return "\n".join(["# Licences of what a release is installed with", "", "| package | version | licence |",
                      "|---|---|---|", *rows, ""])  # fmt: skip


def run(*words: str | Path, cwd: Path | None = None) -> str:
    """Output of a command, in an environment without this checkout. Raises SystemExit with its words where it fails."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def built(commit: str, out: Path) -> Path:
    """The wheel, built from the sdist, which is built from a commit; both are in `out`."""
    hooks = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    with tempfile.TemporaryDirectory() as folder:
        source, archive = Path(folder) / "source", Path(folder) / "source.tar"
        source.mkdir()
        run("git", "archive", "--output", archive, commit, cwd=ROOT)
        run("tar", "-xf", archive, "-C", source)
        sdist = out / run(sys.executable, "-c", hooks, "build_sdist", out, cwd=source).splitlines()[-1]
        run("tar", "-xf", sdist, "-C", folder)
        unpacked = Path(folder) / sdist.name.removesuffix(".tar.gz")
        return out / run(sys.executable, "-c", hooks, "build_wheel", out, cwd=unpacked).splitlines()[-1]


def committed(path: str) -> str:
    """Text of a file as the commit has it, which is released: what lies beside it uncommitted is not."""
    return run("git", "show", f"HEAD:{path}", cwd=ROOT)


def install(python: Path, listed: Path, wheel: Path) -> None:
    """The two lines of a user, with uv in place of pip where there is uv: the same files, minutes sooner."""
    uv = Path(sys.executable).with_name("uv")
    tool: list[str | Path] = (
        [uv, "pip", "install", "--python", python] if uv.exists() else [python, "-m", "pip", "install"]
    )
    run(*tool, "--quiet", "--no-deps", "--require-hashes", "-r", listed)
    run(*tool, "--quiet", "--no-deps", wheel)


def tried(python: Path, version: str, folder: Path) -> None:
    """Ask the installed command for its version, its doctor and a small run, in an empty folder."""
    exfm = python.with_name("exfm")
    said = run(exfm, "--version", cwd=folder).strip()
    if said != f"exfm {version}":
        raise SystemExit(f"`exfm --version` says {said}, and the release is {version}")
    run(exfm, "doctor", cwd=folder)
    run(exfm, *SMALL_RUN, cwd=folder)
    rows = json.loads((folder / "run" / "summary.json").read_text())["counts"]["lake_rows"]
    print(f"  {python}: {said}; doctor; a run of {rows:,} rows")


def environment(interpreter: str, folder: Path) -> Path:
    """An empty environment; its python."""
    run(interpreter, "-m", "venv", folder)
    return folder / "bin" / "python"


def main(arguments: Sequence[str] | None = None) -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--draft", action="store_true", help="say what is wrong with the version, and go on")
    asked.add_argument("--list", default="cpu", choices=LISTS, help="what is installed to try it")
    asked.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to try it with")
    asked.add_argument("-o", "--out", type=Path, default=ROOT / "dist")
    given = asked.parse_args(arguments)
    version = re.search(r'^__version__ = "(.+)"$', committed("exfm/__init__.py"), re.M)[1]  # type: ignore[index]
    tags = run("git", "tag", "--list", "v*", cwd=ROOT).split()
    problems = version_problems(version, committed("CHANGELOG.md"), tags)
    if run("git", "rev-parse", "--is-shallow-repository", cwd=ROOT).strip() == "true":
        problems.append("this clone is shallow, and may lack tags: git fetch --unshallow --tags")
    for problem in problems:
        print(f"{'draft' if given.draft else 'not ready'}: {problem}", file=sys.stderr)
    if problems and not given.draft:
        raise SystemExit(2)
    out = given.out.resolve()
    if out == ROOT / "dist":
        shutil.rmtree(out, ignore_errors=True)
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty; give a new folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    wheel = built("HEAD", out)
    for name in LISTS:
        (out / f"{name}.txt").write_text(committed(f"requirements/{name}.txt"))
    for at, interpreter in enumerate(given.python):
        with tempfile.TemporaryDirectory(prefix="exfm-release-") as folder:
            python = environment(interpreter, Path(folder) / "environment")
            install(python, out / f"{given.list}.txt", wheel)
            (Path(folder) / "empty").mkdir()
            tried(python, version, Path(folder) / "empty")
            if at == 0:
                (site,) = python.parents[1].glob("lib/python3*/site-packages")
                packages, listed = installed(site), (out / f"{given.list}.txt").read_text()
                bill = json.dumps(bill_of_materials(version, packages, listed), indent=1)
                (out / f"exfm-{version}.cdx.json").write_text(bill + "\n")
                (out / "LICENCES.txt").write_text(licence_table(packages))
    sums = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}" for each in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(f"{out}: " + ", ".join(sorted(each.name for each in out.iterdir())))


if __name__ == "__main__":
    main()
