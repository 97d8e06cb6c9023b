"""The parts of a sweep that are done: files named after everything that decides what is in them, whole or not there.

Whatever ends a sweep, the same command finds them and goes on with the rest. A damaged one counts as not there.
"""

from __future__ import annotations

import hashlib
import json
import time
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

import exfm
from streaming.disk import replacing

FORMAT = 1
"""Raised when a part of the same name would hold something else."""


def digest(decisive: Any) -> str:
    """A name for settings that can be written as JSON."""
    text = json.dumps([FORMAT, decisive], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def code() -> str:
    """A digest of the model code: parts tell which one made them, and a report whether it was one for all."""
    found = hashlib.blake2b(digest_size=6)
    for path in sorted(Path(exfm.__path__[0]).rglob("*.py")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def save(path: Path, **arrays: Any) -> None:
    """Moved into place, with the time and the code."""
    with replacing(path) as file:
        np.savez(file, made_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"), made_with=code(), **arrays)


def stored(path: Path) -> dict[str, np.ndarray] | None:
    """What `save` was given; None where there is none, or it is damaged, which is then removed."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        path.unlink()
        return None


def is_stored(path: Path) -> bool:
    """Whether it is there, and whole by its directory, which a zip file has at its end."""
    try:
        with np.load(path) as file:
            return "made_with" in file.files
    except FileNotFoundError:
        return False
    except (OSError, ValueError, EOFError, BadZipFile):
        path.unlink()
        return False
