"""Windows of the lake: stretches of `lake_seq`, decoded once for all that read near each other in this process.

Whoever reads has a *seat*: what it asks for, and how far it is. A window is read for the seat that needs it and for all
that stand within a window's width of it: with the columns that any of them asks for, the rows that any of them wants,
and a column per condition that says whose a row is. Those of fewer rows get on faster, so some that are behind count as
near, and what was read is kept for them while there is room. A seat that stands alone (a backfill, far from the live
ones) reads what it asked for and nothing else: none pays for another that is elsewhere.
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
"""How many windows one may be behind another that reads for both."""


class Ask(NamedTuple):
    """Which rows and columns."""

    columns: list[str]
    verticals: set[str] | None
    filter: pc.Expression | None

    @property
    def read(self) -> list[str]:
        return list(dict.fromkeys([*self.columns, "lake_seq"]))

    @property
    def condition(self) -> pc.Expression | None:
        """What a row has to be; None: any."""
        if self.verticals is None:
            return self.filter
        own = pc.field("vertical").isin(sorted(self.verticals))
        return own if self.filter is None else own & self.filter

    def same(self, other: Ask) -> bool:
        return self.columns == other.columns and self.same_rows(other)

    def same_rows(self, other: Ask) -> bool:
        if self.verticals != other.verticals:
            return False
        if self.filter is None or other.filter is None:
            return self.filter is other.filter
        return bool(self.filter.equals(other.filter))


class Joint:
    """What several ask for, as one question. `asks`: at least one.

    >>> news, all_of_it = Ask(["user_id"], {"news"}, None), Ask(["bid"], None, None)
    >>> both = Joint([news, all_of_it])
    >>> both.columns, both.verticals, both.mask_of(news), both.mask_of(all_of_it)
    (['user_id', 'lake_seq', 'bid'], None, 'of 0', None)
    """

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.columns = list(dict.fromkeys(name for ask in asks for name in ask.read))
        self._rows = [ask for n, ask in enumerate(asks) if not any(ask.same_rows(before) for before in asks[:n])]
        verticals = [ask.verticals for ask in self._rows]
        self.verticals = None if None in verticals else set[str]().union(*(some or () for some in verticals))

    @property
    def mixed(self) -> bool:
        """Whether the rows of one are not those of all."""
        return len(self._rows) > 1

    @property
    def filter(self) -> pc.Expression | None:
        """What a row has to be for any of them, its vertical aside; None: anything."""
        if not self.mixed:
            return self._rows[0].filter
        each = [condition for ask in self._rows if (condition := ask.condition) is not None]
        return functools.reduce(operator.or_, each) if len(each) == len(self._rows) else None

    @property
    def projection(self) -> dict[str, pc.Expression]:
        """Columns to read, with one for every condition."""
        found = {name: pc.field(name) for name in self.columns}
        for n, ask in enumerate(self._rows if self.mixed else ()):
            if (condition := ask.condition) is not None:
                found[_mask(n)] = condition
        return found

    def empty(self, schema: pa.Schema) -> pa.Table:
        """No row of all that is read; `schema`: of the lake."""
        fields = [
            schema.field(name) if name in self.columns else pa.field(name, pa.bool_()) for name in self.projection
        ]
        return pa.schema(fields).empty_table()

    def serves(self, ask: Ask) -> bool:
        return set(ask.read) <= set(self.columns) and any(ask.same_rows(one) for one in self._rows)

    def mask_of(self, ask: Ask) -> str | None:
        """The column that says which rows are wanted; None: all of them are."""
        if not self.mixed or ask.condition is None:
            return None
        return next(_mask(n) for n, one in enumerate(self._rows) if ask.same_rows(one))


def _mask(number: int) -> str:
    return f"of {number}"


class Window(NamedTuple):
    """All the rows asked for with low < lake_seq <= high, in order."""

    of: Joint
    low: int
    high: int
    rows: pa.Table

    def holds(self, ask: Ask, place: int) -> bool:
        """Whether it has the row after `place`, where one that is asked for comes there."""
        return self.low <= place < self.high and self.of.serves(ask)

    def between(self, ask: Ask, after: int, upto: int) -> pa.Table:
        seq = self.rows["lake_seq"].to_numpy()
        first, end = np.searchsorted(seq, [after, upto], side="right")
        rows, mask = self.rows.slice(first, end - first), self.of.mask_of(ask)
        return (rows if mask is None else rows.filter(rows[mask])).select(ask.read)


class Seat:
    """One that reads: what it asks for, and the position up to which it has read."""

    def __init__(self, ask: Ask) -> None:
        self.ask, self.place = ask, NOTHING_YET
        self.window: Window | None = None


class Windows:
    """The windows of a reader. A seat's own stays until it reads another; `most_bytes` of others are kept for those who
    come later."""

    def __init__(self, most_bytes: int = 0) -> None:
        self._most_bytes = most_bytes
        self._seats: weakref.WeakSet[Seat] = weakref.WeakSet()
        self._kept: list[Window] = []  # the one read last is the last

    def seat(self, ask: Ask) -> Seat:
        """A place among those that share what they read."""
        taken = Seat(ask)
        self._seats.add(taken)
        return taken

    @property
    def held(self) -> list[Window]:
        """All that are in memory, each once."""
        every = [*self._kept, *(seat.window for seat in list(self._seats) if seat.window is not None)]
        return list({id(window): window for window in every}.values())

    def shared_by(self, seat: Seat) -> bool:
        return seat in self._seats

    def at(self, seat: Seat) -> Window | None:
        """One with what the seat reads next; None where it has to be read."""
        for window in (seat.window, *reversed(self._kept)):
            if window is not None and window.holds(seat.ask, seat.place):
                seat.window = window
                return window
        return None

    def joint(self, seat: Seat, reach: int) -> Joint:
        """What is asked for by the seat, and by all that stand near it: less than `reach` rows ahead of it, or `BEHIND`
        times as many behind. Who has none of the seats here asks for itself alone."""
        near = list(self._seats) if self.shared_by(seat) else []
        near = [other for other in near if -BEHIND * reach < other.place - seat.place < reach and other is not seat]
        return Joint([seat.ask, *(other.ask for other in near)])

    def keep(self, window: Window, seat: Seat, reach: int) -> None:
        """A window that was read for a seat. Those before it are kept where one has yet to come through them that was,
        or would be, read for: who is farther behind reads anew."""
        seat.window = window
        if not self._most_bytes or not self.shared_by(seat):
            return
        places = [other.place for other in list(self._seats)]
        wanted = (w for w in self._kept if any(w.low - BEHIND * reach < place < w.high for place in places))
        self._kept = [*wanted, window]
        while self._kept and sum(kept.rows.nbytes for kept in self._kept) > self._most_bytes:
            del self._kept[0]
