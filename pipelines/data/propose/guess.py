"""A guess: what was taken, why, and what else it could have been."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pipelines.data.propose.columns import Seen


class Guess(NamedTuple):
    """`column` None: there is none. `other`: the runner-up."""

    column: str | None
    why: str
    other: str | None = None

    @property
    def words(self) -> str:
        """
        >>> Guess("user", "41,203 distinct, 12 rows each", "device").words
        '41,203 distinct, 12 rows each; else device'
        """
        return self.why + (f"; else {self.other}" if self.other else "")


def ranked(columns: Iterable[Seen], score: Callable[[Seen], float]) -> list[Seen]:
    """Those that score above 0, the best first; equal ones in their order."""
    scored = [(score(column), column) for column in columns]
    return [column for points, column in sorted(scored, key=lambda pair: -pair[0]) if points > 0]


def named(column: Seen, points: dict[str, float]) -> float:
    """The points of the best word of a column's name; a name that is the word counts a little more.

    >>> from pipelines.data.propose.columns import Seen
    >>> column = Seen("user_id", "", "BIGINT", "int", 9, 0, 3)
    >>> named(column, {"user": 5, "id": 1}), named(column, {"user_id": 6}), named(column, {"item": 4})
    (5, 7, 0.0)
    """
    name = column.name.lower()
    whole = [value + 1 for word, value in points.items() if word == name]
    return max([0.0, *whole, *(points[word] for word in column.words if word in points)])


def values_of(column: Seen) -> str:
    """
    >>> values_of(Seen("user", "", "BIGINT", "int", 1200, 0, 100))
    '100 distinct, 12 rows each'
    """
    each = column.rows_each
    return f"{column.distinct:,} distinct, {each:,.0f} rows each" if each >= 2 else f"{column.distinct:,} distinct"
