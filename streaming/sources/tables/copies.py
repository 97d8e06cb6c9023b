"""Prepared copy of each source: one Parquet file in order of event time, made once and reused.

A copy is made aside and renamed into its place once it is complete, so a process that is killed leaves none, or a whole
one. Its name is a digest of the files (name, size, time of change) and of how they are read: when either changes,
another copy is made, and the one before it is deleted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from streaming.errors import BadInput, DiskFull
from streaming.messages.times import Unit
from streaming.sources.tables.forms import Files, files_at
from streaming.store.files import move, read_json, sync, write_json
from streaming.store.lock import file_lock

MADE_BY = 2
"""Of the code that makes copies: another one makes them again."""

TEXT_SHRINKS_TO = 0.6
"""What a Parquet file takes of the text that it was made of, at most."""

SORT_TAKES = 4
"""What sorting takes on disk, in sizes of the file: the sorted copy, and rows that wait unpacked."""

LOCAL_TIME = "local time"
"""Declared of a column of times in a zone: where some have an offset, they stay as they are written."""

Advance = Callable[[str, float], None]
"""Called with what is being done, and its share from 0 to 1."""


class Reading(NamedTuple):
    """Settings of how a source's rows are read.

    event_time   the column of the time; None: rows are a second apart, in the order of the file
    unit         of times that are numbers
    form         in which times are written, as `strptime` has it; None: numbers in `unit`, timestamps, ISO 8601
    tolerance_ms how far a row may lie behind the latest before it, without being sorted
    header       of text: whether its first line names the columns; None: found out
    declared     the types that a config gives columns: name and type, of string, int64, float32 and LOCAL_TIME
    encoding     of text; None: UTF-8
    zone         of times without an offset; None: UTC
    """

    event_time: str | None
    unit: Unit = "ms"
    form: str | None = None
    tolerance_ms: int = 0
    header: bool | None = None
    declared: tuple[tuple[str, str], ...] = ()
    encoding: str | None = None
    zone: str | None = None


class PreparedFile(NamedTuple):
    """`path`: a Parquet file in order of `event_time`, whose numbers are in `unit`. `said`: what was done to come to
    it, and times that a change of clocks makes doubtful. `now`: it was done by this call."""

    path: Path
    event_time: str
    unit: Unit
    said: tuple[str, ...] = ()
    now: bool = False


@dataclass(frozen=True)
class Copies:
    """Prepared copies in `folder`, which is created on demand.

    >>> import tempfile
    >>> import pyarrow.parquet as pq
    >>> lies = Path(tempfile.mkdtemp())
    >>> _ = (lies / "rows.csv").write_text("at,user\\n20,a\\n10,b\\n")
    >>> found = Copies(lies / "copies").of(lies / "rows.csv", Reading("at", "s"))
    >>> pq.read_table(found.path)["user"].to_pylist(), len(found.said)
    (['b', 'a'], 2)
    """

    folder: Path
    advance: Advance = lambda what, share: None

    def of(self, path: Path, reading: Reading) -> PreparedFile:
        """The rows at `path`: the file itself if it can be played as it is, else its copy.

        Raises BadInput for what cannot be read and for a disk without room, DiskFull for one that has become full.
        """
        files = files_at(path)
        if (prepared := _as_it_lies(files, reading)) is not None:
            return prepared
        key = self._key(path, files, reading)
        if (prepared := self._kept(key)) is not None:
            return prepared
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self.folder / ".lock", wait_s=None):
            return self._kept(key) or self._made(path, files, reading, key)

    def content(self, path: Path, reading: Reading) -> str:
        """Digest of the files' content, independent of names and times; for a copy, as of its creation."""
        files = files_at(path)
        record = self._record(self._key(path, files, reading))
        return str(record["content"]) if record is not None else files.digest()

    def _key(self, path: Path, files: Files, reading: Reading) -> str:
        content = json.dumps([MADE_BY, files.form, files.stamp, reading])
        return f"{path.name.partition('.')[0]}-{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"

    def _record(self, key: str) -> dict[str, Any] | None:
        """Record of a finished copy."""
        record = read_json(self.folder / f"{key}.json")
        copy = self.folder / f"{key}.parquet"
        return record if record is not None and copy.exists() and copy.stat().st_size == record["bytes"] else None

    def _kept(self, key: str) -> PreparedFile | None:
        record = self._record(key)
        if record is None:
            return None
        return PreparedFile(self.folder / f"{key}.parquet", record["event_time"], record["unit"], tuple(record["said"]))

    def _made(self, path: Path, files: Files, reading: Reading, key: str) -> PreparedFile:
        from streaming.sources.tables.preparation import prepare  # DuckDB comes with it

        for left in self.folder.glob("*.begun"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        begun, copy = self.folder / f"{key}.begun", self.folder / f"{key}.parquet"
        begun.mkdir(mode=0o700)
        try:
            made = prepare(files, reading, begun, self.advance)
            if (content := files.digest()) and files.stamp != files_at(path).stamp:
                raise BadInput(f"{path} was changed while it was read; wait until it is whole, then try again")
            sync(made.path)
            move(made.path, copy)
        except OSError as error:
            if isinstance(error, DiskFull):
                raise
            raise BadInput(f"{path} cannot be prepared in {self.folder}: {error.strerror}") from None
        finally:
            shutil.rmtree(begun, ignore_errors=True)
        self._forget(str(path.absolute()), reading, but=key)
        record = {
            "source": str(path.absolute()),
            "reading": list(reading),
            "content": content,
            "bytes": copy.stat().st_size,
            "event_time": made.event_time,
            "unit": made.unit,
            "said": list(made.said),
        }
        write_json(self.folder / f"{key}.json", record)
        sync(self.folder)
        return PreparedFile(copy, made.event_time, made.unit, made.said, now=True)

    def _forget(self, source: str, reading: Reading, but: str) -> None:
        """Delete the copies of what this source was before, read the same way; that of key `but` is today's."""
        stored = json.loads(json.dumps(reading))
        for file in self.folder.glob("*.json"):
            record = None if file.stem == but else read_json(file)
            if record is not None and record["source"] == source and record["reading"] == stored:
                file.unlink()
                file.with_suffix(".parquet").unlink(missing_ok=True)


_in_order: dict[str, tuple[str, ...]] = {}
"""What was said of files that this process has read along already, by their state and how they are read."""


def _as_it_lies(files: Files, reading: Reading) -> PreparedFile | None:
    """A Parquet file that can be played by itself."""
    if not files.is_one_parquet or reading.event_time is None or reading.form is not None:
        return None
    from streaming.sources.tables.in_order import clock_changes, rows_behind

    (path,) = files.paths
    file = PreparedFile(path, reading.event_time, reading.unit)
    state = f"{path.absolute()} {files.stamp} {reading}"
    if new := state not in _in_order:
        try:
            if rows_behind(path, reading.event_time, reading.unit, reading.tolerance_ms, reading.zone):
                return None
            _in_order[state] = clock_changes(path, reading.event_time, reading.zone)
        except (OSError, pa.ArrowException):  # no Parquet file: its reader says so
            return file
    return file._replace(said=_in_order[state], now=new)
