"""Figures, and the turns in which they are measured."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

Turns = Mapping[str, list[float]]
"""By name, the rate of every run."""


@dataclass(frozen=True)
class Work:
    """A call, and how many units it does."""

    call: Callable[[], object]
    units: float


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


def rates(works: Mapping[str, Work], runs: int) -> Turns:
    """Units a CPU second of every work, in turns; who is first rotates. One more run goes before and is not kept."""
    names = list(works)
    found: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    for run in range(runs + 1):
        first = run % len(names)
        for name in names[first:] + names[:first]:
            start = time.process_time()
            works[name].call()
            found[name].append(works[name].units / (time.process_time() - start))
    return {name: each[1:] for name, each in found.items()}
