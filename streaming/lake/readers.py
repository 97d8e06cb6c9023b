"""Registry of the lake's readers, one small file each, which protects the rows they still need from deletion.

Whenever a reader has stored its progress, it registers the last `lake_seq` that it will never need again. A pin does so
for a range under verification: no row from its first one on is deleted, and the files of the range are not rewritten.
A reader or pin that is silent for longer than the expiry (a paused student, a forgotten pin) no longer holds rows,
unless it is registered as lasting.

A run that follows the lake has a registry of its own inside, a folder of its name: its `student-news` is known to the
lake's own run as `ads-1f/student-news`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

from streaming.errors import BadInput
from streaming.position import NOTHING_YET
from streaming.store.files import remove_file, write_text
from streaming.store.seal import sealed, unsealed


@dataclass(frozen=True)
class Reader:
    """A registered reader, or a pin (`last` is then the last row pinned).

    name      as the registry has it that was asked
    position  the last `lake_seq` that it does not need; -1: it needs all there is
    at_s      when it registered, seconds of the wall clock
    lasting   it never expires: the run cannot continue without it
    follows   it belongs to a run that follows the lake
    damaged   its file cannot be read: everything is held for it until it registers again or is retired
    """

    name: str
    position: int
    at_s: float
    last: int | None = None
    lasting: bool = False
    damaged: bool = False
    follows: bool = False

    def expired(self, now_s: float, expiry_s: float) -> bool:
        return not (self.damaged or self.lasting) and now_s - self.at_s > expiry_s


class Readers:
    """The registry in `folder` (`<run>/lake/readers`), made when the first reader registers.

    >>> import tempfile
    >>> readers = Readers(Path(tempfile.mkdtemp()) / "readers")
    >>> readers.register("student-news", 41_999, now_s=100.0)
    >>> readers.register("student-shop", 9_999, now_s=0.0)
    >>> readers.lowest(now_s=100.0, expiry_s=60.0), readers.lowest(now_s=100.0, expiry_s=600.0)
    (41999, 9999)
    >>> readers.pin("audit", 500, 799, now_s=100.0)
    >>> readers.lowest(now_s=100.0, expiry_s=60.0), readers.lowest(now_s=100.0, expiry_s=60.0, without={"audit"})
    (499, 41999)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def register(self, name: str, position: int, *, now_s: float | None = None, lasting: bool = False) -> None:
        """Register that `name` needs no row up to `position` (-1: it needs every row).

        Call it at the start, and whenever the results of those rows have reached the disk.
        """
        self._store(Reader(name, position, time.time() if now_s is None else now_s, lasting=lasting))

    def pin(self, name: str, first: int, last: int, *, now_s: float | None = None) -> None:
        """Protect the rows `first` to `last` and their files. Raises BadInput for an empty range."""
        if not 0 <= first <= last:
            raise BadInput(f"cannot pin lake_seq {first} to {last}; a range begins at 0 or later and is not empty")
        self._store(Reader(name, first - 1, time.time() if now_s is None else now_s, last))

    def retire(self, name: str) -> bool:
        """Remove `name` from the registry; False if it is unknown."""
        try:
            remove_file(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def all(self) -> list[Reader]:
        """All readers, the slowest first."""
        readers = [self._load(path) for path in self.folder.glob("**/*.json")]
        return sorted((reader for reader in readers if reader), key=lambda reader: (reader.position, reader.name))

    def holding(self, *, now_s: float, expiry_s: float, without: Collection[str] = ()) -> list[Reader]:
        """Readers that have not expired, the slowest first."""
        return [r for r in self.all() if not r.expired(now_s, expiry_s) and r.name not in without]

    def lowest(self, *, now_s: float, expiry_s: float, without: Collection[str] = ()) -> int | None:
        """The `lake_seq` up to which no reader needs a row; None without registered readers."""
        holding = self.holding(now_s=now_s, expiry_s=expiry_s, without=without)
        return holding[0].position if holding else None

    def _path(self, name: str) -> Path:
        own = self.folder / f"{quote(name, safe='')}.json"
        return own if own.exists() else next((p for p in self.folder.glob("*/*.json") if self._name(p) == name), own)

    def _name(self, path: Path) -> str:
        return "/".join(unquote(part) for part in path.relative_to(self.folder).with_suffix("").parts)

    def _store(self, reader: Reader) -> None:
        fields = {name: value for name, value in asdict(reader).items() if name not in ("damaged", "follows")}
        write_text(self.folder / f"{quote(reader.name, safe='')}.json", json.dumps(sealed(fields)) + "\n")

    def _load(self, path: Path) -> Reader | None:
        follows = path.parent != self.folder
        try:
            return replace(Reader(**unsealed(path.read_bytes())), name=self._name(path), follows=follows)
        except FileNotFoundError:  # retired since the folder was listed
            return None
        except (ValueError, TypeError):
            return Reader(self._name(path), NOTHING_YET, path.stat().st_mtime, damaged=True, follows=follows)
