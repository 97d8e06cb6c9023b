"""Named tensors on disk: checkpoints to resume from, snapshots to score with.

    <root>/<name>/tensors.bin       every tensor's bytes, in order of name
    <root>/<name>/manifest.json     format version, kind, meta, parent, an index into tensors.bin, its size and sha256,
                                    and the sha256 of all that
    <root>/.damaged-<name>/         what did not verify, set aside so that its name can be written again

The directory is written under another name, forced to disk with the manifest last, and then renamed into place: it is
there whole or not at all. A name is never used again with other content. The same content makes the same bytes.

Format 2: the manifest has a checksum of its own, and a model's checkpoint holds its random numbers. Format 1, without
either, is read too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from exfm.errors import ModelError, NewerFormat

FORMAT_VERSION, OLDEST_READ = 2, 1
MANIFEST, TENSORS = "manifest.json", "tensors.bin"
ALIGNMENT = 64

log = logging.getLogger(__name__)

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}


class Stored(NamedTuple):
    """What `load` gives back."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    kind: str
    parent: str | None
    format_version: int = FORMAT_VERSION


def save(
    root: str | os.PathLike[str],
    name: str,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    *,
    kind: str = "checkpoint",
    parent: str | None = None,
) -> Path:
    """Write `<root>/<name>` atomically and return its path. `meta` is anything JSON can hold.

    Names are ordered as text by `latest`: pad numbers with zeros. Saving the same content again changes nothing, so
    keep the time of day out of `meta`. What a killed writer of this name left behind is removed, and what is damaged
    there is set aside.

    Raises ModelError if the name exists with other content, or a tensor has a type that cannot be stored.

    >>> import tempfile
    >>> root = tempfile.mkdtemp()
    >>> path = save(root, "v00000001", {"w": torch.arange(3)}, {"lake_seq": 41})
    >>> load(path).tensors["w"], load(latest(root)).meta
    (tensor([0, 1, 2]), {'lake_seq': 41})
    """
    target = Path(root) / name
    index, chunks, end = _layout(tensors)
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    manifest = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "parent": parent,
        "meta": json.loads(json.dumps(dict(meta))),
        "files": {TENSORS: {"bytes": end, "sha256": digest.hexdigest()}},
        "tensors": index,
    }
    manifest["sha256"] = _checksum(manifest)
    text = (json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
    if target.exists() and _holds(target, manifest):
        return target
    for abandoned in Path(root).glob(f".{name}.*"):
        shutil.rmtree(abandoned)
    staging = Path(root) / f".{name}.{uuid4().hex}"
    staging.mkdir(parents=True)
    try:
        _write(staging / TENSORS, chunks)
        _write(staging / MANIFEST, [text])
        sync_directory(staging)
        try:
            staging.rename(target)
        except OSError:
            if not target.exists() or not _holds(target, manifest):
                raise
            return target
        sync_directory(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def load(path: str | os.PathLike[str]) -> Stored:
    """Read a saved directory, checking every byte of it.

    Raises ModelError if it is not one, was written by a newer version, or is truncated or altered.
    """
    path = Path(path)
    manifest = read_manifest(path)
    expected = manifest["files"][TENSORS]
    file = path / TENSORS
    if not file.exists():
        raise ModelError(f"`{path.name}` has lost its file {TENSORS}; take another version")
    data = np.fromfile(file, dtype=np.uint8)
    if len(data) != expected["bytes"]:
        raise ModelError(
            f"`{path.name}` is truncated: {TENSORS} has {len(data)} bytes, its manifest says {expected['bytes']}; "
            "take another version"
        )
    found = hashlib.sha256(data.data).hexdigest()
    if found != expected["sha256"]:
        raise ModelError(
            f"`{path.name}` was altered: sha256 of {TENSORS} is {found[:12]}…, its manifest says "
            f"{expected['sha256'][:12]}…; take another version"
        )
    try:
        tensors = {name: _tensor(data, entry) for name, entry in manifest["tensors"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"`{path.name}` has a damaged {MANIFEST} (its index does not fit {TENSORS}: {error}); take another version"
        ) from None
    return Stored(tensors, manifest["meta"], manifest["kind"], manifest["parent"], manifest["format_version"])


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest alone, without reading the tensors. Raises ModelError as `load` does."""
    file = Path(path) / MANIFEST
    name = file.parent.name
    try:
        manifest = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(f"`{name}` has no {MANIFEST}: nothing was saved there whole") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"`{name}` has a damaged {MANIFEST} ({error}); take another version") from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int) or version < OLDEST_READ:
        raise ModelError(
            f"`{name}` has a damaged {MANIFEST} (format version {version!r}, this ExFM reads {OLDEST_READ} to "
            f"{FORMAT_VERSION}); take another version"
        )
    if version > FORMAT_VERSION:
        raise NewerFormat(
            f"`{name}` has format version {version}, this ExFM reads {OLDEST_READ} to {FORMAT_VERSION}; "
            "read it with the version that wrote it"
        )
    if (version > 1 or "sha256" in manifest) and manifest.get("sha256") != _checksum(manifest):
        raise ModelError(
            f"`{name}` has a damaged {MANIFEST} (it was altered: its checksum differs); take another version"
        )
    if (flaw := _flaw(manifest)) is not None:
        raise ModelError(f"`{name}` has a damaged {MANIFEST} ({flaw}); take another version")
    return manifest


def set_aside(path: Path) -> Path:
    """Rename what is damaged to `.damaged-<name>` beside it: its name is free, and it can still be looked at."""
    aside = path.with_name(f".damaged-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


def names(root: str | os.PathLike[str]) -> list[str]:
    """Names of everything saved whole under `root`, in order of text."""
    if not Path(root).is_dir():
        return []
    return sorted(p.name for p in Path(root).iterdir() if not p.name.startswith(".") and (p / MANIFEST).exists())


def latest(root: str | os.PathLike[str]) -> Path | None:
    """The last name under `root`, or None when nothing is saved there."""
    saved = names(root)
    return Path(root) / saved[-1] if saved else None


def prune(root: str | os.PathLike[str], keep: int) -> None:
    """Delete all but the last `keep` names under `root`. Each is renamed away first, so that none is half there."""
    for name in names(root)[:-keep]:
        doomed = Path(root) / f".{name}.{uuid4().hex}"
        (Path(root) / name).rename(doomed)
        shutil.rmtree(doomed)


def sweep(root: str | os.PathLike[str]) -> None:
    """Delete what killed writers and killed `prune`s left under `root`; nobody may be writing there."""
    for leftover in Path(root).glob(".*"):
        if leftover.is_dir() and not leftover.name.startswith(".damaged-"):
            shutil.rmtree(leftover)


def check_fit(model: Mapping[str, torch.Size], state: Mapping[str, Tensor]) -> None:
    """Raise ModelError unless a state has exactly the model's tensors, by name and shape."""
    wrong = sorted(
        name
        for name in model.keys() | state.keys()
        if name not in model or name not in state or model[name] != state[name].shape
    )
    if wrong:
        name = wrong[0]
        saved = tuple(state[name].shape) if name in state else "absent"
        mine = tuple(model[name]) if name in model else "absent"
        raise ModelError(
            f"{len(wrong)} of {len(model.keys() | state.keys())} tensors do not fit; the first, `{name}`, is {saved} "
            f"in the state and {mine} in the model; load it into a model of the configuration, features and tasks "
            "it was saved from"
        )


def _layout(tensors: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Any]], list[memoryview], int]:
    """The index, the pieces of tensors.bin (tensors and the gaps between them), and its size."""
    index: dict[str, dict[str, Any]] = {}
    chunks: list[memoryview] = []
    end = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise ModelError(f"tensor `{name}` is {dtype}, which cannot be stored; storable: {', '.join(_DTYPES)}")
        gap = -end % ALIGNMENT
        # as_strided: a tensor of one element may have any stride, and to be viewed as bytes it needs 1.
        data = tensor.reshape(-1).as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data
        chunks += [memoryview(bytes(gap)), data]
        index[name] = {"dtype": dtype, "shape": list(tensor.shape), "offset": end + gap, "bytes": data.nbytes}
        end += gap + data.nbytes
    return index, chunks, end


def _tensor(data: np.ndarray, entry: Mapping[str, Any]) -> Tensor:
    raw = torch.from_numpy(data[entry["offset"] : entry["offset"] + entry["bytes"]])
    return raw.view(_DTYPES[entry["dtype"]]).view(entry["shape"])


def _holds(target: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether `target` is this content, in any format, every byte of it; what is damaged there is set aside.

    Raises ModelError where it is whole and something else.
    """
    try:
        existing = read_manifest(target)
        load(target)
    except NewerFormat:
        raise
    except ModelError as error:
        log.error("%s; it is set aside and written again", error)
        set_aside(target)
        return False
    # The manifest holds the hash of the tensors: equal manifests are equal content.
    if all(existing[key] == manifest[key] for key in ("kind", "parent", "meta", "files", "tensors")):
        return True
    raise ModelError(f"`{target.name}` exists with other content; a version is never written twice: take a new name")


def _checksum(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _flaw(manifest: Mapping[str, Any]) -> str | None:
    """What a manifest lacks, in words."""
    wanted = {"files": dict, "tensors": dict, "meta": dict, "kind": str, "parent": str | None}
    for key, kind in wanted.items():
        if key not in manifest or not isinstance(manifest[key], kind):
            return f"no `{key}` in it"
    file = manifest["files"].get(TENSORS)
    whole = isinstance(file, dict) and isinstance(file.get("bytes"), int) and isinstance(file.get("sha256"), str)
    return None if whole else f"no size and sha256 of {TENSORS} in it"


def _write(file: Path, chunks: list[memoryview] | list[bytes]) -> None:
    with open(file, "wb") as out:
        for chunk in chunks:
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())


def sync_directory(path: Path) -> None:
    """Have the names in a directory reach the disk: a file moved into place is there after a power cut, too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
