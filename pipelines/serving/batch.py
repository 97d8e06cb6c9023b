"""Predictions for the rows of a file, in constant memory, by the code that answers requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pipelines.served_rows import TableColumns
from pipelines.serving.asked import Asked
from pipelines.serving.version import ServedVersion
from streaming.disk import replacing
from streaming.errors import BadInput

ROWS = 4096
PREDICTION = "prediction_"
FORMATS = {".parquet": "parquet", ".csv": "csv"}


class Scored(NamedTuple):
    """`rows` were predicted, of which `refused` by reason have null."""

    rows: int
    refused: dict[str, int]


def score_file(
    version: ServedVersion, source: Path, target: Path, advance: Callable[[int], None] = lambda rows: None
) -> Scored:
    """Write all columns of `source`, a Parquet or CSV file or a folder of Parquet files, and `prediction_<task>` for
    each task. A row that ingestion would refuse has null there. `target` is complete, or not there.

    Raises BadInput where the file cannot be read, or its kind is not known.
    """
    rows, refused = 0, Counter[str]()
    writer: pq.ParquetWriter | csv.CSVWriter | None = None
    if target.suffix not in FORMATS:
        raise BadInput(f"{target}: predictions are written as .parquet or .csv")
    with replacing(target) as out, ExitStack() as writing:
        for batch in _batches(source):
            if there := [n for n in batch.schema.names if n.startswith(PREDICTION)]:
                raise BadInput(f"{source} has a column `{there[0]}` already; score the file that it was made of")
            answer = version.answer(Asked(TableColumns(pa.Table.from_batches([batch])), {}, len(batch)))
            for t, task in enumerate(version.tasks):
                values = pa.array(answer.probabilities[:, t], from_pandas=True)
                batch = batch.append_column(PREDICTION + task, values)
            if writer is None:
                writer = writing.enter_context(_writer(out, target, batch.schema))
            writer.write_batch(batch)
            rows += len(batch)
            refused.update(why.reason for why in answer.refusals.values())
            advance(rows)
        if writer is None:
            raise BadInput(f"{source} has no rows")
    return Scored(rows, dict(refused))


def rows_in(source: Path) -> int | None:
    """How many rows there are, where that is known without reading them. Raises BadInput as `score_file` does."""
    with _readable(source):
        return _dataset(source).count_rows() if source.suffix != ".csv" else None


def _dataset(source: Path) -> ds.Dataset:
    if not source.exists():
        raise BadInput(f"there is no {source}")
    kind = "parquet" if source.is_dir() else FORMATS.get(source.suffix)
    if kind is None:
        raise BadInput(f"{source}: a file of rows is .parquet or .csv, or a folder of .parquet files")
    return ds.dataset(source, format=kind)


def _batches(source: Path) -> Iterator[pa.RecordBatch]:
    with _readable(source):
        for batch in _dataset(source).to_batches(batch_size=ROWS, use_threads=False):
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS)


@contextmanager
def _readable(source: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OSError) as error:
        raise BadInput(f"{source} cannot be read: {error}") from None


def _writer(out: object, target: Path, schema: pa.Schema) -> pq.ParquetWriter | csv.CSVWriter:
    if target.suffix == ".csv" and (lists := [field.name for field in schema if pa.types.is_nested(field.type)]):
        raise BadInput(f"{target}: column `{lists[0]}` holds lists, which CSV cannot; write .parquet")
    return csv.CSVWriter(out, schema) if target.suffix == ".csv" else pq.ParquetWriter(out, schema, compression="zstd")
