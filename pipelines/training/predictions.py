"""Every prediction made before its row was learned, spilled to Parquet: what exact metrics are computed from.

A student writes a part at each of its checkpoints, so parts and weights always agree: after a crash the parts past the
checkpoint are dropped, and the rows come again.

Columns: lake_seq, impression_id, event_time_ms, and per task `label_`, `student_`, `no_teacher_`, `teacher_` (logits).
Where rows are weighted, `weight_` per task: how many rows of the stream this one stands for. Where figures are grouped
(`metrics.group_by`), `group`: the hash64 of that column.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from exfm.data import Batch
from exfm.step import StepResult
from streaming.disk import replacing, sync
from streaming.hashing import hash64


def predictions_of(
    tasks: Sequence[str],
    rows: pa.Table,
    batch: Batch,
    result: StepResult,
    twin: StepResult | None,
    *,
    weighted: bool,
    group_by: str | None,
) -> pa.RecordBatch:
    """A step's rows as they are logged."""
    columns: dict[str, pa.Array] = {}
    for name in ("lake_seq", "impression_id", "event_time_ms"):
        columns[name] = rows[name].combine_chunks()
    if group_by is not None:
        columns["group"] = pa.array(hash64(rows[group_by].combine_chunks()))
    for index, task in enumerate(tasks):
        columns[f"label_{task}"] = rows[f"label_{task}"].combine_chunks()
        columns[f"student_{task}"] = pa.array(result.logits[:, index])
        if twin is not None:
            columns[f"no_teacher_{task}"] = pa.array(twin.logits[:, index])
        columns[f"teacher_{task}"] = rows[f"teacher_logit_{task}"].combine_chunks()
        if weighted:
            columns[f"weight_{task}"] = pa.array(batch.label_weights[:, index].numpy())
    return pa.record_batch(columns)


class PredictionLog:
    """Predictions of one student, in parts named by the first and last `lake_seq` they cover."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._waiting: list[pa.RecordBatch] = []

    def open(self, position: int) -> None:
        """Take up after `position`: parts past it belong to a future that did not happen."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._waiting = []
        for part in self._directory.glob("*.parquet"):
            if int(part.stem.split("-")[1]) > position:
                part.unlink()
        for leftover in self._directory.glob(".*"):
            leftover.unlink()

    def append(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)

    def take(self) -> list[pa.RecordBatch]:
        """Hand over what was appended since the last time, to be given to `write`, here or in another thread."""
        taken, self._waiting = self._waiting, []
        return taken

    def write(self, taken: list[pa.RecordBatch]) -> None:
        """One part, on disk when this returns; none where nothing was taken."""
        if not taken:
            return
        table = pa.Table.from_batches(taken)
        first, last = table["lake_seq"][0].as_py(), table["lake_seq"][-1].as_py()
        with replacing(self._directory / f"{first:014d}-{last:014d}.parquet") as out:
            pq.write_table(table, out, compression="zstd")
        sync(self._directory)


def read_predictions(directory: Path) -> pa.Table | None:
    """All parts in order of `lake_seq`; None where there are none."""
    parts = sorted(directory.glob("*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts]) if parts else None


def count_predictions(directory: Path) -> int:
    """Rows in all parts, from their footers alone."""
    return sum(pq.read_metadata(part).num_rows for part in directory.glob("*.parquet"))
