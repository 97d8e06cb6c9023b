"""Memory-mapped arrays with an entry for every row of a stream: memory holds only the pages in use."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PIECE_ROWS = 1 << 16
"""Rows of such arrays that are worked on together."""


def mapped_array(shape: tuple[int, ...], dtype: Any, folder: Path | None, fill: float | bool = 0) -> np.ndarray:
    """An array of that shape, full of `fill`, mapped from an unnamed file in `folder` that is deleted with it; None: in
    memory.

    Raises OSError where the disk has no room for it.

    >>> found = mapped_array((2, 3), np.float32, Path(tempfile.gettempdir()), fill=np.nan)
    >>> found[1] = 7
    >>> release_pages(found)
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
            release_pages(array)
    return array


def release_pages(array: np.ndarray) -> None:
    """Free the memory of a mapped array; its pages are read again from the file on use. An array in memory stays as
    it is."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)
