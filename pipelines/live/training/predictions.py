"""Log of predictions made before learning, as Parquet: the input of exact metrics.

A student writes a part at each of its checkpoints, so parts and weights always agree: after a crash the parts past the
checkpoint are dropped, and the rows come again.

Columns: lake_seq, impression_id, event_time_ms, and per task `label_`, and logits: `student_`, `no_teacher_`, `ftrl_`,
`constant_`, `teacher_`; and `champion_`, of the version that is served, in parts with rows that it scored for a trial:
null for others.
Where rows are weighted, `weight_` per task: how many rows of the stream this one stands for. Where figures are grouped
(`metrics.group_by`), `group`: the hash64 of that column; where intervals are clustered (`metrics.cluster_by`),
`cluster_<column>`: those of its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming.hashing import hash64
from streaming.position import NOTHING_YET
from streaming.store.files import damage_named, make_folder, read_json, remove_file, replacing, sync, write_json

CLUSTER = "cluster_"
"""Before the name of a column in `metrics.cluster_by`."""

CHAMPION = "champion"
"""The version of a student that is served, as a model beside it and its twin."""

PRUNED, ERASED = "pruned.json", "erased.json"
ENCODINGS = {pa.int64(): "DELTA_BINARY_PACKED", pa.float32(): "BYTE_STREAM_SPLIT"}
"""Of counters, ids and logits; other columns, whose values repeat, have a dictionary."""

NEVER_PRUNED = 4
"""The newest parts, which a checkpoint before the newest may be resumed at, stay whatever their size."""


def logged_columns(tasks: Sequence[str], group_by: str | None, cluster_by: Sequence[str]) -> list[str]:
    """The columns of rows that `predictions_of` reads."""
    of_tasks = [f"{kind}_{task}" for task in tasks for kind in ("label", "teacher_logit")]
    hashed = [group_by, *cluster_by] if group_by else [*cluster_by]
    return list(dict.fromkeys(["lake_seq", "impression_id", "event_time_ms", *of_tasks, *hashed]))


class Predicted(NamedTuple):
    """Rows that were predicted, of one step or several: `logits` (N, T) by model, `weights` (N, T) where rows are
    weighted."""

    rows: pa.Table
    logits: Mapping[str, np.ndarray]
    weights: np.ndarray | None = None

    def of(self, model: str) -> np.ndarray:
        """Logits (N, T) of a model; NaN of one that was not asked."""
        if model in self.logits:
            return self.logits[model]
        return np.full_like(next(iter(self.logits.values())), np.nan)

    @classmethod
    def joined(cls, steps: Sequence[Predicted]) -> Predicted:
        """Concatenate steps. A model that was not asked in all of them has NaN there."""
        first, models = steps[0], dict.fromkeys(model for step in steps for model in step.logits)
        return cls(
            pa.concat_tables([step.rows for step in steps]),
            {model: np.concatenate([step.of(model) for step in steps]) for model in models},
            None if first.weights is None else np.concatenate([step.weights for step in steps]),
        )


def predictions_of(
    tasks: Sequence[str], predicted: Predicted, *, group_by: str | None, cluster_by: Sequence[str] = ()
) -> pa.RecordBatch:
    """Predicted rows in the form of the log."""
    rows = predicted.rows
    columns: dict[str, pa.Array] = {}
    for name in ("lake_seq", "impression_id", "event_time_ms"):
        columns[name] = rows[name].combine_chunks()
    hashed = {name: pa.array(hash64(rows[name].combine_chunks())) for name in {group_by, *cluster_by} - {None}}
    if group_by is not None:
        columns["group"] = hashed[group_by]
    for column in cluster_by:
        columns[CLUSTER + column] = hashed[column]
    for index, task in enumerate(tasks):
        columns[f"label_{task}"] = rows[f"label_{task}"].combine_chunks()
        for model, logits in predicted.logits.items():
            columns[f"{model}_{task}"] = pa.array(logits[:, index], from_pandas=model == CHAMPION)  # NaN: null
        columns[f"teacher_{task}"] = rows[f"teacher_logit_{task}"].combine_chunks()
        if predicted.weights is not None:
            columns[f"weight_{task}"] = pa.array(predicted.weights[:, index])
    return pa.record_batch(columns)


REMEDY = (
    "figures are made of what was predicted before it was learned, which cannot be made again: put the file back from "
    "a copy of the run directory, or start a new run"
)


class PredictionLog:
    """Predictions of one student, in parts named by the first and last `lake_seq` they cover.

    keep_bytes  the oldest parts beyond so many bytes are deleted; `pruned.json` keeps how many rows they had. None: all
                parts stay
    """

    def __init__(self, directory: Path, keep_bytes: int | None = None) -> None:
        self._directory, self._keep_bytes = directory, keep_bytes
        self._waiting: list[pa.RecordBatch] = []

    def open(self, position: int) -> None:
        """Continue after `position`, deleting later parts."""
        make_folder(self._directory)
        self._waiting = []
        for part in self._directory.glob("*.parquet"):
            if _last(part) > position:
                part.unlink()
        erased = _erased(self._directory)
        kept = {name: rows for name, rows in erased.items() if _last(Path(name)) <= position}
        if kept != erased:
            write_json(self._directory / ERASED, kept)
        for leftover in self._directory.glob(".*"):
            leftover.unlink()

    def append(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)

    def take(self) -> list[pa.RecordBatch]:
        """Hand over the rows appended since the last call, for `write` in this thread or another."""
        taken, self._waiting = self._waiting, []
        return taken

    def write(self, taken: list[pa.RecordBatch]) -> None:
        """Write one part, durable on return; none without rows."""
        if not taken:
            return
        table = pa.Table.from_batches(taken)
        first, last = table["lake_seq"][0].as_py(), table["lake_seq"][-1].as_py()
        _write(self._directory / f"{first:014d}-{last:014d}.parquet", table)
        if self._keep_bytes is not None:
            self._prune(self._keep_bytes)

    def _prune(self, keep_bytes: int) -> None:
        """Delete the oldest parts beyond the size."""
        pruned, parts = _pruned(self._directory), _parts(self._directory)
        sizes = [part.stat().st_size for part in parts]
        going = 0
        while going < len(parts) - NEVER_PRUNED and sum(sizes[going:]) > keep_bytes:
            going += 1
        if going:
            before, upto = pruned["upto"], _last(parts[going - 1])
            given = _given(self._directory, parts[:going])
            rows = pruned["rows"] + sum(rows for name, rows in given.items() if before < _last(Path(name)) <= upto)
            pruned = {"rows": rows, "upto": upto}
            write_json(self._directory / PRUNED, pruned)
        for part in self._directory.glob("*.parquet"):
            if _last(part) <= pruned["upto"]:
                part.unlink()


def _write(part: Path, table: pa.Table) -> None:
    encoded = {field.name: ENCODINGS[field.type] for field in table.schema if field.type in ENCODINGS}
    others = [name for name in table.column_names if name not in encoded]
    with replacing(part) as out:
        pq.write_table(table, out, compression="zstd", use_dictionary=others, column_encoding=encoded)
    sync(part.parent)


def rewrite_predictions(directory: Path, gone: Callable[[pa.Table], np.ndarray], *, dry: bool = False) -> int:
    """Delete rows from all parts, which keep their names, those left without rows aside; how many rows each had is
    noted first. `gone`: rows -> mask (N,). Returns how many; `dry`: how many it would be. No process may write the
    log."""
    count = 0
    for part in sorted(directory.glob("*.parquet")):
        rows = _read(part)
        mask = gone(rows)
        count += int(mask.sum())
        if dry or not mask.any():
            continue
        write_json(directory / ERASED, {part.name: rows.num_rows} | _erased(directory))
        if mask.all():
            remove_file(part)
        else:
            _write(part, rows.filter(pa.array(~mask)))
    return count


def read_predictions(directory: Path) -> pa.Table | None:
    """All existing parts, in order of `lake_seq`; None if there are none."""
    parts = _parts(directory)
    return pa.concat_tables([_read(part) for part in parts], promote_options="default") if parts else None


def parts_of(directory: Path) -> tuple[int, list[Path]]:
    """The `lake_seq` up to which parts were deleted (-1 if none), and the remaining parts, in order."""
    return _pruned(directory)["upto"], _parts(directory)


def count_predictions(directory: Path) -> int:
    """Rows in all parts, from their footers only, plus deleted ones."""
    pruned = _pruned(directory)
    given = _given(directory, _parts(directory))
    return pruned["rows"] + sum(rows for name, rows in given.items() if _last(Path(name)) > pruned["upto"])


def _given(directory: Path, parts: Sequence[Path]) -> dict[str, int]:
    """Rows of parts as they were written, by name; with them those of parts of which nothing is left."""
    erased = _erased(directory)
    return {part.name: _rows(part) for part in parts if part.name not in erased} | erased


def _erased(directory: Path) -> dict[str, int]:
    """Rows that parts had before some were erased, by name."""
    return read_json(directory / ERASED) or {}


def _pruned(directory: Path) -> dict[str, int]:
    """Rows of the parts that were deleted, and their last `lake_seq`."""
    return read_json(directory / PRUNED) or {"rows": 0, "upto": NOTHING_YET}


def _parts(directory: Path) -> list[Path]:
    """In order of `lake_seq`, without those that are counted as pruned."""
    upto = _pruned(directory)["upto"]
    return [part for part in sorted(directory.glob("*.parquet")) if _last(part) > upto]


def _read(part: Path) -> pa.Table:
    with damage_named(part, REMEDY):
        return pq.read_table(part)


def _rows(part: Path) -> int:
    with damage_named(part, REMEDY):
        return int(pq.read_metadata(part).num_rows)


def _last(part: Path) -> int:
    return int(part.stem.split("-")[1])
