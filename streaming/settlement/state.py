"""State of a settlement, in memory and as files.

    <name>.json    the manifest: counters, cursors, watermark, and the segments it needs
    *-*.arrow      segments of the pending impressions and of the feedback that waits, their heads, the marks on both
                   (labels and their times, claimed feedback), and the tables of as-of features; never changed, written
                   once, shared by manifests

The contents of all are flushed at once. Then segments move into place, the manifest after them, and only then do files
go that no manifest needs: a state is there whole or not at all, and one that was there stays. The folder's .json,
.arrow and .part files are the settlement's alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming.asof.features import AsOfFiles
from streaming.errors import BadInput, DataLost, StreamingError
from streaming.settlement.pending import RowLogState
from streaming.store.files import PART_SUFFIX, Staged, make_folder, sync
from streaming.store.seal import json_object, sealed, unsealed
from streaming.store.segments import SEGMENT_SUFFIX, Segments, StoredSegment, stage_segments

FORMAT = 3


@dataclass(frozen=True)
class SettlementState:
    """Pending impressions with their labels, waiting feedback with its claims, as-of features, and the counters."""

    pending: RowLogState
    labels: Sequence[Segments]
    orphans: RowLogState
    claimed: Segments
    asof: AsOfFiles | None
    meta: dict[str, Any]

    def save(self, directory: Path, name: str, keep: Collection[str] = (), extra: Any = None) -> int:
        """Store the state as `name` in `directory`, together with `extra` (JSON).

        Afterwards only `name` and `keep` can be loaded. Returns the bytes of the files they need. Raises DiskFull, and
        StreamingError when a segment has gone from where it was stored.
        """
        logs = {"pending": (self.pending, self.labels), "orphans": (self.orphans, [self.claimed])}
        manifest = {
            "format": FORMAT,
            "logs": {
                log: {
                    "first": rows.first,
                    "segments": [segment.name for segment in rows.segments],
                    "head": rows.head.name,
                    "marks": _names(marks),
                }
                for log, (rows, marks) in logs.items()
            },
            "asof": None if self.asof is None else {"segments": _names(self.asof.segments), "meta": self.asof.meta},
            "meta": self.meta,
            "extra": extra,
        }
        if self.pending.folder != directory or not directory.is_dir():  # else its name lasts, as what is in it does
            make_folder(directory)
        parts = [self.pending.files, *self.labels, self.orphans.files, self.claimed]
        parts += [] if self.asof is None else self.asof.segments
        with Staged(directory) as staged:
            new = stage_segments(parts, directory, staged)
            with staged.writing(f"{name}.json") as file:
                file.write(json.dumps(sealed(manifest)).encode())
            staged.flush()
            staged.move(new)
            sync(directory)
            staged.move([f"{name}.json"])
            sync(directory)
        return _tidy(directory, {f"{name}.json"} | _segments_of(manifest), {*keep} - {name})

    @staticmethod
    def load(directory: Path, name: str) -> tuple[SettlementState, Any]:
        """The state saved as `name`, and its `extra`; segments are read when it is restored.

        Raises BadInput when there is none of that name, DataLost when its manifest is damaged.
        """
        path = directory / f"{name}.json"
        if not path.exists():
            there = ", ".join(sorted(p.stem for p in directory.glob("*.json"))) or "nothing"
            raise BadInput(
                f"no settlement state `{name}` in {directory}; there is {there}. Put the folder back from a copy of "
                "the run directory, or start a new run"
            )
        manifest = _manifest(path)
        try:
            logs = _logs(directory, manifest)
            (claimed,) = logs["orphans"][1]
            state = SettlementState(
                *logs["pending"], logs["orphans"][0], claimed, _asof(directory, manifest["asof"]), manifest["meta"]
            )
            return state, manifest["extra"]
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, repr(error)) from error


@contextmanager
def held_together(directory: Path, name: str) -> Iterator[None]:
    """A context in which the state saved as `name` is restored. Raises DataLost where its parts do not fit."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise DataLost(
            f"the settlement state `{name}` in {directory} does not hold together: {error!r}; put the folder back "
            "from a copy of the run directory, or start a new run"
        ) from error


def partition_folder(number: int) -> str:
    """Folder of a partition's states, where partitions are settled by themselves. That of partition 0 has the as-of
    features of all."""
    return f"partition-{number:05d}"


def state_places(folder: Path, number: int) -> list[Path]:
    """Folders with a state `number`: the one of the stream, or one for each partition, in their order."""
    if (folder / f"{number}.json").exists():
        return [folder]
    return sorted(place for place in folder.glob(f"{partition_folder(0)[:-5]}*") if (place / f"{number}.json").exists())


_Logs = dict[str, tuple[RowLogState, list[Segments]]]


def _names(parts: Sequence[Segments]) -> list[list[str]]:
    return [[segment.name for segment in segments.segments] for segments in parts]


def _named(directory: Path, parts: list[list[str]]) -> list[Segments]:
    return [Segments([StoredSegment.named(name) for name in names], directory) for names in parts]


def _asof(directory: Path, stored: dict[str, Any] | None) -> AsOfFiles | None:
    return None if stored is None else AsOfFiles(_named(directory, stored["segments"]), stored["meta"])


def _logs(directory: Path, manifest: dict[str, Any]) -> _Logs:
    logs = {}
    for log, parts in manifest["logs"].items():
        segments = [StoredSegment.named(each) for each in parts["segments"]]
        rows = RowLogState(parts["first"], segments, StoredSegment.named(parts["head"]), directory)
        logs[log] = rows, _named(directory, parts["marks"])
    return logs


def _manifest(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
        version = json_object(text)["format"]
        if version == FORMAT:
            return unsealed(text)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, repr(error)) from error
    raise BadInput(
        f"{path} has format {version}, this ExFM reads {FORMAT}; resume with the version that wrote it, or start the "
        "run over with --fresh"
    )


def _damaged(path: Path, why: str) -> DataLost:
    return DataLost(
        f"{path} of a settlement state cannot be read: {why}; put it back from a copy of the run directory, or start a "
        "new run"
    )


def _segments_of(manifest: dict[str, Any]) -> set[str]:
    """The files that a manifest needs beside its own."""
    logs = manifest["logs"].values()
    own = [segment for parts in logs for segment in (*parts["segments"], parts["head"])]
    marks = [marks for parts in logs for marks in parts["marks"]]
    tables = [] if manifest["asof"] is None else manifest["asof"]["segments"]
    return {segment + SEGMENT_SUFFIX for segments in (own, *marks, *tables) for segment in segments}


def _tidy(directory: Path, needed: set[str], keep: Collection[str]) -> int:
    """Delete every file that is not `needed`, or part of a state in `keep`. Returns the bytes that stay."""
    for name in keep:
        with suppress(StreamingError):  # one that is damaged, or never was, needs nothing
            needed = needed | {f"{name}.json"} | _segments_of(_manifest(directory / f"{name}.json"))
    size = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.endswith((".json", SEGMENT_SUFFIX, PART_SUFFIX)):
                continue
            if entry.name in needed:
                size += entry.stat().st_size
            else:
                os.unlink(entry.path)
    return size
