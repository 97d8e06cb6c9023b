"""Named tensors on disk: checkpoints to resume from, snapshots to score with.

    <root>/<name>/tensors*.bin      the tensors' bytes, in pieces: one file, or one of each rank that saved together
    <root>/<name>/manifest.json     format version, kind, meta, where each piece lies, and the sha256 of each
                                    (exfm/snapshots/manifest.py); the parent, where rows are stored that changed since
                                    it (exfm/snapshots/changed.py)
    <root>/.damaged-<name>/         what did not verify, set aside so that its name can be written again

The directory is written under another name, forced to disk with the manifest last, and then renamed into place: it is
there whole or not at all. A name is never used again with other content. The same content, cut in the same way, gives
the same bytes. Ranks that cut their tables differently can read what others saved.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

import torch
from torch import Tensor

from exfm.durable import flush, flush_names, make_folder, move, remove_folder
from exfm.errors import ModelError, OtherFormat
from exfm.snapshots.changed import ChangedTensor, flattened, resolved
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.manifest import FORMAT_VERSION, MANIFEST, index_of, read_manifest, sealed
from exfm.snapshots.staging import (
    Part,
    Storable,
    announce,
    gather,
    joined,
    refuse_unstorable,
    windows,
    write_part,
)
from exfm.snapshots.stored import StoredTensor, as_bytes, size_of
from exfm.snapshots.windows import TensorSource, fill_window, whole_tensor

log = logging.getLogger(__name__)

T = TypeVar("T")


class Checkpoint(NamedTuple, Generic[T]):
    """A saved directory: `load_checkpoint` returns it with tensors in memory, `open_checkpoint` with tensors on
    disk."""

    tensors: dict[str, T]
    meta: dict[str, Any]
    kind: str
    parent: str | None
    reference: str = ""
    """What children call it: its name, with its manifest's sha256."""


class Together(NamedTuple):
    """This rank, among the ranks that save one checkpoint together.

    `attempt` is a word that these ranks share and that no earlier start of them knew (`RankGroup.token`): files left by
    ranks that were killed are never mistaken for theirs. Rank 0 gives up when nothing was written for `timeout_s`.
    """

    rank: int
    ranks: int
    attempt: str
    timeout_s: float = 120.0


def save_checkpoint(
    root: str | os.PathLike[str],
    name: str,
    tensors: Mapping[str, Storable | ChangedRows],
    meta: Mapping[str, Any],
    *,
    kind: str = "checkpoint",
    parent: str | None = None,
    together: Together | None = None,
) -> Path:
    """Write `<root>/<name>` atomically and return its path. `meta` is anything JSON can hold. `parent`: the name under
    `root` of the state that changed rows among the tensors are those since.

    With `together`, every rank of the group calls it, one name after another, each in a process or thread of its own:

        1. every rank writes the pieces it holds into a file of its own; rank 0 writes whole tensors, too
        2. rank 0 waits for the files of the others
        3. rank 0 writes the manifest, with its own meta, and renames

    A rank other than 0 returns after 1.

    Names are ordered as text by `latest_checkpoint`: pad numbers with zeros. Saving the same content again changes
    nothing, so keep the time of day out of `meta`. What a killed writer of this name left behind is removed, and a
    damaged directory of this name is set aside.

    Raises ModelError if the name exists with other content, the parent cannot be read, a tensor has a type that cannot
    be stored, the ranks' pieces do not make up a tensor, or a rank wrote nothing for `timeout_s` while rank 0 waited
    for it.

    >>> import tempfile
    >>> root = tempfile.mkdtemp()
    >>> path = save_checkpoint(root, "v00000001", {"w": torch.arange(3)}, {"lake_seq": 41})
    >>> load_checkpoint(path).tensors["w"], load_checkpoint(latest_checkpoint(root)).meta
    (tensor([0, 1, 2]), {'lake_seq': 41})
    """
    stored = flattened(tensors)
    refuse_unstorable(stored)
    target = Path(root) / name
    head = {"kind": kind, "meta": json.loads(json.dumps(dict(meta)))}
    group = together or Together(rank=0, ranks=1, attempt=uuid4().hex)
    staging = Path(root) / f".{name}.{group.attempt}"
    make_folder(Path(root))
    if group.rank:
        _write_own_part(staging, name, stored, group)
        return target
    base: _Base | None = None if parent is None else _base(Path(root), parent)
    if group.ranks == 1 and target.exists() and _holds(target, head, _over(stored, base)):
        return target
    with _cleared(staging, name):
        mine = write_part(staging, stored, group.rank, group.ranks)
        others = gather(staging, name, group.ranks, group.timeout_s)
        _publish(staging, target, head, joined([mine, *others]), base)
    return target


def _write_own_part(staging: Path, name: str, tensors: Mapping[str, Storable], group: Together) -> None:
    staging.mkdir(parents=True, exist_ok=True)
    try:
        announce(staging, write_part(staging, tensors, group.rank, group.ranks), group.rank)
    except FileNotFoundError:
        raise ModelError(
            f"rank 0 gave up saving `{name}` before rank {group.rank} was done; see rank 0's error"
        ) from None


class _Base(NamedTuple):
    """A parent: its name with its manifest's sha256, and its tensors."""

    reference: str
    tensors: dict[str, TensorSource]


def _base(root: Path, parent: str) -> _Base:
    opened = open_checkpoint(root / parent)
    return _Base(opened.reference, opened.tensors)


def _over(tensors: Mapping[str, TensorSource], base: _Base | None) -> dict[str, TensorSource]:
    return dict(tensors) if base is None else resolved(tensors, base.tensors)


def _publish(staging: Path, target: Path, head: Mapping[str, Any], part: Part, base: _Base | None) -> None:
    """Make what was staged the content of `target`, unless it is that already. Raises ModelError as saving does."""
    parent = None if base is None else base.reference
    manifest = {"format_version": FORMAT_VERSION, **head, "parent": parent, **part._asdict()}
    index = index_of(manifest, target.name)
    staged = _over({name: StoredTensor(staging, entry) for name, entry in index.items()}, base)
    if target.exists() and _holds(target, head, staged):
        return
    _write(staging / MANIFEST, sealed(manifest))
    flush_names(staging)
    try:
        move(staging, target)
    except OSError:
        if not target.exists() or not _holds(target, head, staged):
            raise
        return
    flush_names(target.parent)


@contextmanager
def _cleared(staging: Path, name: str) -> Iterator[None]:
    """The only staging folder of `name`: others, which killed writers left, go first, and this one when it is done.
    A disk's error that names no file gets what was to be written."""
    staging.mkdir(parents=True, exist_ok=True)
    for abandoned in staging.parent.glob(f".{name}.*"):
        if abandoned != staging:
            shutil.rmtree(abandoned, ignore_errors=True)
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(staging.parent / name)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint[TensorSource]:
    """Open a saved directory; its tensors are read on access, by window: `fill_window`, `whole_tensor`.

    Every piece that is read is verified. Raises ModelError where the directory
    is none, or damaged as far as can be seen without reading the tensors; a read raises it for what it touches.

    >>> import tempfile
    >>> from exfm.snapshots.windows import fill_window
    >>> path = save_checkpoint(tempfile.mkdtemp(), "v1", {"table": torch.arange(8).view(4, 2)}, {})
    >>> rows = torch.empty(2, 2, dtype=torch.int64)
    >>> fill_window(rows, open_checkpoint(path).tensors["table"], (1, 0))
    >>> rows.tolist()
    [[2, 3], [4, 5]]
    """
    path = Path(path)
    manifest = read_manifest(path)
    for file, expected in manifest["files"].items():
        if (size := size_of(path, file)) != expected["bytes"]:
            raise ModelError(
                f"`{path.name}` is truncated: {file} has {size} bytes, its manifest says {expected['bytes']}; "
                "take another version"
            )
    stored = {name: StoredTensor(path, entry) for name, entry in index_of(manifest, path.name).items()}
    tensors = _over(stored, _parent_of(path, manifest["parent"]))
    reference = f"{path.name}@{manifest['sha256']}"
    return Checkpoint(tensors, manifest["meta"], manifest["kind"], manifest["parent"], reference)


def _parent_of(path: Path, reference: str | None) -> _Base | None:
    if reference is None:
        return None
    name = reference.partition("@")[0]
    try:
        base = _base(path.parent, name)
    except OtherFormat:
        raise
    except ModelError as error:
        raise ModelError(f"`{path.name}` holds what changed since `{name}`, and {error}") from None
    if base.reference != reference:
        raise ModelError(
            f"`{path.name}` holds what changed since another `{name}` than the one that is there now; take another "
            "version"
        )
    return base


def changes_since(
    loaded: Checkpoint[TensorSource], stored: Checkpoint[TensorSource]
) -> dict[str, ChangedTensor] | None:
    """Tensors with all rows in which an opened state may differ from one that is loaded, beside the whole ones; None
    where that cannot be told: neither is it stored as what changed since the other, nor both since one, as more and
    more rows."""
    now, was = _changed(stored), _changed(loaded)
    if stored.parent is None or not now or stored.parent not in (loaded.reference, loaded.parent):
        return None
    # Of one parent, a later state holds all rows of an earlier one: who wrote it tracks them since the parent.
    more = all(name in now and now[name].at.shape[0] >= of.at.shape[0] for name, of in was.items())
    later = stored.reference.partition("@")[0] > loaded.reference.partition("@")[0]
    return now if stored.parent == loaded.reference or (more and later) else None


def _changed(of: Checkpoint[TensorSource]) -> dict[str, ChangedTensor]:
    return {name: tensor for name, tensor in of.tensors.items() if isinstance(tensor, ChangedTensor)}


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint[Tensor]:
    """Read a saved directory, checking every byte of it.

    Raises ModelError if it is not one, has another format, or is truncated or altered.
    """
    stored = open_checkpoint(path)
    tensors = {name: whole_tensor(tensor) for name, tensor in stored.tensors.items()}
    return Checkpoint(tensors, *stored[1:])


def verified_checkpoint(path: str | os.PathLike[str]) -> Checkpoint[TensorSource]:
    """`open_checkpoint` after a check of every byte. Raises ModelError as `load_checkpoint` does."""
    stored = open_checkpoint(path)
    for tensor in stored.tensors.values():
        if isinstance(tensor, StoredTensor | ChangedTensor):
            tensor.verify()
    return stored


def set_checkpoint_aside(path: Path) -> Path:
    """Rename a damaged directory to `.damaged-<name>`, so that its name is free and it can still be inspected."""
    aside = path.with_name(f".damaged-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    move(path, aside)
    return aside


def checkpoint_names(root: str | os.PathLike[str]) -> list[str]:
    """Names of all complete checkpoints under `root`, sorted."""
    if not Path(root).is_dir():
        return []
    return sorted(p.name for p in Path(root).iterdir() if not p.name.startswith(".") and (p / MANIFEST).exists())


def latest_checkpoint(root: str | os.PathLike[str]) -> Path | None:
    """Path of the last checkpoint under `root`, or None."""
    saved = checkpoint_names(root)
    return Path(root) / saved[-1] if saved else None


def prune_checkpoints(root: str | os.PathLike[str], keep: int) -> None:
    """Delete all but the last `keep` names under `root`, and those that they hold the changes since. Each is renamed
    first, so that no partial directory has a name."""
    for name in unneeded_checkpoints(root, keep):
        remove_folder(Path(root) / name)


def unneeded_checkpoints(root: str | os.PathLike[str], keep: int) -> list[str]:
    """Names of what `prune_checkpoints` deletes."""
    names = checkpoint_names(root)
    needed = {ancestor for name in names[-keep:] for ancestor in lineage_of(Path(root) / name)}
    return [name for name in names if name not in needed]


def lineage_of(path: Path) -> list[str]:
    """Names of a saved directory and of its parents, up to the whole one; only its own where they cannot be read."""
    names = [path.name]
    while True:
        try:
            parent = read_manifest(path.parent / names[-1])["parent"]
        except ModelError:
            return names
        if parent is None:
            return names
        names.append(parent.partition("@")[0])


def remove_leftovers(root: str | os.PathLike[str]) -> None:
    """Delete the leftovers of killed writers and interrupted `prune_checkpoints` calls. No process may write to
    `root`."""
    for leftover in Path(root).glob(".*"):
        if leftover.is_dir() and not leftover.name.startswith(".damaged-"):
            shutil.rmtree(leftover)


def _holds(target: Path, head: Mapping[str, Any], given: Mapping[str, TensorSource]) -> bool:
    """True if `target` is this content, in any pieces, every byte of it; a damaged one is set aside.

    Raises ModelError where it is whole and something else.
    """
    try:
        there = open_checkpoint(target)
        same = all(getattr(there, key) == value for key, value in head.items()) and _same(there.tensors, given)
        if not same:
            verified_checkpoint(target)
    except OtherFormat:
        raise
    except ModelError as error:
        log.error("%s; it is set aside and written again", error)
        set_checkpoint_aside(target)
        return False
    if not same:
        raise ModelError(
            f"`{target.name}` exists with other content; a version is never written twice: take a new name"
        )
    return True


def _same(there: Mapping[str, TensorSource], given: Mapping[str, TensorSource]) -> bool:
    if {n: (t.dtype, tuple(t.shape)) for n, t in there.items()} != {
        n: (t.dtype, tuple(t.shape)) for n, t in given.items()
    }:
        return False
    for name, start, values in windows(given, 0):
        found = torch.empty_like(values)
        fill_window(found, there[name], start)
        if not torch.equal(as_bytes(found), as_bytes(values)):  # bytes: NaN is NaN, and -0.0 is not 0.0
            return False
    return True


def _write(file: Path, text: bytes) -> None:
    with open(file, "wb") as out:
        out.write(text)
        flush(out)
