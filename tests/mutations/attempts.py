"""Makes edits in a copy of the tree, one at a time, and sees whether the tests notice. The edits: `edits.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.places import ROOT

TIMEOUT_S = 300


class Mutation(NamedTuple):
    """`old` stands once in `file`; with `new` in its place, `tests` fail."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: str


class Outcome(NamedTuple):
    mutation: Mutation
    verdict: str  # killed, survived, or what else came of it
    took_s: float
    said: str

    @property
    def why(self) -> str:
        """What the first test that failed said: a name that is not defined would be no proof."""
        said = [line for line in self.said.splitlines() if line.startswith("E  ")]
        return said[0][1:].strip()[:100] if said else "no reason given"


def copy_of_the_tree(target: Path) -> None:
    """Every file that git knows, or would take, as it stands here."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def attempt(mutation: Mutation, tree: Path) -> Outcome:
    """Make the edit in the copy at `tree`, run its tests there, undo it."""
    path = tree / mutation.file
    text = path.read_text()
    assert text.count(mutation.old) == 1, f"{mutation.name}: its place in {mutation.file} is gone"
    path.write_text(text.replace(mutation.old, mutation.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={TIMEOUT_S}"]
    began = time.monotonic()
    try:
        ran = subprocess.run(
            [*command, *mutation.tests.split()],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT_S,
        )
        verdict = {0: "SURVIVED", 1: "killed"}.get(ran.returncode, f"no verdict (pytest says {ran.returncode})")
        said = ran.stdout
    except subprocess.TimeoutExpired:
        verdict, said = "killed (it hangs)", ""
    finally:
        path.write_text(text)
    return Outcome(mutation, verdict, time.monotonic() - began, said)


def run(mutations: Sequence[Mutation], wanted: list[str]) -> int:
    """Print a table; 1 where one survived, or left no verdict."""
    chosen = [m for m in mutations if not wanted or m.name in wanted]
    if unknown := set(wanted) - {m.name for m in chosen}:
        print(f"no mutation {', '.join(unknown)}; choose from", *(m.name for m in mutations), sep="\n  ")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_of_the_tree(tree)
        outcomes = []
        for mutation in chosen:
            outcomes.append(attempt(mutation, tree))
            verdict, took_s = outcomes[-1].verdict, outcomes[-1].took_s
            print(f"{verdict:10} {took_s:5.0f} s  {mutation.name:60} {mutation.rule}", flush=True)
            print(f"{'':20}{outcomes[-1].why}" if verdict == "killed" else outcomes[-1].said[-1500:])
    survived = [outcome for outcome in outcomes if not outcome.verdict.startswith("killed")]
    print(f"{len(outcomes) - len(survived)} of {len(outcomes)} killed")
    return 1 if survived else 0
