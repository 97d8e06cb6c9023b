"""Profile of every column at the end of a run: from the newest rows of the lake, a window at a time, and from the
counts of its dead letters."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.profile.column import ColumnProfile, refused_by_column, values_in
from streaming.lake.reader import LakeReader

MOST_ROWS = 1_000_000
"""Of a longer lake, columns are those of its newest rows; so many distinct values are counted, too."""

LONGEST_TEXT = 80


def columns_read(lake: LakeReader, refused: Mapping[str, int], most_rows: int = MOST_ROWS) -> list[ColumnProfile]:
    """Profile the columns, in the order of the schema. `refused`: dead letters of impressions by reason. An
    impression counts once, however many settlement groups it has a row in."""
    names, group = lake.schema.impression.names, lake.schema.groups[0].name
    columns = {name: _Growing(lake.schema.impression.field(name)) for name in names}
    after = max(lake.first_lake_seq, lake.last_lake_seq + 1 - most_rows) - 1
    while after < lake.last_lake_seq:
        read = lake.read(
            after, limit_rows=lake.chunk_rows, columns=[*names, "lake_seq"], filter=pc.field("settlement") == group
        )
        after = read.complete_upto
        for name, column in columns.items():
            column.add(read.table[name])
    by_column = refused_by_column(refused)
    return [column.seen(by_column[name]) for name, column in columns.items()]


class _Growing:
    def __init__(self, field: pa.Field) -> None:
        self._field, self._rows, self._nulls = field, 0, 0
        inside = field.type.value_type if pa.types.is_list(field.type) else field.type
        self._distinct: pa.Array | None = pa.array([], inside)
        self._edges = pa.array([], inside)

    def add(self, column: pa.ChunkedArray) -> None:
        missing, values = values_in(column)
        self._rows, self._nulls = self._rows + len(column), self._nulls + missing
        edges = pc.min_max(values)
        self._edges = pa.array([*self._edges.to_pylist(), edges["min"].as_py(), edges["max"].as_py()], values.type)
        if self._distinct is not None:
            self._distinct = pc.unique(pa.concat_arrays([self._distinct, pc.unique(values).drop_null()]))
            if len(self._distinct) > MOST_ROWS:
                self._distinct = None

    def seen(self, refused: int) -> ColumnProfile:
        low, high = pc.min_max(self._edges).as_py().values()
        distinct = None if self._distinct is None else len(self._distinct)
        kind = str(self._field.type)
        return ColumnProfile(self._field.name, kind, self._rows, self._nulls, distinct, _cut(low), _cut(high), refused)


def _cut(value: object) -> object:
    return value[:LONGEST_TEXT] if isinstance(value, str) else value
