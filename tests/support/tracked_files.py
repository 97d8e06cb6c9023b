"""The text files under version control, and what in them belongs to one machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT


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
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # a picture; a file removed but not committed; a link to a folder
    return files


def tied_to_a_machine(files: dict[str, str]) -> list[str]:
    """`path:line` of every path of one machine and every package registry's host name."""
    return [
        f"{path}:{number}"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line)
    ]
