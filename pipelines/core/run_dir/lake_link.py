"""Link of a run to the run whose lake it follows.

<run>/follows.json    {"run": folder of the run that leads, or of its copy here, "lake": id of its lake, "reader": the
                      name under which this run's readers are registered there, "address": of a run at a store}
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from streaming.errors import StreamingError
from streaming.store.files import read_json, write_json

FILE = "follows.json"


class LakeLink(NamedTuple):
    """Link to a lake. `run`: folder of the run that leads, or of its copy on this machine where it has an `address`."""

    run: Path
    lake: str
    reader: str
    address: str | None = None


def read_link(root: Path) -> LakeLink | None:
    """The link of the run in `root`; None if it leads, and has a lake of its own. Raises StreamingError where it is
    damaged.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> read_link(root) is None
    True
    >>> write_link(root, LakeLink(Path("/runs/ads"), "7c1e", "team-1"))
    >>> read_link(root).run.name
    'ads'
    """
    if (value := read_json(root / FILE)) is None:
        return None
    try:
        return LakeLink(Path(value["run"]), value["lake"], value["reader"], value.get("address"))
    except (TypeError, KeyError):
        raise StreamingError(f"{root / FILE} is damaged; delete it, and start the run again") from None


def write_link(root: Path, link: LakeLink) -> None:
    """Store the link of the run in `root`. Raises DiskFull."""
    if read_link(root) != link:
        write_json(root / FILE, {**link._asdict(), "run": str(link.run)})


def reader_name(root: Path) -> str:
    """Name of the run in `root` among those that follow one lake: that of its folder, and a mark of the place, so that
    a copy has another."""
    place = f"{root.resolve()} {root.stat().st_ino}"
    return f"{root.resolve().name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
