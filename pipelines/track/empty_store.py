"""Template of an empty MLflow SQLite store, made once per user and version, and copied afterwards.

To make its tables takes MLflow 1.5 s of a core; to open a copy, .03 s.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from streaming.store.files import move_to_new_name, write_bytes

SCHEME = "sqlite:///"


def begin_store(uri: str, version: str, make: Callable[[str], object]) -> None:
    """Copy an empty store to the missing SQLite file named by `uri`. Other stores are left to MLflow, and this one
    where the folder takes no file. `make(uri)` has MLflow of this `version` make one."""
    file = Path(uri.removeprefix(SCHEME))
    if not uri.startswith(SCHEME) or file.exists() or not file.parent.is_dir():
        return
    copy = file.with_name(f".{file.name}-{os.getpid()}")
    with suppress(OSError):
        try:
            copy.write_bytes(_kept(version, make))
            move_to_new_name(copy, file)  # not over a store that another process has begun meanwhile
        finally:
            copy.unlink(missing_ok=True)


def kept_store(version: str) -> Path:
    """Path of the template in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exfm" / f"mlflow-{version}.db"


def _kept(version: str, make: Callable[[str], object]) -> bytes:
    place = kept_store(version)
    if place.exists():
        return place.read_bytes()
    with tempfile.TemporaryDirectory(prefix="exfm-store-") as scratch:
        made, emptied = Path(scratch) / "made", Path(scratch) / "emptied"
        make(f"{SCHEME}{made}")
        with closing(sqlite3.connect(made)) as tables, closing(sqlite3.connect(emptied)) as store:
            tables.backup(store)
            store.execute("DELETE FROM experiments")  # the default one, whose artifacts would lie where this was made
            store.commit()
        content = emptied.read_bytes()
    with suppress(OSError):  # it is made again where it cannot be kept
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, content)
    return content
