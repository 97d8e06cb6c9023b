"""Results as one tidy table: each row is one figure of one arm, for one student and task under one condition.

A metric is a path. Its first part names the figure; further parts say what it is of or what belongs to it:

    ne, log_loss, auc, …       mean over seeds on the judged rows, with its interval over seeds
    gain                       of the arm over the best twin, % of the twin's NE; above 0 is better
    gain/over/ARM              over one baseline
    METRIC/calibration_free    of logits after the best scale and shift per vertical, fitted on the rows before
    gain/early                 on the first rows of the student's life
    gain/segment/NAME          on a part of the rows
    gain/window/3              in the fourth of 24 windows of the student's life
    gain/upto/200000           had the stream ended after so many rows; transfer/TEACHER/upto/200000
    gain/after/640             after 640 judged rows, with a bound that holds at all rows at once
    ne/tenth/3                 in the fourth tenth of the stream
    training_flops             of the student; …_with_teacher: and its share of the teacher's, which learns and scores
    METRIC/p, /se, /seed_sd    p-value, standard error, standard deviation over seeds
    METRIC/rows, /seeds        its interval if other rows alone, or other seeds alone, had been drawn
    METRIC/too few/WHAT        how much there is of what there is too little of: METRIC then has no interval
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from exfm.metrics.estimates import Estimate, mean_of_seeds
from pipelines.report.table import Entry
from pipelines.report.words import interval

MEAN = "(mean)"
"""The student of cells that are means over students."""

TOO_FEW = "/too few/"


class Key(NamedTuple):
    """Key of a figure: condition, student, task and arm. Models that are no arm (teachers, the optimum) have their name
    in brackets as `arm`."""

    condition: str
    student: str
    task: str
    arm: str


class Measure(NamedTuple):
    """A figure with its 95 % interval, and how many rows it is of; None where it is unknown."""

    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table."""

    condition: str
    student: str
    task: str
    arm: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None

    @property
    def key(self) -> Key:
        return Key(self.condition, self.student, self.task, self.arm)


def cells(key: Key, measures: Iterable[Measure]) -> list[Cell]:
    """The measures of one key as rows; numbers that are not finite are unknown."""
    return [Cell(*key, m.metric, _finite(m.value), _finite(m.low), _finite(m.high), m.n) for m in measures]


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


class Estimated(NamedTuple):
    """An estimate with its influences, from which means over students and ratios can still be made.

    lacking  what there is too little of for an interval, as `exfm.metrics.too_few` names it; None: there is enough
    """

    metric: str
    estimate: Estimate | None
    n: int
    lacking: str | None = None

    def measures(self) -> Iterator[Measure]:
        """The figure, and what belongs to it.

        >>> few = Estimated("gain", Estimate(1.0, (), np.array([0.5, -0.5])), 40, "positives (9)")
        >>> [(m.metric, m.value, m.low) for m in few.measures()]
        [('gain', 1.0, None), ('gain/too few/positives', 9.0, None)]
        """
        if self.estimate is None:
            return
        summary = self.estimate.summary()
        if self.lacking is not None:
            yield Measure(self.metric, summary["value"], n=self.n)
            yield lack(self.metric, self.lacking)
            return
        yield Measure(self.metric, summary["value"], summary["low"], summary["high"], self.n)
        parts = {"se": summary["se"], "p": summary["p"], "seed_sd": self.estimate.seed_sd}
        for name, value in parts.items():
            if value is not None:
                yield Measure(f"{self.metric}/{name}", value)
        for name, alone in {"rows": self.estimate.of_rows(), "seeds": self.estimate.of_seeds()}.items():
            if alone["low"] is not None:
                yield Measure(f"{self.metric}/{name}", alone["value"], alone["low"], alone["high"])


def lack(metric: str, lacking: str) -> Measure:
    """Say what a metric has too little of.

    >>> lack("rows", "clusters with positives (4)")
    Measure(metric='rows/too few/clusters with positives', value=4.0, low=None, high=None, n=None)
    """
    what, _, number = lacking.rpartition(" (")
    return Measure(metric + TOO_FEW + what, float(number.rstrip(")")))


def part(name: str) -> str:
    """A name as one part of a metric: its slashes would begin another.

    >>> part("a/b")
    'a∕b'
    """
    return name.replace("/", "\N{DIVISION SLASH}")


def over_seeds(metric: str, values: Sequence[float | None], n: int | None = None) -> Measure:
    """The mean over seeds with its interval; unknown where a seed's value is."""
    measured = [value for value in values if value is not None]
    if len(measured) < len(values) or not measured:
        return Measure(metric, None, n=n)
    summary = mean_of_seeds(measured).summary()
    return Measure(metric, summary["value"], summary["low"], summary["high"], n)


class Figures:
    """The figures of one key, by metric."""

    def __init__(self, by_metric: Mapping[str, Cell]) -> None:
        self._by_metric = by_metric

    def __bool__(self) -> bool:
        return bool(self._by_metric)

    def __contains__(self, metric: str) -> bool:
        return self.value(metric) is not None

    def cell(self, metric: str) -> Cell | None:
        return self._by_metric.get(metric)

    def value(self, metric: str) -> float | None:
        cell = self._by_metric.get(metric)
        return None if cell is None else cell.value

    def below(self, metric: str) -> dict[str, Cell]:
        """Figures one part below a metric, by that part.

        >>> of = Figures({m: Cell("", "", "", "", m, 1.0) for m in ("ne/tenth/0", "ne/tenth/1", "ne/tenth/1/p")})
        >>> list(of.below("ne/tenth"))
        ['0', '1']
        """
        start = metric + "/"
        names = {name.removeprefix(start): cell for name, cell in self._by_metric.items() if name.startswith(start)}
        return {name: cell for name, cell in names.items() if "/" not in name}

    def lacking(self, metric: str) -> str | None:
        """Name and count of the thing that there is too little of: `positives (9)`."""
        for what, cell in self.below(metric + TOO_FEW.rstrip("/")).items():
            return f"{what} ({cell.value:.0f})"
        return None

    def interval(self, metric: str, **form: Any) -> Entry:
        """A metric with its interval as text, or what there is too little of."""
        if (lacking := self.lacking(metric)) is not None:
            return f"too few {lacking} to tell"
        cell = self._by_metric.get(metric)
        return None if cell is None else interval(cell.value, cell.low, cell.high, **form)


class Cells(Sequence[Cell]):
    """The whole table. No two rows have the same key and metric."""

    def __init__(self, rows: Iterable[Cell]) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        return self._rows[at]

    @cached_property
    def _by_key(self) -> dict[Key, dict[str, Cell]]:
        by_key: dict[Key, dict[str, Cell]] = {}
        for cell in self._rows:
            by_key.setdefault(cell.key, {})[cell.metric] = cell
        return by_key

    def of(self, condition: str, student: str, task: str, arm: str) -> Figures:
        return Figures(self._by_key.get(Key(condition, student, task, arm), {}))

    @cached_property
    def conditions(self) -> list[str]:
        return list(dict.fromkeys(key.condition for key in self._by_key))

    def students(self, condition: str) -> list[tuple[str, str]]:
        """Students and their tasks, without the mean over students."""
        pairs = ((key.student, key.task) for key in self._by_key if key.condition == condition)
        return [pair for pair in dict.fromkeys(pairs) if pair[0] not in (MEAN, "")]

    def arms(self, condition: str, student: str, task: str) -> dict[str, Figures]:
        """Every arm of one student and task with its figures, models in brackets last."""
        under = {k.arm: Figures(v) for k, v in self._by_key.items() if k[:3] == (condition, student, task)}
        return dict(sorted(under.items(), key=lambda item: item[0].startswith("(")))

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(cell) for cell in self._rows]

    @classmethod
    def from_json(cls, rows: Iterable[Mapping[str, Any]]) -> Cells:
        return cls(Cell(**row) for row in rows)
