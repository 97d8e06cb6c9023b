"""Recording of the synthetic stream as Parquet, to be read and played.

    OUT_DIR/impressions.parquet   in order of event time, each impression once
    OUT_DIR/feedback.parquet      in order of event time, each event once
    OUT_DIR/truth/                the true probabilities of every impression

Duplicates, jitter and broken records are faults of transport: a recording has none. The best NE that a model can
reach, per vertical with probabilities p of weights v (1 for clicks, the click probability for conversions):

    optimum NE = Σ v h(p) / (Σ v · h(Σ v p / Σ v)),    h(p) = −p log p − (1 − p) log(1 − p)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming.errors import BadInput
from streaming.sources.chunk import InOrder
from streaming.sources.synthetic.stream import GeneratedStream
from streaming.sources.synthetic.truth import TruthWriter
from streaming.store.files import replacing

ROW_GROUP_ROWS = 131_072


class Optimum:
    """Sums over the truth, by vertical and task.

    >>> truth = dict(vertical=["a", "a"], p_settled_ctr=[0.5, 0.5], p_settled_cvr=[0.0, 0.0])
    >>> optimum = Optimum(["ctr", "cvr"]); optimum.add(pa.RecordBatch.from_pydict(truth))
    >>> optimum.by_vertical()["a"]
    {'impressions': 2, 'ctr': {'rate': 0.5, 'optimum_ne': 1.0}, 'cvr': {'rate': 0.0, 'optimum_ne': None}}
    """

    def __init__(self, tasks: list[str]) -> None:
        self._tasks = tasks
        self._rows: dict[str, int] = defaultdict(int)
        self._sums: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(3))

    def add(self, truth: pa.RecordBatch) -> None:
        columns = [truth[f"p_settled_{task}"].to_numpy().astype(np.float64) for task in self._tasks]
        for vertical in pc.unique(truth["vertical"]).to_pylist():
            here = pc.equal(truth["vertical"], vertical).to_numpy(zero_copy_only=False)
            self._rows[vertical] += int(here.sum())
            for task, column in zip(self._tasks, columns, strict=True):
                p = column[here]
                v = np.ones(len(p)) if task == "ctr" else columns[0][here]
                self._sums[vertical, task] += v.sum(), (v * p).sum(), (v * _entropy(p)).sum()

    def by_vertical(self) -> dict[str, dict[str, Any]]:
        return {
            vertical: {"impressions": rows} | {task: self._of(vertical, task) for task in self._tasks}
            for vertical, rows in sorted(self._rows.items())
        }

    def _of(self, vertical: str, task: str) -> dict[str, float | None]:
        weight, positives, loss = self._sums[vertical, task].tolist()
        rate = positives / weight if weight else None
        bound = weight * float(_entropy(np.array(rate))) if rate is not None else 0.0
        return {"rate": rate, "optimum_ne": loss / bound if bound else None}


def _entropy(p: np.ndarray) -> np.ndarray:
    inside = np.clip(p, 1e-12, 1 - 1e-12)
    return np.where((p > 0) & (p < 1), -inside * np.log(inside) - (1 - inside) * np.log(1 - inside), 0.0)


class _File:
    """Rows in order of event time, in row groups of `ROW_GROUP_ROWS`."""

    def __init__(self, file: BinaryIO, in_order: InOrder, schema: pa.Schema) -> None:
        self._in_order, self.rows = in_order, 0
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._have = 0

    def push(self, rows: pa.RecordBatch, watermark_ms: int) -> None:
        ordered = self._in_order.push(rows, watermark_ms)
        self._waiting.append(ordered)
        self._have += ordered.num_rows
        self.rows += ordered.num_rows
        if self._have >= ROW_GROUP_ROWS:
            self._write()

    def finish(self) -> None:
        end = np.iinfo(np.int64).max
        self.push(pa.RecordBatch.from_pylist([], self._writer.schema), int(end))
        self._write()
        self._writer.close()

    def close(self) -> None:
        self._writer.close()

    def _write(self) -> None:
        if self._have:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._have = [], 0


def record(
    stream: GeneratedStream, directory: Path, *, chunk_rows: int, advance: Callable[[int], None] = lambda rows: None
) -> dict[str, Any]:
    """Write the stream; returns counts and optima. After an exception, incomplete files are removed.

    Raises BadInput where `directory` holds a recording, or is not writable.
    """
    paths = [directory / "impressions.parquet", directory / "feedback.parquet"]
    if present := [path.name for path in paths if path.exists()]:
        raise BadInput(
            f"{directory} holds {' and '.join(present)}; a recording is never overwritten. Remove it, or choose "
            "another folder"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        truth = TruthWriter(directory / "truth", replace=True)
    except OSError as error:
        raise BadInput(f"cannot write into {directory} ({error.strerror}); choose another one") from None
    schemas, keys = (stream.schema.impression, stream.schema.feedback), (["impression_id"], ["impression_id", "task"])
    optimum = Optimum([task.name for task in stream.schema.tasks])
    generated = malformed = 0
    with ExitStack() as stack:
        # Impressions first: they are moved into place last, so where they are, everything is.
        parts = [stack.enter_context(replacing(path)) for path in paths]
        files = [_File(part, InOrder(s, k), s) for part, s, k in zip(parts, schemas, keys, strict=True)]
        for file in files:
            stack.callback(file.close)
        for chunk in stream.chunks(chunk_rows):
            for file, rows in zip(files, (chunk.impressions, chunk.feedback), strict=True):
                file.push(rows, chunk.watermark_ms)
            malformed += len(chunk.malformed)
            if chunk.truth is not None and chunk.truth.num_rows:
                truth.write(chunk.truth)
                optimum.add(chunk.truth)
                generated += chunk.truth.num_rows
                advance(generated)
        for file in files:
            file.finish()
        truth.close()
    return {
        "impressions": files[0].rows,
        "feedback": files[1].rows,
        "left_out_malformed": malformed,
        "verticals": optimum.by_vertical(),
    }
