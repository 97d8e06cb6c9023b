"""Tensors that a process holds, or reads, only in windows.

A window of a tensor is where it starts (offsets, one per dimension) and its shape. Whatever can be read by window, a
tensor in memory, this rank's pieces of one, or one on disk, is read in the same way:

>>> whole = torch.arange(12).view(4, 3)
>>> halves = TensorPieces((4, 3), [((0, 0), whole[:, :1]), ((0, 1), whole[:, 1:])])
>>> out = torch.empty(2, 2, dtype=torch.int64)
>>> for source in (whole, halves):
...     fill_window(out, source, (1, 0))
...     print(out.tolist())
[[3, 4], [6, 7]]
[[3, 4], [6, 7]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from exfm.errors import ModelError

Offsets = Sequence[int]
Window = tuple[tuple[int, ...], Tensor]
"""Where a window begins in its tensor, one number per dimension, and its values."""


class Windowed(Protocol):
    """Interface of a source that is read by window."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def fill(self, out: Tensor, offsets: Offsets) -> None:
        """Copy the window that starts at `offsets` and has the shape of `out` into `out`."""


TensorSource = Tensor | Windowed


class TensorPieces(NamedTuple):
    """A tensor sharded over ranks: the whole's shape, and the local windows with their offsets. They may be none.
    `replicated`: every rank has the same.

    >>> TensorPieces((4, 2), [((2, 0), torch.ones(2, 2))]).dtype
    torch.float32
    """

    shape: tuple[int, ...]
    pieces: list[Window]
    replicated: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return self.pieces[0][1].dtype if self.pieces else torch.float32

    def fill(self, out: Tensor, offsets: Offsets) -> None:
        """Copy a window; raises ModelError if part of it is not local."""
        missing = out.numel()
        for start, piece in self.pieces:
            if (shared := overlap(start, piece.shape, offsets, out.shape)) is not None:
                narrowed(out, shared.second, shared.shape).copy_(narrowed(piece, shared.first, shared.shape))
                missing -= math.prod(shared.shape)
        if missing:
            raise ModelError(
                f"{missing} of {out.numel()} values of a window at {tuple(offsets)} of a tensor {self.shape} are held "
                "by other ranks; save it and read it from there"
            )


class Overlap(NamedTuple):
    """Overlap of two windows: its start in the first and in the second, and its shape."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    shape: tuple[int, ...]


def overlap(a: Offsets, a_shape: Sequence[int], b: Offsets, b_shape: Sequence[int]) -> Overlap | None:
    """Overlap of window a (offsets, shape) and window b of one tensor; None if empty.

    >>> overlap((0, 0), (4, 2), (3, 1), (5, 5))
    Overlap(first=(3, 1), second=(0, 0), shape=(1, 1))
    """
    starts = [max(x, y) for x, y in zip(a, b, strict=True)]
    ends = [min(x + n, y + m) for x, n, y, m in zip(a, a_shape, b, b_shape, strict=True)]
    shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
    if any(size <= 0 for size in shape):
        return None
    return Overlap(
        tuple(start - x for start, x in zip(starts, a, strict=True)),
        tuple(start - y for start, y in zip(starts, b, strict=True)),
        shape,
    )


def narrowed(tensor: Tensor, offsets: Offsets, shape: Sequence[int]) -> Tensor:
    """The window as a view."""
    for dim, (start, size) in enumerate(zip(offsets, shape, strict=True)):
        tensor = tensor.narrow(dim, start, size)
    return tensor


def fill_window(out: Tensor, source: TensorSource, offsets: Offsets | None = None) -> None:
    """Copy the window of `source` that starts at `offsets` (default: the beginning) and has the shape of `out`."""
    start = (0,) * out.dim() if offsets is None else offsets
    if isinstance(source, Tensor):
        out.copy_(narrowed(source, start, out.shape))
    else:
        source.fill(out, start)


def windows_of(held: Tensor | TensorPieces) -> list[Window]:
    """The parts of a tensor that are in this process: all of it, or the local pieces. They share its memory."""
    return [((0,) * held.dim(), held)] if isinstance(held, Tensor) else held.pieces


def whole_tensor(source: TensorSource) -> Tensor:
    """The whole tensor: a tensor as it is, a copy of any other source."""
    if isinstance(source, Tensor):
        return source
    out = torch.empty(source.shape, dtype=source.dtype)
    source.fill(out, (0,) * len(source.shape))
    return out
