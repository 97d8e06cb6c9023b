"""A scan of the lake that several cursors share: what they read near each other is decoded once.

A *cursor* is a query (columns and rows) and the position up to which it was read. A *chunk* is a range of `lake_seq`,
read for the cursor that needs it together with all cursors near it: the columns that any of them asks for, the rows
that any of them matches, and one boolean column per query that says which rows are its own. A cursor that matches few
rows advances faster, so cursors up to `BEHIND` chunks behind count as near, and chunks are kept for them while there is
room. A cursor far from all others (a backfill) reads its own query alone, and costs the others nothing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.position import NOTHING_YET

BEHIND = 4
"""How many chunks a cursor may be behind another one that reads for both."""


class Query(NamedTuple):
    """Rows and columns that a cursor reads."""

    columns: list[str]
    verticals: set[str] | None
    filter: pc.Expression | None

    @property
    def read(self) -> list[str]:
        return list(dict.fromkeys([*self.columns, "lake_seq"]))

    @property
    def condition(self) -> pc.Expression | None:
        """The condition that a matching row fulfils; None: every row matches."""
        if self.verticals is None:
            return self.filter
        own = pc.field("vertical").isin(sorted(self.verticals))
        return own if self.filter is None else own & self.filter

    def same(self, other: Query) -> bool:
        return self.columns == other.columns and self.same_rows(other)

    def same_rows(self, other: Query) -> bool:
        if self.verticals != other.verticals:
            return False
        if self.filter is None or other.filter is None:
            return self.filter is other.filter
        return bool(self.filter.equals(other.filter))


class CombinedQuery:
    """Several queries (at least one), read as one.

    >>> news, every = Query(["user_id"], {"news"}, None), Query(["bid"], None, None)
    >>> both = CombinedQuery([news, every])
    >>> both.columns, both.verticals, both.mask_of(news), both.mask_of(every)
    (['user_id', 'lake_seq', 'bid'], None, 'of 0', None)
    """

    def __init__(self, queries: Sequence[Query]) -> None:
        self.columns = list(dict.fromkeys(name for query in queries for name in query.read))
        # One query for each distinct set of rows.
        self._rows = [q for n, q in enumerate(queries) if not any(q.same_rows(before) for before in queries[:n])]
        verticals = [query.verticals for query in self._rows]
        self.verticals = None if None in verticals else set[str]().union(*(some or () for some in verticals))

    @property
    def mixed(self) -> bool:
        """True where the queries match different rows."""
        return len(self._rows) > 1

    @property
    def filter(self) -> pc.Expression | None:
        """The condition of rows that any query matches, apart from their vertical; None: every row."""
        if not self.mixed:
            return self._rows[0].filter
        each = [condition for query in self._rows if (condition := query.condition) is not None]
        return functools.reduce(operator.or_, each) if len(each) == len(self._rows) else None

    @property
    def projection(self) -> dict[str, pc.Expression]:
        """Columns to read, and a boolean column for every condition."""
        columns = {name: pc.field(name) for name in self.columns}
        for n, query in enumerate(self._rows if self.mixed else ()):
            if (condition := query.condition) is not None:
                columns[_mask(n)] = condition
        return columns

    def empty(self, schema: pa.Schema) -> pa.Table:
        """A table of `projection` without rows; `schema`: of the lake."""
        fields = [
            schema.field(name) if name in self.columns else pa.field(name, pa.bool_()) for name in self.projection
        ]
        return pa.schema(fields).empty_table()

    def answers(self, query: Query) -> bool:
        """True where everything that `query` asks for is among what is read."""
        return set(query.read) <= set(self.columns) and any(query.same_rows(one) for one in self._rows)

    def mask_of(self, query: Query) -> str | None:
        """The boolean column that says which rows `query` matches; None: all of them."""
        if not self.mixed or query.condition is None:
            return None
        return next(_mask(n) for n, one in enumerate(self._rows) if query.same_rows(one))


def _mask(number: int) -> str:
    return f"of {number}"


class ScannedChunk(NamedTuple):
    """All rows of a query with low < lake_seq <= high, in order; `seq`: their `lake_seq`."""

    query: CombinedQuery
    low: int
    high: int
    rows: pa.Table
    seq: np.ndarray

    def continues(self, query: Query, position: int) -> bool:
        """True where it answers `query` for the rows that follow `position`."""
        return self.low <= position < self.high and self.query.answers(query)

    def between(self, query: Query, after: int, upto: int) -> pa.Table:
        """The rows that `query` matches with after < lake_seq <= upto."""
        first, end = np.searchsorted(self.seq, [after, upto], side="right").tolist()
        rows, mask = self.rows.slice(first, end - first), self.query.mask_of(query)
        return (rows if mask is None else rows.filter(rows[mask])).select(query.read)


class Cursor:
    """A query, the position up to which it was read, and the chunk that holds what follows. Its scan owns it, unless it
    was made apart: then it shares no chunks."""

    def __init__(self, query: Query) -> None:
        self.query, self.position = query, NOTHING_YET
        self.chunk: ScannedChunk | None = None


Load: TypeAlias = Callable[[CombinedQuery, int], ScannedChunk]
"""Reads the chunk of a query that begins after a `lake_seq`."""


class Scan:
    """Cursors that read a lake together, and the chunks in memory. A cursor holds the chunk that it reads; up to
    `most_bytes` of others are kept for cursors that reach them later. One thread at a time.

    chunk_rows  the width of a chunk, in `lake_seq`
    """

    def __init__(self, load: Load, chunk_rows: int, most_bytes: int = 0) -> None:
        self._load, self._width, self._most_bytes = load, chunk_rows, most_bytes
        self._cursors: list[Cursor] = []
        self._chunks: list[ScannedChunk] = []  # in the order in which they were read

    def open(self, query: Query) -> Cursor:
        """A cursor that shares chunks with the others, until it is closed."""
        cursor = Cursor(query)
        self._cursors.append(cursor)
        return cursor

    def close(self, cursor: Cursor) -> None:
        """Let go of a cursor, and of chunks that were kept for it alone. A second time does nothing."""
        cursor.chunk = None
        if cursor in self._cursors:
            self._cursors.remove(cursor)
            self._forget()

    @property
    def held(self) -> list[ScannedChunk]:
        """All chunks in memory, each once."""
        every = [*self._chunks, *(c.chunk for c in list(self._cursors) if c.chunk is not None)]
        return list({id(chunk): chunk for chunk in every}.values())

    def read(self, cursor: Cursor, upto: int, limit_rows: int) -> list[pa.Table]:
        """Rows that the cursor's query matches, from its position on, which moves to where they are complete.

        At most `limit_rows`, none beyond `upto`: of a cursor of this scan those at hand, so that it stays near the
        others, of any other as many as there are. No table only where the cursor stands at `upto`.
        """
        query, tables, missing, whole = cursor.query, list[pa.Table](), limit_rows, cursor not in self._cursors
        while cursor.position < upto:
            chunk = self._chunk(cursor)
            end = min(chunk.high, upto)
            if chunk.query.mixed:  # rows of other cursors are passed over: a part at a time
                end = min(end, cursor.position + limit_rows)
            rows = chunk.between(query, cursor.position, end)
            if rows.num_rows >= missing:
                rows = rows.slice(0, missing)
                end = rows["lake_seq"][-1].as_py()
            missing -= rows.num_rows
            if rows.num_rows or not tables:
                tables.append(rows.select(query.columns))
            cursor.position = end
            if not missing or (missing < limit_rows and not whole):
                break
        return tables

    def _chunk(self, cursor: Cursor) -> ScannedChunk:
        """The chunk with the rows that the cursor reads next: one in memory where that holds them, so that many small
        reads in a row decode a file once."""
        shared = cursor in self._cursors
        for chunk in (cursor.chunk, *(reversed(self._chunks) if shared else ())):
            if chunk is not None and chunk.continues(cursor.query, cursor.position):
                cursor.chunk = chunk
                return chunk
        near = [c for c in self._cursors if -BEHIND * self._width < c.position - cursor.position < self._width]
        others = [other.query for other in near if shared and other is not cursor]
        cursor.chunk = chunk = self._load(CombinedQuery([cursor.query, *others]), cursor.position)
        if shared and self._most_bytes:
            self._forget()
            self._chunks.append(chunk)
            while self._chunks and sum(each.rows.nbytes for each in self._chunks) > self._most_bytes:
                del self._chunks[0]
        return chunk

    def _forget(self) -> None:
        """Let go of chunks that no cursor less than `BEHIND` widths behind them still has to pass. Cursors farther
        behind read anew."""
        positions = [cursor.position for cursor in self._cursors]
        self._chunks = [c for c in self._chunks if any(c.low - BEHIND * self._width < at < c.high for at in positions)]
