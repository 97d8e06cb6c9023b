"""The places of tests: the repository's files, and the folder that all processes of a test run share."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from streaming.store.lock import file_lock

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
FIXTURES = ROOT / "tests" / "fixtures"

NUMBERS = itertools.count(os.getpid() * 1000)
"""For names on the broker that no other test, and no other process of this test run, uses."""
TEST_RUN = "EXFM_TEST_RUN"
"""The variable that names the folder; `tests/conftest.py` makes it and removes it."""


def run_folder() -> Path:
    return Path(os.environ[TEST_RUN])


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name` in that of the test run, which the first process that needs it makes; nobody writes to it."""
    folder = run_folder() / name
    with file_lock(run_folder() / f"{name}.lock", wait_s=None):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that died at it
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder
