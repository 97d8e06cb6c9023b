"""Arrays with an entry for every row of a stream, in files: a process holds the pages that it works on, and no more
for a longer stream."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PIECE_ROWS = 1 << 16
"""Rows of such arrays that are worked on together."""


def spilled(shape: tuple[int, ...], dtype: Any, folder: Path | None, fill: float | bool = 0) -> np.ndarray:
    """An array of that shape, full of `fill`, in a nameless file of `folder` that goes with it; None: in memory.

    Raises OSError where the disk has no room for it.

    >>> found = spilled((2, 3), np.float32, Path(tempfile.gettempdir()), fill=np.nan)
    >>> found[1] = 7
    >>> let_go(found)
    >>> found.tolist()
    [[nan, nan, nan], [7.0, 7.0, 7.0]]
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if folder is None or not size:
        return np.full(shape, fill, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)  # else a full disk would kill the process where it writes
        array: np.ndarray = np.memmap(file, dtype, "r+", shape=shape)
    if not (isinstance(fill, int | bool) and fill == 0):
        for at in range(0, len(array), PIECE_ROWS):
            array[at : at + PIECE_ROWS] = fill
            let_go(array)
    return array


def let_go(array: np.ndarray) -> None:
    """Take the pages of an array that is mapped out of this process; the file has them, and they are read again when
    they are asked for. Nothing happens to an array in memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)
