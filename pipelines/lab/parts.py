"""Finished parts of a long computation: files named after everything that decides their content, whole or absent.

Whatever ends a sweep, the same command finds its parts and computes the rest. A damaged part counts as absent.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np

from pipelines.lab.mapped import PIECE_ROWS, release_pages
from pipelines.live.training.machine import code
from streaming.store.files import replacing

FORMAT = 3
"""To be raised when a part of the same name would hold something else, as where rows are cut by other rules."""

MAPPED_BYTES = 1 << 20
"""From this size on an array of a part is mapped, not read."""

LOCAL_HEADER_BYTES = 30
"""Of a zip file's entry, before its name; at 26 and 28 it has the lengths of the name and of what follows that."""


def part_name(decisive: Any) -> str:
    """Name of a part: equal for settings that are equal as JSON."""
    text = json.dumps([FORMAT, decisive], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def save_part(path: Path, **arrays: Any) -> None:
    """Store `arrays` like NumPy's `savez`, with the time and the version of the model code, atomically. Of arrays in
    files no more than a piece is in memory."""
    made = {"made_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "made_with": code()}
    with replacing(path) as file, ZipFile(file, "w") as archive:
        for name, value in (made | arrays).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write(member, np.asanyarray(value))


def _write(member: IO[bytes], array: np.ndarray) -> None:
    if array.nbytes < MAPPED_BYTES or not array.flags.c_contiguous:
        np.lib.format.write_array(member, array, allow_pickle=False)
        return
    np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(array))
    for at in range(0, len(array), PIECE_ROWS):
        member.write(array[at : at + PIECE_ROWS].tobytes())
        release_pages(array)


def load_part(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays of `save_part`; large ones are mapped read-only. None where the part is absent or damaged. A
    damaged one is removed."""
    try:
        with ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise BadZipFile("an array is damaged")
            return {info.filename.removesuffix(".npy"): _read(path, archive, info) for info in archive.infolist()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        path.unlink()
        return None


def _read(path: Path, archive: ZipFile, info: ZipInfo) -> np.ndarray:
    with archive.open(info) as member:
        if info.file_size < MAPPED_BYTES:
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
        np.lib.format.read_magic(member)
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(member)
        behind_header = member.tell()
    if dtype.hasobject:  # its bytes would be taken for addresses of objects
        raise ValueError("an array of objects, which no part has")
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(LOCAL_HEADER_BYTES)
        named = sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        at = info.header_offset + LOCAL_HEADER_BYTES + named + behind_header
        return np.memmap(file, dtype, "r", at, shape, "F" if by_columns else "C")


def is_stored(path: Path) -> bool:
    """True if the part is complete, judged by the directory at the end of its zip file."""
    try:
        with ZipFile(path) as archive:
            return "made_with.npy" in archive.namelist()
    except FileNotFoundError:
        return False
    except (OSError, ValueError, EOFError, BadZipFile):
        path.unlink()
        return False
