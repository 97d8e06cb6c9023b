"""Segments of a state that never change: written once, then named by every state that still needs them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streaming.errors import StreamingError
from streaming.store.files import Staged, link_file

SEGMENT_SUFFIX = ".arrow"
# zstd at its lowest level writes ad impressions twice as fast as lz4, Arrow's other choice, into half the space.
_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))


@dataclass(frozen=True)
class StoredSegment:
    """Rows under a name that no other content has, which begins with their kind, first number and count.

    `rows` is None once they lie in a file of that name.
    """

    name: str
    first: int
    count: int
    rows: pa.RecordBatch | None = None

    @classmethod
    def of(cls, kind: str, first: int, rows: pa.RecordBatch, content: Sequence[np.ndarray]) -> StoredSegment:
        """A segment named by a digest of `content`, which tells it from every other one of its kind."""
        digest = hashlib.blake2b(digest_size=8)
        for values in content:
            digest.update(np.ascontiguousarray(values).data)
        return cls(f"{kind}-{first:015d}-{rows.num_rows}-{digest.hexdigest()}", first, rows.num_rows, rows)

    @classmethod
    def named(cls, name: str) -> StoredSegment:
        """One that lies in a file.

        >>> StoredSegment.named("segment-000000000000009-10-a599fea24c77aa59").stop
        19
        """
        _, first, count, _ = name.split("-")
        return cls(name, int(first), int(count))

    @property
    def stop(self) -> int:
        return self.first + self.count

    @property
    def file(self) -> str:
        return self.name + SEGMENT_SUFFIX

    def read(self, folder: Path | None, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows, of these columns, from memory or from `folder`."""
        if self.rows is not None:
            return self.rows if names is None else self.rows.select(names)
        assert folder is not None
        return read_rows(folder / self.file, names)


class Segments(NamedTuple):
    """Some that belong together; those without rows lie in `folder`."""

    segments: Sequence[StoredSegment]
    folder: Path | None


def store_segments(segments: Segments, folder: Path) -> None:
    """Let all lie in `folder`, which is there; `sync` makes their names last. Raises as `stage_segments` does."""
    with Staged(folder) as staged:
        new = stage_segments([segments], folder, staged)
        staged.flush()
        staged.move(new)


def stage_segments(parts: Iterable[Segments], folder: Path, staged: Staged) -> list[str]:
    """Let all lie in `folder` once what is returned, the names of the new ones, was flushed and moved: those in memory
    are written to `staged`, those that lie elsewhere get a second name.

    Raises DiskFull, and StreamingError when one has gone from where it was stored.
    """
    new: dict[str, None] = {}
    for segments, source in parts:
        names = {segment.file for segment in segments}
        there = {name for name in names if (folder / name).exists()} if len(names) < 100 else set(os.listdir(folder))
        for segment in segments:
            if segment.file in there or segment.file in new:
                continue
            if segment.rows is not None:
                new[segment.file] = None
                with (
                    staged.writing(segment.file) as file,
                    pa.ipc.new_file(file, segment.rows.schema, options=_OPTIONS) as writer,
                ):
                    writer.write_batch(segment.rows)
                continue
            assert source is not None
            try:
                link_file(source / segment.file, folder / segment.file)
            except FileNotFoundError as error:
                raise StreamingError(
                    f"{source / segment.file} of a settlement state is gone; where another writer has taken this run "
                    "over, stop this one, else start it again from the last commit"
                ) from error
    return list(new)


def read_rows(path: Path, names: Sequence[str] | None = None) -> pa.RecordBatch:
    """Read the columns `names` of a file, as far as it has them, skipping the others. Raises StreamingError when it
    is missing or damaged."""
    try:
        with pa.OSFile(str(path)) as file:
            reader = pa.ipc.open_file(file)
            if names is not None and reader.schema.names != list(names):
                names = [name for name in names if name in reader.schema.names]
                places = [reader.schema.get_field_index(name) for name in names]
                reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=places))
                return reader.get_batch(0).select(names)
            return reader.get_batch(0)
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise StreamingError(
            f"{path} of a settlement state cannot be read: {error}; put it back from a copy of the run directory, or "
            "start a new run. Where another writer has taken this run over, stop this one"
        ) from error
