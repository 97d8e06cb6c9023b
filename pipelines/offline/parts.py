"""Finished parts of a long computation: files named after everything that decides their content, whole or absent.

Whatever ends a sweep, the same command finds its parts and computes the rest. A damaged part counts as absent.
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

FORMAT = 2
"""To be raised when a part of the same name would hold something else, as where rows are cut by other rules.

1  0.1.0: blocks and batches of one size
2  batches and blocks that grow with the stream, remainders that are carried over; further teachers of a sweep
"""


def part_name(decisive: Any) -> str:
    """A name for settings that can be written as JSON: equal for equal settings, and different otherwise."""
    text = json.dumps([FORMAT, decisive], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def code() -> str:
    """A digest of the model code. Each part stores it, and a report says whether one version made all parts."""
    found = hashlib.blake2b(digest_size=6)
    for path in sorted(Path(exfm.__path__[0]).rglob("*.py")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def save_part(path: Path, **arrays: Any) -> None:
    """Store `arrays`, with the time and the version of the model code; moved into place, so never half there."""
    with replacing(path) as file:
        np.savez(file, made_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"), made_with=code(), **arrays)


def load_part(path: Path) -> dict[str, np.ndarray] | None:
    """What `save_part` was given; None where the part is absent or damaged. A damaged one is removed."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        path.unlink()
        return None


def is_stored(path: Path) -> bool:
    """Whether the part is there and whole, judged by the directory that a zip file has at its end."""
    try:
        with np.load(path) as file:
            return "made_with" in file.files
    except FileNotFoundError:
        return False
    except (OSError, ValueError, EOFError, BadZipFile):
        path.unlink()
        return False
