"""Predictions for the rows of a file, in constant memory, by the code that answers requests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from pipelines.serve.prediction_request import PredictionRequest
from pipelines.serve.version import ServedVersion
from pipelines.served_rows import TableColumns
from streaming.errors import BadInput
from streaming.sources.tables.conversion import as_parquet
from streaming.sources.tables.engine import TableEngine, in_words
from streaming.sources.tables.forms import files_at
from streaming.store.files import replacing

ROWS = 4096
PREDICTION = "prediction_"


class Scored(NamedTuple):
    """Counts: `rows` predicted, of which `refused` by reason are null."""

    rows: int
    refused: dict[str, int]


def score_file(
    version: ServedVersion,
    file: pq.ParquetFile,
    source: Path,
    target: Path,
    advance: Callable[[int], None] = lambda rows: None,
) -> Scored:
    """Write all columns of `file` (`rows_of` opens it at `source`), and `prediction_<task>` for each task. A row that
    ingestion would refuse has null there. `target` is complete, or not there.

    Raises BadInput where the kind of `target` is not known, or the file has predictions already.
    """
    rows, refused, now_ms = 0, Counter[str](), int(time.time() * 1000)
    writer: pq.ParquetWriter | csv.CSVWriter | None = None
    if target.suffix not in (".parquet", ".csv"):
        raise BadInput(f"{target}: predictions are written as .parquet or .csv")
    with replacing(target) as out, ExitStack() as writing:
        for batch in file.iter_batches(ROWS, use_threads=False):
            if there := [n for n in batch.schema.names if n.startswith(PREDICTION)]:
                raise BadInput(f"{source} has a column `{there[0]}` already; score the file that it was made of")
            asked = PredictionRequest(TableColumns(pa.Table.from_batches([batch])), {}, len(batch))
            answer = version.answer(version.completed(asked, now_ms))
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


@contextmanager
def rows_of(version: ServedVersion, source: Path, folder: Path) -> Iterator[pq.ParquetFile]:
    """Open the rows of a file of any form that `exfm init` takes; a copy in `folder` lives as long as the context.

    The columns of the version's run are read as its schema declares them.
    Raises BadInput where the file cannot be read, or a value is not what its column is declared to be.
    """
    schema = version.signature.schema
    declared: dict[str, str] = {column.name: column.type for column in schema.feature_columns}
    declared |= {"impression_id": schema.impression_id, "vertical": "string"}
    files = files_at(source)
    try:
        with TemporaryDirectory(dir=folder, prefix=".scoring-") as scratch:
            path = files.paths[0]
            if not files.is_one_parquet:
                path = Path(scratch) / "rows.parquet"
                with TableEngine(Path(scratch)) as engine:
                    list(as_parquet(engine, files, path, declared=declared))
            with pq.ParquetFile(path) as file:
                yield file
    except duckdb.Error as error:
        raise in_words(error, source) from None
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OSError) as error:
        raise BadInput(f"{source} cannot be read: {error}") from None


def _writer(out: object, target: Path, schema: pa.Schema) -> pq.ParquetWriter | csv.CSVWriter:
    if target.suffix == ".csv" and (lists := [field.name for field in schema if pa.types.is_nested(field.type)]):
        raise BadInput(f"{target}: column `{lists[0]}` holds lists, which CSV cannot; write .parquet")
    return csv.CSVWriter(out, schema) if target.suffix == ".csv" else pq.ParquetWriter(out, schema, compression="zstd")
