"""Benchmark of a served student that answers a request of 100 candidates, whose batch is ready."""

from __future__ import annotations

import time

import numpy as np

from exfm.models.student import Student
from tests.benchmarks.suite.measuring import Benchmark, Figure, Work, figure_of, rates
from tests.benchmarks.suite.shape import FEATURES, SEED, TASKS, new_batches
from tests.benchmarks.suite.sketches import DLRMSketch, SketchStep
from tests.benchmarks.suite.students import SMALL

CANDIDATES, REQUESTS, AT_MOST_MS = 100, 400, 1.5


def serving() -> Benchmark:
    sketch, new = SketchStep(DLRMSketch(SMALL.trunk.bottom, SMALL.trunk.mlp)), new_batches(CANDIDATES)
    return Benchmark(
        "serving-100",
        "answers / CPU s",
        _answering(),
        target=0.5,
        reference=Work(sketch.score, 1, new),
        reference_is="bare torch, without the linear part",
    )


def slowest_answer(runs: int) -> list[Figure]:
    answering = _answering()
    benchmark = Benchmark("serving-100-p99", "CPU ms", answering, target=1.0, goal=AT_MOST_MS, against="less")
    rates({"warm": benchmark.work}, 1)
    return [figure_of(benchmark, [_slowest_ms(answering) for _ in range(runs)], None, None)]


def _answering() -> Work:
    served = Student(SMALL, FEATURES, TASKS, SEED).export()
    return Work(served.score, 1, new_batches(CANDIDATES))


def _slowest_ms(answering: Work) -> float:
    """The 99th percentile of CPU milliseconds of an answer."""
    taken = np.empty(REQUESTS)
    for n in range(REQUESTS):
        batch = answering.prepare()
        start = time.thread_time()
        answering.call(batch)
        taken[n] = 1000 * (time.thread_time() - start)
    return float(np.quantile(taken, 0.99))
