"""Positions in a source and in the lake.

A *source position* is (topic, partition, offset, row). `row` counts inside one Kafka message, since an Arrow
micro-batch holds many rows and a commit may split one. A *lake position* is the last `lake_seq` consumed, a plain int;
-1 means nothing yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NOTHING_YET = -1


class SourcePosition(NamedTuple):
    """The next row to read from one partition: message `offset`, row `row` inside it.

    >>> SourcePosition(7, 3) < SourcePosition(8, 0)
    True
    """

    offset: int
    row: int = 0


class Partition(NamedTuple):
    topic: str
    partition: int


def names_of(partitions: Iterable[Partition]) -> str:
    """Partitions in words.

    >>> names_of([Partition("ads", 3), Partition("ads", 2)])
    'ads/2, ads/3'
    """
    return ", ".join(f"{topic}/{number}" for topic, number in sorted(partitions))


Positions = dict[Partition, SourcePosition]
