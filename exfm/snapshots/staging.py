"""The staging folder into which the ranks of a group write one thing together, before its rename into place.

    <staging>/tensors.bin                        of a single rank
    <staging>/tensors-00001-of-00004.bin         what rank 1 of 4 holds, on disk before …
    <staging>/rank-00001.json                    … its index is here, in one move: rank 1 is done

Ranks see each other by these files alone. They write in background threads, where a collective would cross those of
the training.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from exfm.durable import flush, replace_file
from exfm.errors import ModelError
from exfm.snapshots.manifest import DTYPES, TENSORS
from exfm.snapshots.stored import as_bytes
from exfm.snapshots.windows import TensorPieces, TensorSource, narrowed

PIECE_BYTES = 1 << 26
"""The largest piece, unless a row is larger. To verify any part of a piece, all of it has to be read."""

SYNC_BYTES = 1 << 30
"""Bytes between two flushes: a growing file shows the other ranks that its writer lives."""

POLL_S = 0.01


Storable = TensorSource
"""Whole, this rank's pieces, or still on disk."""


class Part(NamedTuple):
    """Manifest entries of one rank's part: its file's size, and the pieces of its tensors."""

    files: dict[str, Any]
    tensors: dict[str, Any]


class NamedWindow(NamedTuple):
    """A piece of a tensor as it is stored: at most PIECE_BYTES, contiguous, in this process's memory."""

    name: str
    start: tuple[int, ...]
    values: Tensor


def windows(tensors: Mapping[str, Storable], rank: int) -> Iterator[NamedWindow]:
    """Windows that a rank has to write, in order of name: its own pieces, and on rank 0 all replicated tensors. What
    is still on disk is read piece by piece."""
    for name in sorted(tensors):
        tensor = tensors[name]
        if isinstance(tensor, TensorPieces):
            pieces = [piece for piece in tensor.pieces if piece[1].numel()]
            held: list[tuple[tuple[int, ...], TensorSource]] = [*sorted(pieces, key=lambda p: p[0])]
        else:
            held = [((0,) * len(tensor.shape), tensor)] if rank == 0 else []
        for start, window in held:
            for offset, shape in _cut(window.shape, window.dtype.itemsize):
                if isinstance(window, Tensor):
                    values = narrowed(window.detach(), offset, shape).cpu().contiguous()
                else:
                    values = torch.empty(shape, dtype=window.dtype)
                    window.fill(values, offset)
                yield NamedWindow(name, tuple(a + b for a, b in zip(start, offset, strict=True)), values)


def refuse_unstorable(tensors: Mapping[str, Storable]) -> None:
    """Raise ModelError for a tensor of a type that manifests do not support."""
    for name, tensor in tensors.items():
        if (dtype := _name_of(tensor.dtype)) not in DTYPES:
            raise ModelError(f"tensor `{name}` is {dtype}, which cannot be stored; storable: {', '.join(DTYPES)}")


def write_part(staging: Path, tensors: Mapping[str, Storable], rank: int, ranks: int) -> Part:
    """Write the windows of this rank into its file, and sync it. Those of equal bytes are written once: a student and
    its twin have one and the same linear part."""
    file = TENSORS if ranks == 1 else f"{Path(TENSORS).stem}-{rank:05}-of-{ranks:05}.bin"
    index: dict[str, dict[str, Any]] = {
        name: {"dtype": _name_of(tensor.dtype), "shape": list(tensor.shape), "pieces": []}
        for name, tensor in tensors.items()
        if rank == 0 or (isinstance(tensor, TensorPieces) and tensor.pieces)
    }
    end = synced = 0
    written: dict[str, int] = {}  # sha256 -> offset
    with open(staging / file, "wb") as out:
        for name, start, values in windows(tensors, rank):
            data = as_bytes(values).numpy().data
            digest = hashlib.sha256(data).hexdigest()
            if (offset := written.setdefault(digest, end)) == end:
                out.write(data)
                end += data.nbytes
            piece = {"file": file, "offset": offset, "bytes": data.nbytes, "start": list(start)}
            index[name]["pieces"].append(piece | {"size": list(values.shape), "sha256": digest})
            if end - synced >= SYNC_BYTES:
                flush(out)
                synced = end
        flush(out)
    return Part({file: {"bytes": end}}, index)


def announce(staging: Path, part: Part, rank: int) -> None:
    """Announce that this rank's part is written."""
    replace_file(_announced(staging, rank), json.dumps(part._asdict()).encode())


def gather(staging: Path, name: str, ranks: int, timeout_s: float) -> list[Part]:
    """Collect the parts of all ranks but 0 once all are written, and delete their announcements.

    Raises ModelError when a rank is missing and nothing was written for `timeout_s`.
    """
    missing, parts = set(range(1, ranks)), {}
    seen: list[tuple[str, int]] = []
    since = time.monotonic()
    while missing:
        for rank in sorted(missing):
            if _announced(staging, rank).exists():
                parts[rank] = Part(**json.loads(_announced(staging, rank).read_text()))
                missing.remove(rank)
        now, found = time.monotonic(), _sizes(staging)
        if found != seen:
            seen, since = found, now
        elif missing and now - since > timeout_s:
            raise ModelError(
                f"`{name}` is not saved: of {ranks} ranks, {', '.join(map(str, sorted(missing)))} did not write "
                f"their part, and for {timeout_s:g} s nothing was written; restart them all from the last checkpoint"
            )
        if missing:
            time.sleep(POLL_S)
    for rank in parts:
        _announced(staging, rank).unlink()
    return [parts[rank] for rank in sorted(parts)]


def joined(parts: list[Part]) -> Part:
    """Merge the parts."""
    files: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for part in parts:
        files |= part.files
        for name, entry in part.tensors.items():
            mine = tensors.setdefault(name, {**entry, "pieces": []})
            if not mine["pieces"]:
                mine["dtype"] = entry["dtype"]  # a rank without a piece does not know the type
            mine["pieces"] = mine["pieces"] + entry["pieces"]
    return Part(files, tensors)


def _cut(shape: Sequence[int], itemsize: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Along the first dimension, into what fits into a piece: offsets and shapes.

    >>> list(_cut((PIECE_BYTES, 3), 1))[:2]
    [((0, 0), (22369621, 3)), ((22369621, 0), (22369621, 3))]
    """
    size, rest = math.prod(shape) * itemsize, (0,) * (len(shape) - 1)
    if size <= PIECE_BYTES or not shape:
        yield (0,) * len(shape), tuple(shape)
        return
    rows = max(1, PIECE_BYTES * shape[0] // size)
    for first in range(0, shape[0], rows):
        yield (first, *rest), (min(rows, shape[0] - first), *shape[1:])


def _announced(staging: Path, rank: int) -> Path:
    return staging / f"rank-{rank:05}.json"


def _sizes(staging: Path) -> list[tuple[str, int]]:
    found = []
    for file in staging.iterdir():
        with suppress(FileNotFoundError):  # moved meanwhile
            found.append((file.name, file.stat().st_size))
    return sorted(found)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
