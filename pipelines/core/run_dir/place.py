"""Identity of a run directory's folder, which tells a copy from its original."""

from __future__ import annotations

from pathlib import Path

from streaming.errors import StreamingError
from streaming.store.files import read_json, write_json

FILE = "place.json"


def original_of(root: Path) -> Path | None:
    """The run directory that `root` was copied from, while that still exists; None if it is an original.

    >>> import shutil, tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "run").mkdir()
    >>> keep_place(folder / "run")
    >>> _ = shutil.copytree(folder / "run", folder / "copy")
    >>> original_of(folder / "run"), original_of(folder / "copy").name
    (None, 'run')
    >>> _ = (folder / "run").rename(folder / "moved")
    >>> original_of(folder / "moved"), original_of(folder / "copy")
    (None, None)
    """
    try:
        value = read_json(root / FILE)
        if value is None or value == _place(root):
            return None
        original = Path(value["path"])
        return original if value == _place(original) else None
    except (StreamingError, OSError, TypeError, KeyError):  # it was moved, or its note is damaged
        return None


def keep_place(root: Path) -> None:
    """Record the location of the run directory, unless it is a copy of an existing one. Raises DiskFull."""
    if original_of(root) is not None:
        return
    try:
        noted = read_json(root / FILE)
    except StreamingError:
        noted = None
    if noted != (place := _place(root)):
        write_json(root / FILE, place)


def _place(root: Path) -> dict[str, str | int]:
    """The folder's name and number: a copy has others, and one that was moved has another name."""
    return {"path": str(root.resolve()), "inode": root.stat().st_ino}
