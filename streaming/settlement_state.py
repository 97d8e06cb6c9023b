"""What a settlement continues from, in memory and as files.

    <name>.json           the manifest: counters, cursors, watermark, and the files below
    <name>.head.arrow     rows that are not in a segment yet          <name>.labels.arrow, <name>.orphans.arrow
    segment-<name>.arrow  immutable rows, written once and shared by the manifests that name them

Every file is moved into place complete; the manifest comes last, and only then do files go that no manifest needs. The
directory's .json and .arrow files are the settlement's alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streaming.errors import BadInput, StreamingError

FORMAT = 1
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class SettlementState:
    """Segments never change under their name; None stands for one left out because it is stored already."""

    segments: dict[str, pa.RecordBatch | None]
    head: pa.RecordBatch
    labels: np.ndarray
    orphans: pa.RecordBatch
    meta: dict[str, Any]

    def save(self, directory: Path, name: str, keep: Collection[str] = (), extra: Any = None) -> None:
        """Write the state as `name`, with `extra` (JSON) beside it; afterwards only `name` and `keep` can be loaded.

        Raises StreamingError when a segment was left out and is not in `directory`.
        """
        directory.mkdir(parents=True, exist_ok=True)
        for segment, rows in self.segments.items():
            path = directory / _segment_file(segment)
            if path.exists():
                continue
            if rows is None:
                raise StreamingError(f"{path} was left out of this state as stored already, and is not there")
            _write_rows(path, rows)
        labels = pa.RecordBatch.from_arrays([pa.array(self.labels)], ["labels"])
        for part, rows in (("head", self.head), ("labels", labels), ("orphans", self.orphans)):
            _write_rows(directory / f"{name}.{part}.arrow", rows)
        manifest = {"format": FORMAT, "segments": list(self.segments), "meta": self.meta, "extra": extra}
        _write(directory / f"{name}.json", lambda file: file.write(json.dumps(manifest).encode()))
        _tidy(directory, {name, *keep})

    @staticmethod
    def load(directory: Path, name: str) -> tuple[SettlementState, Any]:
        """The state saved as `name`, and its `extra`.

        Raises BadInput when there is none of that name, StreamingError when one of its files is missing or damaged.
        """
        path = directory / f"{name}.json"
        if not path.exists():
            there = ", ".join(sorted(p.stem for p in directory.glob("*.json"))) or "nothing"
            raise BadInput(f"no settlement state `{name}` in {directory}; there is {there}")
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise BadInput(
                f"{path} has format {manifest['format']}, this version reads {FORMAT}; resume with the version that "
                "wrote it, or start a new run"
            )
        meta, emitted = manifest["meta"], min(manifest["meta"]["cursors"])
        segments: dict[str, pa.RecordBatch | None] = {}
        for segment in manifest["segments"]:
            rows = _read_rows(directory / _segment_file(segment))
            if meta["segment_first"][segment] + rows.num_rows <= emitted:
                rows = rows.select(["impression_id", "event_time_ms", "key_time_ms"])
            segments[segment] = rows
        head, labels, orphans = (_read_rows(directory / f"{name}.{p}.arrow") for p in ("head", "labels", "orphans"))
        state = SettlementState(segments, head, labels.column(0).to_numpy(), orphans, meta)
        return state, manifest["extra"]


def stored_segments(directory: Path) -> set[str]:
    """Names of the segments in `directory`, which a state to be saved there may leave out."""
    return {path.stem.removeprefix("segment-") for path in directory.glob("segment-*.arrow")}


def _segment_file(segment: str) -> str:
    return f"segment-{segment}.arrow"


def _tidy(directory: Path, names: set[str]) -> None:
    """Delete manifests not in `names`, then every file that no remaining manifest needs."""
    for path in directory.glob("*.json"):
        if path.stem not in names:
            path.unlink()
    needed = set()
    for path in directory.glob("*.json"):
        needed |= {_segment_file(segment) for segment in json.loads(path.read_text())["segments"]}
        needed |= {f"{path.stem}.{part}.arrow" for part in ("head", "labels", "orphans")}
    for path in directory.iterdir():
        if path.name not in needed and (path.suffix == ".arrow" or path.suffix == ".part"):
            path.unlink()


def _write_rows(path: Path, rows: pa.RecordBatch) -> None:
    def write(file: Any) -> None:
        with pa.ipc.new_file(file, rows.schema, options=_OPTIONS) as writer:
            writer.write_batch(rows)

    _write(path, write)


def _write(path: Path, write: Callable[[Any], Any]) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _read_rows(path: Path) -> pa.RecordBatch:
    try:
        with pa.OSFile(str(path)) as file:
            return pa.ipc.open_file(file).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise StreamingError(
            f"{path} of a settlement state cannot be read: {error}; resume from an earlier state"
        ) from error
