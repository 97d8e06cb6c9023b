"""True probabilities of every generated impression, stored apart from the stream: Parquet parts in one directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming.errors import BadInput
from streaming.hashing import hash64
from streaming.store.files import damage_named, make_folder, replacing, sync

if TYPE_CHECKING:
    import pyarrow.dataset as ds

TRUTH_SCHEMA = pa.schema(
    [
        pa.field("impression_id", pa.int64(), nullable=False),
        pa.field("event_time_ms", pa.int64(), nullable=False),
        pa.field("vertical", pa.string(), nullable=False),
        pa.field("p_ctr", pa.float32(), nullable=False),
        pa.field("p_settled_ctr", pa.float32(), nullable=False),
        pa.field("p_cvr", pa.float32(), nullable=False),
        pa.field("p_settled_cvr", pa.float32(), nullable=False),
        pa.field("click_delay_ms", pa.int64()),
        pa.field("cvr_delay_ms", pa.int64()),
        pa.field("click_lost", pa.bool_(), nullable=False),
        pa.field("cvr_lost", pa.bool_(), nullable=False),
    ]
)
"""`p_ctr`: of a click; `p_cvr`: of a conversion, given the click. `p_settled_<task>`: of the label that settles, that
is feedback inside the task's window and not lost; for cvr given that the click settled. `click_delay_ms` counts from
the impression, `cvr_delay_ms` from the click; null where the event does not happen. Lost events happen, unreported."""

ROWS_PER_PART = 262_144


class TruthWriter:
    """Writes truth in parts of `ROWS_PER_PART` rows, so that memory does not grow with the stream.

    A part appears whole, under its final name, or not at all. Raises BadInput where the directory already holds truth,
    unless `replace`, which removes it first.
    """

    def __init__(self, directory: str | Path, *, replace: bool = False) -> None:
        self._directory = Path(directory)
        make_folder(self._directory)
        present = sorted(self._directory.glob("part-*.parquet"))
        if present and not replace:
            raise BadInput(
                f"{self._directory} already holds {len(present)} parts of truth; give another directory, or replace it"
            )
        for part in present:
            part.unlink()
        self._parts, self._rows = 0, 0
        self._waiting: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows in `TRUTH_SCHEMA`."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        while self._rows >= ROWS_PER_PART:
            table = pa.Table.from_batches(self._waiting, TRUTH_SCHEMA)
            self._write_part(table.slice(0, ROWS_PER_PART))
            self._waiting = table.slice(ROWS_PER_PART).to_batches()
            self._rows -= ROWS_PER_PART

    def close(self) -> None:
        """Write what waits; all parts are durable on return."""
        if self._rows or not self._parts:
            self._write_part(pa.Table.from_batches(self._waiting, TRUTH_SCHEMA))
        self._waiting, self._rows = [], 0
        sync(self._directory)  # whoever finds the stream at its end does not write it again

    def _write_part(self, table: pa.Table) -> None:
        part = self._directory / f"part-{self._parts:06d}.parquet"
        with replacing(part) as file:
            pq.write_table(table, file, compression="zstd", use_dictionary=["vertical"])
        self._parts += 1

    def __enter__(self) -> TruthWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()


class Truth:
    """The true probability of each settled label, looked up by impression id."""

    def __init__(self) -> None:
        self._runs: list[_Sorted] = []

    def __len__(self) -> int:
        return sum(run.table.num_rows for run in self._runs)

    def add(self, table: pa.Table) -> None:
        """Add rows, with `impression_id` and `p_settled_<task>`, each id once. Runs of about one size are sorted
        together: a row is sorted log N times, however often is added."""
        while self._runs and self._runs[-1].table.num_rows <= table.num_rows:
            table = pa.concat_tables([self._runs.pop().table, table])
        hashes = hash64(table["impression_id"].combine_chunks())
        order = np.argsort(hashes, kind="stable")
        self._runs.append(_Sorted(hashes[order], order, table))

    def logits(self, ids: pa.Array, task: str) -> np.ndarray:
        """The logit of the probability, (N,) -> (N,); NaN where the impression or the task is unknown."""
        name, wanted, logits = f"p_settled_{task}", hash64(ids), np.full(len(ids), np.nan)
        for hashes, order, table in self._runs:
            if name not in table.schema.names or not len(hashes):
                continue
            # Where the sorted hashes would have it; beyond the last one the last is compared, and differs.
            at = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
            has = hashes[at] == wanted
            p = table[name].take(pa.array(order[at[has]])).to_numpy().astype(np.float64)
            with np.errstate(divide="ignore"):
                logits[has] = np.log(p) - np.log1p(-p)
        return logits


class _Sorted(NamedTuple):
    """Rows of the truth: their hashes in order, (N,), and which row each is of."""

    hashes: np.ndarray
    order: np.ndarray
    table: pa.Table


def load_truth(directory: Path, tasks: Sequence[str]) -> Truth | None:
    """Load the truth of `tasks` from `directory`; None if the directory does not exist."""
    if not directory.exists():
        return None
    columns = ["impression_id", *(f"p_settled_{task}" for task in tasks)]
    with damage_named(directory, "delete the folder, and figures are made without what is possible at best"):
        truth = Truth()
        truth.add(read_truth(directory).to_table(columns=columns))
    return truth


def read_truth(directory: str | Path) -> ds.Dataset:
    """The truth in `directory`, lazily, in order of the stream. Raises BadInput where there is none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with TruthWriter(directory) as writer:
    ...         writer.write(pa.RecordBatch.from_pylist([], TRUTH_SCHEMA))
    ...     read_truth(directory).count_rows()
    0
    """
    parts = sorted(Path(directory).glob("part-*.parquet"))
    if not parts:
        raise BadInput(f"no truth in {directory}: no file part-*.parquet; it is written by the generator of a stream")
    import pyarrow.dataset as ds  # imports pandas

    return ds.dataset([str(part) for part in parts], schema=TRUTH_SCHEMA)
