"""Bitwise comparison of a run with its retraining: predictions row by row, tensors byte by byte, and counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from exfm.errors import ModelError
from exfm.snapshots.stored import as_bytes
from exfm.snapshots.windows import TensorSource, whole_tensor
from pipelines.live.training.predictions import CHAMPION, PredictionLog, parts_of

COUNTS = (
    "rows",
    "learned",
    "trained_rows",
    "quarantine",
    "left_out_by_sampling",
    "rows_without_logit",
    "rows_since_metrics",
    "other_rows",
)
"""What a checkpoint says of the rows that were learned."""


class RowMismatch(NamedTuple):
    """The first row that differs between the log and the retraining: by column, the logged and the retrained value,
    None where one of the two has no such row. `rows`: how many differ in all."""

    lake_seq: int
    impression_id: Any
    columns: dict[str, tuple[Any, Any]]
    rows: int = 1


class TensorMismatch(NamedTuple):
    """A tensor that differs between the checkpoint and the retraining. `at`: its first differing element. `problem`:
    why elements cannot be compared, where the tensor cannot be read or has another shape."""

    name: str
    at: tuple[int, ...] = ()
    stored: Any = None
    found: Any = None
    differing: int = 0
    of: int = 0
    problem: str | None = None


class LoggedPredictions:
    """A student's logged predictions, part after part, in order."""

    def __init__(self, folder: Path) -> None:
        self.pruned_upto, parts = parts_of(folder)
        self._tables = iter(parts)
        self._waiting: pa.Table | None = None

    def upto(self, seq: int) -> pa.Table | None:
        """The rows up to this `lake_seq` that were not taken before."""
        while (self._waiting is None or self._waiting["lake_seq"][-1].as_py() <= seq) and (
            part := next(self._tables, None)
        ):
            read = pq.read_table(part)
            tables = [read] if self._waiting is None else [self._waiting, read]
            self._waiting = pa.concat_tables(tables, promote_options="default")  # not all parts have a champion
        if self._waiting is None:
            return None
        count = int(np.searchsorted(self._waiting["lake_seq"].to_numpy(), seq, side="right"))
        taken, rest = self._waiting.slice(0, count), self._waiting.slice(count)
        self._waiting = rest if rest.num_rows else None
        return taken if count else None


class ComparedLog(PredictionLog):
    """A prediction log of the retraining that compares instead of writing. `before`: rows from this one on cannot be
    compared, since rows that were learned there are erased; None: all can.

    compared  rows compared so far
    unlogged  rows that could not be: their logged predictions were pruned
    mismatch  the first row that differs; None while none does
    """

    def __init__(self, logged: LoggedPredictions, before: int | None = None, batch_rows: int = 0) -> None:
        super().__init__(Path())
        self._logged, self._before, self._batch_rows = logged, before, batch_rows
        self._last: list[pa.RecordBatch] = []
        self.compared = self.unlogged = 0
        self.mismatch: RowMismatch | None = None

    def open(self, position: int) -> None:
        self._waiting = []

    def write(self, taken: list[pa.RecordBatch]) -> None:
        taken = [*self._last, *map(_without_champion, taken)]
        if not taken:
            return
        found = pa.Table.from_batches(taken).combine_chunks()
        if self._before is not None:  # the last batch is short here, and was whole there: bits differ by that
            compared = max(0, found.num_rows - self._batch_rows)
            found, self._last = found.slice(0, compared), found.slice(compared).to_batches()
            if not compared:
                return
        seq = found["lake_seq"].to_numpy()
        kept = int(np.searchsorted(seq, self._logged.pruned_upto, side="right"))
        self.unlogged += kept
        found = found.slice(kept)
        if self._before is not None:
            found = found.slice(0, int(np.searchsorted(found["lake_seq"].to_numpy(), self._before)))
        if not found.num_rows:
            return
        logged = self._logged.upto(int(found["lake_seq"][-1].as_py()))
        self.compared += found.num_rows
        mismatch = _first_mismatch(found.schema.empty_table() if logged is None else logged.combine_chunks(), found)
        if mismatch is not None:
            before = self.mismatch
            self.mismatch = mismatch if before is None else before._replace(rows=before.rows + mismatch.rows)


def _without_champion(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch without its champion's logits: who that is, people decide too; the registry's tensors are compared."""
    return batch.drop_columns([name for name in batch.schema.names if name.startswith(f"{CHAMPION}_")])


def _first_mismatch(logged: pa.Table, found: pa.Table) -> RowMismatch | None:
    """The first row that differs; None where the two tables are equal."""
    in_log, in_found = (set(table["lake_seq"].to_pylist()) for table in (logged, found))
    if in_log != in_found:
        seq = min(in_log ^ in_found)
        table = logged if seq in in_log else found
        row = table.slice(table["lake_seq"].to_pylist().index(seq), 1)
        presence = ("there", None) if seq in in_log else (None, "there")
        return RowMismatch(seq, row["impression_id"][0].as_py(), {"the row itself": presence}, len(in_log ^ in_found))
    columns = [name for name in found.schema.names if name in logged.schema.names]
    differs = {name: unequal(logged[name], found[name]) for name in columns}
    rows = np.logical_or.reduce(list(differs.values()))
    if not rows.any():
        return None
    first = int(np.flatnonzero(rows)[0])
    at = {n: (logged[n][first].as_py(), found[n][first].as_py()) for n in columns if differs[n][first]}
    seq, impression = (found[name][first].as_py() for name in ("lake_seq", "impression_id"))
    return RowMismatch(seq, impression, at, int(rows.sum()))


def unequal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    """Mask (N,) bool of bitwise differences between two columns.

    >>> unequal(pa.chunked_array([[1.0, 0.0, None]]), pa.chunked_array([[1.0, -0.0, None]])).tolist()
    [False, True, False]
    """
    one, other = one.combine_chunks(), other.combine_chunks()
    known = [column.is_valid().to_numpy(zero_copy_only=False) for column in (one, other)]
    if pa.types.is_floating(one.type):
        bits = [column.fill_null(0).to_numpy().view(f"u{column.type.bit_width // 8}") for column in (one, other)]
        return np.asarray((known[0] != known[1]) | (known[0] & known[1] & (bits[0] != bits[1])))
    values = [np.asarray(column.to_pylist(), dtype=object) for column in (one, other)]
    return np.asarray(values[0] != values[1], dtype=bool)


def tensor_mismatches(
    stored: Mapping[str, TensorSource], found: Mapping[str, Tensor], names: Sequence[str]
) -> Iterator[TensorMismatch]:
    """Tensors among `names` that differ, in order."""
    for name in names:
        if name not in stored or name not in found:
            where = "checkpoint" if name in stored else "retraining"
            yield TensorMismatch(name, problem=f"only the {where} has it")
            continue
        try:
            theirs = whole_tensor(stored[name])
        except ModelError as error:
            yield TensorMismatch(name, problem=str(error))
            continue
        if (mismatch := _compared(name, theirs, found[name])) is not None:
            yield mismatch


def _compared(name: str, theirs: Tensor, ours: Tensor) -> TensorMismatch | None:
    if (theirs.dtype, theirs.shape) != (ours.dtype, ours.shape):
        shapes = " and ".join(f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (theirs, ours))
        return TensorMismatch(name, problem=f"stored and found are {shapes}")
    a, b = (as_bytes(tensor.contiguous()) for tensor in (theirs, ours))
    if torch.equal(a, b):
        return None
    places = (a != b).view(-1, theirs.element_size()).any(1).nonzero().flatten()
    first = int(places[0])
    at = tuple(int(i) for i in np.unravel_index(first, tuple(theirs.shape))) if theirs.dim() else ()
    values = (theirs.reshape(-1)[first].item(), ours.reshape(-1)[first].item())
    return TensorMismatch(name, at, *values, differing=len(places), of=theirs.numel())


def count_mismatches(stored: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Counts that differ, by name: (stored, found)."""
    found = json.loads(json.dumps(found))
    named = [name for name in COUNTS if name in stored]
    return {name: (stored[name], found.get(name)) for name in named if stored[name] != found.get(name)}
