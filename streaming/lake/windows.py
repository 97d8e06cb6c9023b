"""Windows of the lake: ranges of `lake_seq`, decoded once for all cursors of this process that read near each other.

A *cursor* is a query (columns and rows) and the position up to which it was read. A window is read for the cursor that
needs it together with all cursors near it: the columns that any of them asks for, the rows that any of them matches,
and one boolean column per query that says which rows are its own. A cursor that matches few rows advances faster, so
cursors up to `BEHIND` windows behind count as near, and windows are kept for them while there is room. A cursor far
from all others (a backfill) reads its own query alone, and costs the others nothing.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.position import NOTHING_YET

BEHIND = 4
"""How many windows a cursor may be behind another one that reads for both."""


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
        """Condition of a matching row; None if every row matches."""
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
    """Several queries (at least one), read together.

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
        """True if the queries match different rows."""
        return len(self._rows) > 1

    @property
    def filter(self) -> pc.Expression | None:
        """Condition of rows that any query matches, apart from their vertical; None for every row."""
        if not self.mixed:
            return self._rows[0].filter
        each = [condition for query in self._rows if (condition := query.condition) is not None]
        return functools.reduce(operator.or_, each) if len(each) == len(self._rows) else None

    @property
    def projection(self) -> dict[str, pc.Expression]:
        """Columns to read, and a boolean column for every condition."""
        found = {name: pc.field(name) for name in self.columns}
        for n, query in enumerate(self._rows if self.mixed else ()):
            if (condition := query.condition) is not None:
                found[_mask(n)] = condition
        return found

    def empty(self, schema: pa.Schema) -> pa.Table:
        """A table of `projection` without rows; `schema` is the lake's."""
        fields = [
            schema.field(name) if name in self.columns else pa.field(name, pa.bool_()) for name in self.projection
        ]
        return pa.schema(fields).empty_table()

    def answers(self, query: Query) -> bool:
        """True if the combined read contains everything that `query` needs."""
        return set(query.read) <= set(self.columns) and any(query.same_rows(one) for one in self._rows)

    def mask_of(self, query: Query) -> str | None:
        """Name of the boolean column that marks the rows matching `query`; None for all rows."""
        if not self.mixed or query.condition is None:
            return None
        return next(_mask(n) for n, one in enumerate(self._rows) if query.same_rows(one))


def _mask(number: int) -> str:
    return f"of {number}"


class Window(NamedTuple):
    """All rows of a query with low < lake_seq <= high, in order; `seq`: their `lake_seq`."""

    query: CombinedQuery
    low: int
    high: int
    rows: pa.Table
    seq: np.ndarray

    def continues(self, query: Query, position: int) -> bool:
        """True if the window answers `query` for the rows after `position`."""
        return self.low <= position < self.high and self.query.answers(query)

    def between(self, query: Query, after: int, upto: int) -> pa.Table:
        """The rows that `query` matches with after < lake_seq <= upto."""
        first, end = np.searchsorted(self.seq, [after, upto], side="right").tolist()
        rows, mask = self.rows.slice(first, end - first), self.query.mask_of(query)
        return (rows if mask is None else rows.filter(rows[mask])).select(query.read)


class Cursor:
    """A query, its read position, and the window with the rows after it."""

    def __init__(self, query: Query) -> None:
        self.query, self.position = query, NOTHING_YET
        self.window: Window | None = None


class Windows:
    """The windows of a reader. A cursor keeps its last window; up to `most_bytes` of others are kept for cursors that
    reach them later."""

    def __init__(self, most_bytes: int = 0) -> None:
        self._most_bytes = most_bytes
        self._cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()
        self._kept: list[Window] = []  # in the order in which they were read

    def cursor(self, query: Query) -> Cursor:
        """Make a cursor that shares windows with the reader's others while it is referenced."""
        cursor = Cursor(query)
        self._cursors.add(cursor)
        return cursor

    @property
    def held(self) -> list[Window]:
        """All windows in memory, each once."""
        every = [*self._kept, *(c.window for c in list(self._cursors) if c.window is not None)]
        return list({id(window): window for window in every}.values())

    def is_shared(self, cursor: Cursor) -> bool:
        """True for a cursor that shares windows with others (made by `cursor`)."""
        return cursor in self._cursors

    def find(self, cursor: Cursor) -> Window | None:
        """A window in memory that holds the cursor's next rows; None if there is none."""
        for window in (cursor.window, *reversed(self._kept)):
            if window is not None and window.continues(cursor.query, cursor.position):
                cursor.window = window
                return window
        return None

    def combined(self, cursor: Cursor, width: int) -> CombinedQuery:
        """The query of the cursor combined with those of nearby cursors: less than a window's `width` ahead of it,
        or `BEHIND` widths behind. A cursor that is not shared reads its own query alone."""
        near = list(self._cursors) if self.is_shared(cursor) else []
        near = [c for c in near if -BEHIND * width < c.position - cursor.position < width and c is not cursor]
        return CombinedQuery([cursor.query, *(other.query for other in near)])

    def keep(self, window: Window, cursor: Cursor, width: int) -> None:
        """Cache a window that was read for a cursor. Earlier windows stay while a cursor that is less than `BEHIND`
        widths behind them still has to pass; cursors farther behind read anew."""
        cursor.window = window
        if not self._most_bytes or not self.is_shared(cursor):
            return
        positions = [other.position for other in list(self._cursors)]
        wanted = (w for w in self._kept if any(w.low - BEHIND * width < at < w.high for at in positions))
        self._kept = [*wanted, window]
        while self._kept and sum(kept.rows.nbytes for kept in self._kept) > self._most_bytes:
            del self._kept[0]
