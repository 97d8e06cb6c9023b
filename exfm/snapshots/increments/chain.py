"""A chain in a folder: a full version of a student now and then, and the increments that lead on from it.

    <root>/full-00000012/           the student whole, as number 12
    <root>/00000013.increment       from 12 to 13          (../delta.py)
    <root>/head.json                which number is the newest, and which full version a reader begins with

Numbers only ever grow. Each state has a digest, and an increment names that of the state it leads on from, so it can be
taken up by that one alone. A full version is a state of the chain like any other: who holds number 12 goes on with 13,
however it came to 12. A writer that starts cannot know what of its predecessor's was read, so it leaves a number out
and begins with a full version: there is no way from the old numbers to the new ones but by reading that.

The head is moved into place last. What a killed writer left behind it is not in the chain, and goes at the next start.
One writer, any readers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from exfm.durable import replace_file
from exfm.errors import ModelError, OtherFormat
from exfm.models.served import ServedStudent, served_of
from exfm.snapshots.checkpoint import load_checkpoint, prune_checkpoints, remove_leftovers, save_checkpoint
from exfm.snapshots.delta import Delta
from exfm.snapshots.increments.increment import (
    Full,
    Increment,
    Probe,
    read_increment,
    with_probe,
    without_probe,
    write_increment,
)
from exfm.snapshots.manifest import read_manifest

HEAD, FORMAT = "head.json", 1
KIND = "live_student"
FULL, SUFFIX = "full-", ".increment"
MOST = 120
"""Increments between two full versions, at most; fewer where together they have the bytes of one."""
KEPT = 2
"""Full versions that stay, and the increments since the older: who is a little behind need not read one."""


class Head(NamedTuple):
    """`number`, `digest`: of the newest state. `full`: the number of the newest full version."""

    number: int
    digest: str
    full: int


class FullVersion(NamedTuple):
    """A full version, read."""

    served: ServedStudent
    number: int
    digest: str
    version: str
    about: dict[str, Any]


class Chain:
    """Reads a chain."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def head(self) -> Head | None:
        """The newest state; None if there is no chain yet. Raises ModelError where the head is damaged, or of
        another format."""
        try:
            said = json.loads((self.root / HEAD).read_bytes())
            if said["format"] != FORMAT:
                raise OtherFormat(
                    f"{self.root} has format {said['format']}, this ExFM reads {FORMAT}; read it with the version that "
                    "wrote it, or start the run over with --fresh"
                )
            return Head(*(said[name] for name in Head._fields))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{self.root / HEAD} is damaged ({error}); the next increment writes it again") from None

    def newest(self) -> tuple[str, dict[str, Any]] | None:
        """Version and description of the newest state, without reading it; None if there is no chain yet. Raises
        ModelError and FileNotFoundError as its parts do."""
        if (head := self.head()) is None:
            return None
        if head.number == head.full:
            meta = read_manifest(self.root / _full(head.full))["meta"]
            return meta["version"], meta["about"]
        increment, _ = self.increment(head.number)
        return increment.version, increment.about

    def full(self, number: int) -> FullVersion:
        """Read a full version; raises ModelError if it is missing, damaged, or fails its probe."""
        stored = load_checkpoint(self.root / _full(number))
        if stored.kind != KIND:
            raise ModelError(f"{_full(number)} is a {stored.kind}, not a {KIND}")
        tensors, probe = without_probe(stored.tensors)
        served, meta = served_of(tensors, stored.meta["served"]), stored.meta
        probe.check(served, meta["version"])
        return FullVersion(served, meta["number"], meta["digest"], meta["version"], meta["about"])

    def increment(self, number: int) -> tuple[Increment, str]:
        """Read an increment, like `read_increment`."""
        return read_increment(self.root / _increment(number))


class ChainWriter:
    """Appends to a chain, beginning with a full version.

    >>> import tempfile, torch
    >>> root = Path(tempfile.mkdtemp())
    >>> full = Full({"w": torch.ones(1)}, {}, Probe(*torch.zeros(4, 1, 1)))
    >>> ChainWriter(root).begin("v00000640", {}, full)
    'v00000640+2'
    >>> ChainWriter(root).begin("v00000640", {}, full), Chain(root).head().full
    ('v00000640+4', 4)
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        remove_leftovers(root)
        for part in root.glob(".*.part"):
            part.unlink()
        numbers = [int(path.stem) for path in root.glob(f"*{SUFFIX}")]
        numbers += [int(path.name.removeprefix(FULL)) for path in root.glob(f"{FULL}*")]
        self._number, self._digest = max(numbers, default=0) + 1, ""
        self._full_bytes = self._bytes = self._count = 0

    @property
    def full_due(self) -> bool:
        """True if the next increment must come with a full version."""
        return self._count >= MOST or self._bytes >= self._full_bytes

    def begin(self, version: str, about: dict[str, Any], full: Full) -> str:
        """Begin a new chain with a full version; returns its name, `version` and its number."""
        self._number, self._digest = self._number + 1, uuid4().hex
        return self._write_full(version, about, full)

    def add(self, version: str, about: dict[str, Any], delta: Delta, probe: Probe, full: Full | None = None) -> str:
        """Append an increment to the state before; and the same state as a full version, where one is due. Returns its
        name, `version` and its number."""
        number = self._number + 1
        name = f"{version}+{number}"
        increment = Increment(number, self._digest, name, about, delta, probe)
        self._digest = write_increment(self._root / _increment(number), increment)
        self._number, self._count, self._bytes = number, self._count + 1, self._bytes + increment.nbytes
        if full is not None:
            return self._write_full(version, about, full)
        self._write_head()
        return name

    def _write_full(self, version: str, about: dict[str, Any], full: Full) -> str:
        name = f"{version}+{self._number}"
        tensors = with_probe(full.tensors, full.probe)
        meta = {"served": full.meta, "number": self._number, "digest": self._digest, "version": name, "about": about}
        save_checkpoint(self._root, _full(self._number), tensors, meta, kind=KIND)
        self._full = self._number
        self._full_bytes, self._bytes, self._count = sum(t.nbytes for t in full.tensors.values()), 0, 0
        self._write_head()
        self._prune()
        return name

    def _write_head(self) -> None:
        said = {"format": FORMAT, "number": self._number, "digest": self._digest, "full": self._full}
        replace_file(self._root / HEAD, json.dumps(said).encode())

    def _prune(self) -> None:
        prune_checkpoints(self._root, keep=KEPT)
        oldest = min(int(path.name.removeprefix(FULL)) for path in self._root.glob(f"{FULL}*"))
        for path in self._root.glob(f"*{SUFFIX}"):
            if int(path.stem) <= oldest:
                path.unlink(missing_ok=True)


def _full(number: int) -> str:
    return f"{FULL}{number:08d}"


def _increment(number: int) -> str:
    return f"{number:08d}{SUFFIX}"
