"""A table of as-of features beside the lake: values by `lake_seq`, for rows that came without them.

It is made as a whole and put in place at once (streaming/lake/asof.py); a reader of the lake whose rows are to have
columns that the lake lacks takes them from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from streaming.errors import BadInput, DataLost
from streaming.lake.delta.by_seq import rows_by_seq
from streaming.lake.delta.files import NoTable, TableFiles
from streaming.schema import AsOf, RowSchema

ASOF_FEATURES = "asof_features"
"""Name of the table, in the folder around the lake."""

PARTITION_BY = ("settlement",)
"""Rows of a group lie in order of `lake_seq`; those of several groups, computed together, lie windows apart."""


def asof_schema(asof: AsOf) -> pa.Schema:
    """Columns of the table."""
    values = (pa.field(column.name, column.arrow_type, nullable=column.nullable) for column in asof.columns)
    return pa.schema([pa.field("lake_seq", pa.int64(), nullable=False), pa.field("settlement", pa.string()), *values])


class AsOfRange(NamedTuple):
    """Rows of a lake that have values.

    lake             its id
    first, last      `lake_seq`
    settled_ms       merge time before which rows have them; None: all rows of the lake up to `last`
    unknown          impressions that were shown and are not in the lake, as none of their labels became known: the
                     features do not count them; at most so many where `settled_ms` is set
    """

    lake: str
    first: int
    last: int
    settled_ms: int | None
    unknown: int


class AsOfTable:
    """The table in `folder`. Raises NoTable where there is none, DataLost where it is damaged."""

    def __init__(self, folder: Path) -> None:
        self._table = TableFiles(folder / ASOF_FEATURES)
        metadata = self._table.metadata() or {}
        try:
            self.asof = AsOf.model_validate(metadata["asof"])
            self.range = AsOfRange(**metadata["range"])
        except (KeyError, TypeError, ValidationError):
            raise DataLost(
                f"the table {self._table.path} does not say what it holds; run `exfm lake asof` again"
            ) from None

    @property
    def id(self) -> str:
        """The table's unique id: another after it was computed anew."""
        return self._table.id

    @property
    def path(self) -> Path:
        return self._table.path

    def rows(self, seq: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Values of the rows `seq`, (N,) ascending. Raises BadInput where one has none, DataLost for damaged files."""
        wanted = pa.schema([asof_schema(self.asof).field(name) for name in ("lake_seq", *columns)])
        found = rows_by_seq(self._table, wanted, seq, "run `exfm lake asof` again")
        if found.missing is not None:
            raise BadInput(self._without(found.missing))
        return found.rows

    def _without(self, seq: int) -> str:
        settled = self.range.settled_ms
        why = (
            f"it was computed for lake_seq {self.range.first:,} to {self.range.last:,}"
            if settled is None
            else f"rows shown from merge_time_ms {settled} on had not settled for every group when it was computed"
        )
        return (
            f"row lake_seq {seq:,} has no values in {self.path}: {why}; run `exfm lake asof` again, or read the lake "
            f"up to {seq - 1:,}"
        )


def side_columns(lake: Path, schema: RowSchema, lake_names: Sequence[str]) -> tuple[AsOfTable | None, list[str]]:
    """The table beside a lake, and the as-of columns of `schema` that are read from it: those that the lake lacks.
    Raises BadInput where no table has them."""
    names = [column.name for column in schema.asof.columns if column.name not in lake_names]
    if not names:
        return None, []
    remedy = f"compute it with `exfm lake asof {lake.parent.parent} --features FILE`"
    try:
        table = AsOfTable(lake.parent)
    except NoTable:
        raise BadInput(f"the lake {lake} has no column `{names[0]}`, an as-of feature; {remedy}") from None
    held: dict[str, Any] = {column.name: column for column in table.asof.columns}
    wanted = {column.name: column for column in schema.asof.columns}
    for name in names:
        if held.get(name) != wanted[name]:
            raise BadInput(
                f"neither the lake {lake} nor {table.path} has column `{name}` as asked for; {remedy}. The table has: "
                f"{', '.join(held)}"
            )
    return table, names
