"""Benchmarks, figures, and the turns in which they are measured.

    value = units of work / CPU seconds                 of every run
    limit = rate of the silicon / what a unit asks of it     measured in the same run

The work, its reference and the machine's own rate take turns in one process: a machine that slows down slows all of
them down, and a ratio of one run stays. A turn lasts `TURN_S` by the clock, or one call where that is longer. Figures
are medians over runs, with the smallest and the largest. CPU seconds are those of the process, so that waiting for a
core costs nothing. What shares a core's caches and clock still shows in values, less so in ratios.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

TURN_S = 0.25
FEWEST_RUNS = 3
"""Runs that are measured however long they take; further ones end with the time of `planned_s`."""

Turns = Mapping[str, list[float]]
"""By name, the rate of every run."""


@dataclass(frozen=True)
class Work:
    """A call, and the number of units it does. `prepare` makes its argument, outside the time that is measured: a
    batch that was never seen, as every batch of a stream is."""

    call: Callable[[Any], object]
    units: float
    prepare: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class Demand:
    """What a unit of work asks of the silicon, however it is programmed: so many FLOPs or bytes at one of its rates."""

    rate: str
    amount: float


@dataclass(frozen=True)
class Benchmark:
    """Work to be measured, and its references.

    `target` is the least ratio: of the value to the `reference` where `against` is "reference", else to the limit, or
    to `goal`, a figure. With `less` a smaller value is the better one, and its ratio is goal / value.
    """

    name: str
    unit: str
    work: Work
    target: float
    reference: Work | None = None
    reference_is: str = ""
    demand: Demand | None = None
    goal: float | None = None
    against: str = "reference"


class Figure(BaseModel):
    """A benchmark's result. `ratio` ≥ `target` is met; null: there is no limit, reference or target."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="the benchmark")
    value: float = Field(description="median over runs")
    low: float = Field(description="smallest of the runs")
    high: float = Field(description="largest of the runs")
    unit: str = Field(description="unit of value, limit and reference")
    runs: int = Field(description="how often it was measured")
    limit: float | None = Field(default=None, description="what the silicon allows, measured in the same runs")
    of_limit: float | None = Field(default=None, description="value / limit, median of the runs' ratios")
    reference: float | None = Field(default=None, description="the same work by what `reference_is` names")
    reference_is: str = Field(default="", description="what the reference is")
    of_reference: float | None = Field(default=None, description="value / reference, median of the runs' ratios")
    ratio: float | None = Field(default=None, description="the ratio that the target is about")
    ratio_low: float | None = Field(default=None, description="its smallest of the runs")
    ratio_high: float | None = Field(default=None, description="its largest of the runs")
    target: float | None = Field(default=None, description="what the ratio should be at least")
    command: str = Field(description="what measures it again")

    @property
    def met(self) -> bool | None:
        return None if self.ratio is None or self.target is None else self.ratio >= self.target


def planned_s(works: int, runs: int) -> float:
    """Seconds by the clock that `rates` takes for so many works, where a call takes no longer than a turn."""
    return (runs + 1) * works * TURN_S


def rates(works: Mapping[str, Work], runs: int, clock: Callable[[], float] = time.perf_counter) -> Turns:
    """Units per CPU second of every work, measured in turns with a rotating start. One more run goes before and is
    not kept."""
    names = list(works)
    turns: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    end = clock() + planned_s(len(names), runs)
    for run in range(runs + 1):
        if run > FEWEST_RUNS and clock() >= end:
            break
        first = run % len(names)
        for name in names[first:] + names[:first]:
            turns[name].append(_turn(works[name], clock))
    return {name: each[1:] for name, each in turns.items()}


def _turn(work: Work, clock: Callable[[], float]) -> float:
    end, calls, cpu_s = clock() + TURN_S, 0, 0.0
    while not calls or clock() < end:
        argument = work.prepare()
        start = time.process_time()
        work.call(argument)
        cpu_s += time.process_time() - start
        calls += 1
    return calls * work.units / cpu_s


def measured(benchmark: Benchmark, runs: int, silicon: Mapping[str, Work]) -> Figure:
    """The figure of a benchmark. `silicon`: works whose rates are limits, by name."""
    works = {"value": benchmark.work}
    if benchmark.reference is not None:
        works["reference"] = benchmark.reference
    if benchmark.demand is not None:
        works["silicon"] = silicon[benchmark.demand.rate]
    turns = rates(works, runs)
    limits = None
    if benchmark.demand is not None:
        limits = [rate / benchmark.demand.amount for rate in turns["silicon"]]
    return figure_of(benchmark, turns["value"], limits, turns.get("reference"))


def figure_of(
    benchmark: Benchmark, values: list[float], limits: list[float] | None, references: list[float] | None
) -> Figure:
    """Figure of a benchmark from the values of all runs."""
    ratios = {
        "limit": _ratios(values, limits),
        "reference": _ratios(values, references),
        "goal": None if benchmark.goal is None else [value / benchmark.goal for value in values],
        "less": None if benchmark.goal is None else [benchmark.goal / value for value in values],
    }
    judged = ratios[benchmark.against]
    return Figure(
        name=benchmark.name,
        value=median(values),
        low=min(values),
        high=max(values),
        unit=benchmark.unit,
        runs=len(values),
        limit=None if limits is None else median(limits),
        of_limit=None if ratios["limit"] is None else median(ratios["limit"]),
        reference=None if references is None else median(references),
        reference_is=benchmark.reference_is,
        of_reference=None if ratios["reference"] is None else median(ratios["reference"]),
        ratio=None if judged is None else median(judged),
        ratio_low=None if judged is None else min(judged),
        ratio_high=None if judged is None else max(judged),
        target=benchmark.target,
        command=f"exfm bench {benchmark.name} --runs {len(values)}",
    )


def _ratios(values: list[float], to: list[float] | None) -> list[float] | None:
    return None if to is None else [value / other for value, other in zip(values, to, strict=True)]
