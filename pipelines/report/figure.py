"""A picture as data: series of points on two axes. What it shows is decided here, how it looks in pictures.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pipelines.report.table import TextTable


class Point(NamedTuple):
    """A value at `x` with its interval, in the direction of `y`."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    """Points of one name. `look`: the number of its colour and marker, the same wherever the name is drawn; None: grey.

    style  line   points joined, intervals as a band
           points markers, intervals as bars
           curve  points joined without markers
    """

    name: str
    look: int | None
    points: Sequence[Point]
    style: Literal["line", "points", "curve"] = "line"


@dataclass(frozen=True)
class Figure:
    """One pair of axes.

    rows      names of horizontal places 0, 1, …: values lie along x then, and `Point.x` is the number of the place
    marks     vertical lines, by x
    diagonal  the line y = x
    level     a horizontal line (vertical with `rows`) that values are compared with
    starred   numbers of `rows` that are marked with a star
    low, high limits of the values' axis; None: as values and level need
    behind    the same values as a table, for readers who do not see the picture
    """

    title: str
    series: Sequence[Series]
    x_name: str
    y_name: str
    shows: str = ""
    rows: Sequence[str] = ()
    starred: frozenset[int] = frozenset()
    marks: Mapping[float, str] | None = None
    x_scale: Literal["number", "log", "time"] = "number"
    diagonal: bool = False
    level: float | None = None
    low: float | None = None
    high: float | None = None
    behind: TextTable | None = None
    named_points: bool = False
    """Write each series' name at its points, instead of a legend."""
