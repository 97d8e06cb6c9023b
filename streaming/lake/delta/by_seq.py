"""Rows of a table beside the lake, looked up by `lake_seq`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.errors import DataLost
from streaming.lake.delta.files import TableFiles


class RowsBySeq(NamedTuple):
    """Rows of a side table in the order of the `lake_seq` asked for; `missing`: the first of these without a row, and
    then `rows` is empty."""

    rows: pa.Table
    missing: int | None


def rows_by_seq(table: TableFiles, schema: pa.Schema, seq: np.ndarray, remedy: str) -> RowsBySeq:
    """The rows `seq`, (N,) ascending, with the columns of `schema`, of which one is `lake_seq`. Only files that may
    hold them are opened. Raises DataLost, which names the `remedy`, where one cannot be read."""
    import pyarrow.dataset as ds  # imports pandas

    if not len(seq):
        return RowsBySeq(schema.empty_table(), None)
    low, high = int(seq[0]), int(seq[-1])
    places = [str(table.place(f)) for f in table.files if f.first <= high and f.last >= low]
    inside = (pc.field("lake_seq") >= low) & (pc.field("lake_seq") <= high)
    try:
        values = ds.dataset(places, schema=schema, format="parquet").to_table(filter=inside)
    except (pa.ArrowException, OSError) as error:
        raise DataLost(f"{table.path} cannot be read ({error}); {remedy}") from error
    there = values["lake_seq"].to_numpy()
    order = np.argsort(there, kind="stable")
    at = np.searchsorted(there, seq, sorter=order)
    missing = (at == len(there)) | (there[order[np.minimum(at, len(there) - 1)]] != seq if len(there) else True)
    if missing.any():
        return RowsBySeq(schema.empty_table(), int(seq[int(np.argmax(missing))]))
    return RowsBySeq(values.take(pa.array(order[at])), None)
