"""What a benchmark is, and how it is measured.

    value = units of work / CPU seconds                      of every run
    limit = 1 / (FLOPs of a unit / GEMM rate + bytes of a unit / copy rate)

The work, what it is compared with, and the machine's own rates take turns in one process: a machine that slows down
slows all of them down, and a ratio of one run stays. Figures are medians over runs, with the smallest and the largest.
CPU seconds are those of the process, so that waiting for a core costs nothing. What shares a core's caches and clock
still shows in values, less so in ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from pipelines.bench.figures import Figure, Turns, Work, rates
from pipelines.bench.limits import COPY, GEMM_BF16, GEMM_FP32, RATES


@dataclass(frozen=True)
class Demand:
    """What a unit of work asks of the silicon, however it is programmed: FLOPs of matrix products, bytes read or
    written."""

    flops: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class Benchmark:
    """Work that is measured, and what it is compared with.

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


def measured(benchmark: Benchmark, runs: int) -> Figure:
    """The figure of a benchmark, over so many runs."""
    works = {"value": benchmark.work}
    if benchmark.reference is not None:
        works["reference"] = benchmark.reference
    if benchmark.demand is not None:
        works |= {name: Work(*RATES[name]) for name in (GEMM_FP32, GEMM_BF16, COPY)}
    turns = rates(works, runs)
    limits = None if benchmark.demand is None else _limits(benchmark.demand, turns)
    return figure_of(benchmark, turns["value"], limits, turns.get("reference"))


def figure_of(
    benchmark: Benchmark, values: list[float], limits: list[float] | None, references: list[float] | None
) -> Figure:
    """From the values of all runs."""
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


def _limits(demand: Demand, turns: Turns) -> list[float]:
    """Units a second that the silicon allows, by run: products at the faster of the two precisions, then copies."""
    runs = zip(turns[GEMM_FP32], turns[GEMM_BF16], turns[COPY], strict=True)
    return [1 / (demand.flops / max(fp32, bf16) + demand.bytes / copy) for fp32, bf16, copy in runs]


def _ratios(values: list[float], to: list[float] | None) -> list[float] | None:
    return None if to is None else [value / other for value, other in zip(values, to, strict=True)]
