"""A tensor on disk, read by window.

Bytes are read into memory of our own and verified there, not mapped: what was verified is what is used, and a disk that
fails raises instead of killing the process. At most one piece is held in addition to the result.
"""

from __future__ import annotations

import hashlib
import os
from io import SEEK_END, FileIO
from pathlib import Path

import torch
from torch import Tensor

from exfm.errors import ModelError
from exfm.snapshots.manifest import Entry, StoredPiece
from exfm.snapshots.windows import Offsets, narrowed, overlap

CHUNK = 1 << 22


class StoredTensor:
    """A tensor of one saved directory. Every read verifies the pieces that it touches, and raises ModelError where one
    was altered."""

    def __init__(self, folder: Path, entry: Entry):
        self._folder, self._pieces = folder, entry.pieces
        self.dtype, self.shape = entry.dtype, torch.Size(entry.shape)

    def fill(self, out: Tensor, offsets: Offsets) -> None:
        """Copy the window that starts at `offsets` and has the shape of `out` into `out`."""
        if len(self._pieces) == 1 and out.shape == self.shape and _takes_bytes(out, self.dtype):
            self._read(self._pieces[0], out)
            return
        for piece in self._pieces:
            if (shared := overlap(piece.start, piece.size, offsets, out.shape)) is None:
                continue
            target = narrowed(out, shared.second, shared.shape)
            if shared.shape == piece.size and _takes_bytes(target, self.dtype):
                self._read(piece, target)
            else:
                target.copy_(narrowed(self._piece(piece), shared.first, shared.shape))

    def verify(self) -> None:
        """Read and check every piece. Raises ModelError as reading does."""
        for piece in self._pieces:
            self._piece(piece)

    def _piece(self, piece: StoredPiece) -> Tensor:
        values = torch.empty(piece.size, dtype=self.dtype)
        self._read(piece, values)
        return values

    def _read(self, piece: StoredPiece, into: Tensor) -> None:
        view, digest, read = as_bytes(into).numpy().data, hashlib.sha256(), 0
        with opened(self._folder, piece.file) as file:
            file.seek(piece.offset)
            while read < piece.bytes:
                count = file.readinto(view[read : read + CHUNK])
                if not count:
                    raise ModelError(
                        f"`{self._folder.name}` is truncated: {piece.file} ends {piece.bytes - read} bytes into a "
                        f"piece of {piece.bytes} at {piece.offset}; take another version"
                    )
                digest.update(view[read : read + count])
                read += count
        if (computed := digest.hexdigest()) != piece.sha256:
            raise ModelError(
                f"`{self._folder.name}` was altered: sha256 of {piece.bytes} bytes at {piece.offset} of {piece.file} "
                f"is {computed[:12]}…, its manifest says {piece.sha256[:12]}…; take another version"
            )


def as_bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor's own memory, flat."""
    # as_strided: a tensor of one element may have any stride, and to be viewed as bytes it needs 1.
    return tensor.detach().reshape(-1).as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _takes_bytes(tensor: Tensor, dtype: torch.dtype) -> bool:
    """True if stored values of this type can be read into the tensor's own memory."""
    return tensor.is_contiguous() and tensor.device.type == "cpu" and tensor.dtype == dtype


def size_of(folder: Path, file: str) -> int:
    with opened(folder, file) as content:
        return content.seek(0, SEEK_END)


def opened(folder: Path, file: str) -> FileIO:
    try:
        return FileIO(os.path.join(folder, file))
    except FileNotFoundError:
        raise ModelError(f"`{folder.name}` has lost its file {file}; take another version") from None
