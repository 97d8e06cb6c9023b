"""A guess with its reason and the runner-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pipelines.data.profile.column import ColumnProfile


class Guess(NamedTuple):
    """A guess; `column` None: none found. `other`: the runner-up."""

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


def ranked(columns: Iterable[ColumnProfile], score: Callable[[ColumnProfile], float]) -> list[ColumnProfile]:
    """Columns that score above 0, the best first; ties in their order."""
    return sorted((column for column in columns if score(column) > 0), key=lambda column: -score(column))


def named(column: ColumnProfile, points: dict[str, float]) -> float:
    """The points of the best word of a column's name; a name that is the word counts a little more.

    >>> column = ColumnProfile("user_id", "BIGINT", 9, 0, 3)
    >>> named(column, {"user": 5, "id": 1}), named(column, {"user_id": 6}), named(column, {"item": 4})
    (5, 7, 0.0)
    """
    name = column.name.lower()
    whole = [value + 1 for word, value in points.items() if word == name]
    return max([0.0, *whole, *(points[word] for word in column.words if word in points)])


def values_of(column: ColumnProfile) -> str:
    """
    >>> values_of(ColumnProfile("user", "BIGINT", 1200, 0, 100))
    '100 distinct, 12 rows each'
    """
    each = column.rows_each
    return f"{column.distinct:,} distinct, {each:,.0f} rows each" if each >= 2 else f"{column.distinct:,} distinct"
