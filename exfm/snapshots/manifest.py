"""Manifest of a saved directory.

    {"format_version": 3, "kind": …, "parent": …, "meta": {…},
     "files": {file: {"bytes": …}},
     "tensors": {name: {"dtype": …, "shape": […],
                        "pieces": [{"file": …, "offset": …, "bytes": …, "start": […], "size": […], "sha256": …}]}},
     "sha256": of all that}

A piece is a window of its tensor, row-major. The pieces of a tensor cover it, each value once.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from exfm.errors import ModelError, OtherFormat

FORMAT_VERSION = 3
MANIFEST, TENSORS = "manifest.json", "tensors.bin"

DTYPES = {
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


class StoredPiece(NamedTuple):
    """A window of a tensor in a file."""

    file: str
    offset: int
    bytes: int
    start: tuple[int, ...]
    size: tuple[int, ...]
    sha256: str


class Entry(NamedTuple):
    """A tensor's type, shape and location."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: list[StoredPiece]


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a saved directory, without reading its tensors.

    Raises ModelError where nothing is saved whole or the manifest was altered, OtherFormat for one of another format.
    """
    file = Path(path) / MANIFEST
    name = file.parent.name
    try:
        manifest = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(f"`{name}` has no {MANIFEST}: nothing was saved there whole") from None
    except (ValueError, RecursionError) as error:
        raise damaged(name, str(error)) from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int):
        raise damaged(name, f"format version {version!r}, this ExFM reads {FORMAT_VERSION}")
    if version != FORMAT_VERSION:
        raise OtherFormat(
            f"`{name}` has format version {version}, this ExFM reads {FORMAT_VERSION}; read it with the version that "
            "wrote it, or start the run over with --fresh (an export or snapshot: write it again)"
        )
    if manifest.get("sha256") != _checksum(manifest):
        raise damaged(name, "it was altered: its checksum differs")
    if (flaw := _flaw(manifest)) is not None:
        raise damaged(name, flaw)
    return manifest


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """The manifest's text, with its checksum."""
    whole = {**manifest, "sha256": _checksum(manifest)}
    return (json.dumps(whole, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def index_of(manifest: Mapping[str, Any], name: str) -> dict[str, Entry]:
    """Location of every tensor. Raises ModelError, of the directory `name`, where an entry cannot be so."""
    index = {}
    for tensor, raw in manifest["tensors"].items():
        try:
            entry = _entry(raw)
            if (flaw := _misfit(entry, manifest["files"])) is not None:
                raise ValueError(flaw)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(name, f"its index of `{tensor}` does not fit its files: {error}") from None
        index[tensor] = entry
    return index


def damaged(name: str, why: str) -> ModelError:
    return ModelError(f"`{name}` has a damaged {MANIFEST} ({why}); take another version")


def _entry(raw: Mapping[str, Any]) -> Entry:
    pieces = [
        StoredPiece(p["file"], p["offset"], p["bytes"], tuple(p["start"]), tuple(p["size"]), p["sha256"])
        for p in raw["pieces"]
    ]
    return Entry(DTYPES[raw["dtype"]], tuple(raw["shape"]), pieces)


def _misfit(entry: Entry, files: Mapping[str, Any]) -> str | None:
    """Fault of an entry, in words."""
    for piece in entry.pieces:
        if any(n < 0 for n in (*piece.size, *piece.start, piece.offset)):
            return "a negative number"
        if any(a + n > m for a, n, m in zip(piece.start, piece.size, entry.shape, strict=True)):
            return f"a piece at {piece.start} of {piece.size} in a tensor of {entry.shape}"
        if piece.bytes != math.prod(piece.size) * entry.dtype.itemsize:
            return f"{piece.bytes} bytes for {piece.size} values"
        if piece.offset + piece.bytes > files[piece.file]["bytes"]:
            return f"a piece past the end of {piece.file}"
    return uncovered(entry)


def uncovered(entry: Entry) -> str | None:
    """Reason why the pieces do not cover their tensor exactly once; None if they do."""
    held, wanted = sum(math.prod(piece.size) for piece in entry.pieces), math.prod(entry.shape)
    if held != wanted:
        return f"its pieces have {held} of {wanted} values"
    if len(entry.pieces) > 1:
        starts = np.array([piece.start for piece in entry.pieces])
        ends = starts + np.array([piece.size for piece in entry.pieces])
        crossing = np.logical_and(starts[:, None] < ends[None], starts[None] < ends[:, None]).all(axis=2)
        if np.count_nonzero(crossing) > len(starts):  # each with itself
            return "two of its pieces overlap"
    return None


def _checksum(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _flaw(manifest: Mapping[str, Any]) -> str | None:
    """Fault of a manifest, in words."""
    wanted = {"files": dict, "tensors": dict, "meta": dict, "kind": str, "parent": str | None}
    for key, kind in wanted.items():
        if key not in manifest or not isinstance(manifest[key], kind):
            return f"no `{key}` in it"
    for file, size in manifest["files"].items():
        if not isinstance(size, dict) or not isinstance(size.get("bytes"), int) or "/" in file:
            return f"no size of {file} in it"
    return None
