"""The answer of a served student to a request of 100 candidates, whose batch has been made."""

from __future__ import annotations

import time

import numpy as np

from exfm.features.batch import BatchBuilder
from pipelines.bench.benchmark import Benchmark, figure_of
from pipelines.bench.figures import Figure, Work, rates
from pipelines.bench.shape import FEATURES, TASKS, table
from pipelines.bench.sketches import DLRMSketch, SketchStep
from pipelines.bench.students import CONFIG, student_of

CANDIDATES, REQUESTS, AT_MOST_MS = 100, 400, 1.5


class Requests:
    """Requests for a student of the benchmarks' shape, answered by it and by bare torch."""

    def __init__(self) -> None:
        build, rows = BatchBuilder(FEATURES, TASKS), table(CANDIDATES * REQUESTS)
        self.each = [build(rows.slice(start, CANDIDATES)) for start in range(0, CANDIDATES * REQUESTS, CANDIDATES)]
        self._served = student_of(CONFIG).export()
        self.answer_by_sketch = SketchStep(DLRMSketch(CONFIG.trunk.bottom, CONFIG.trunk.mlp), self.each).score

    def answer(self) -> None:
        for batch in self.each:
            self._served.score(batch)

    def slowest_ms(self) -> float:
        """The 99th percentile of CPU milliseconds of an answer."""
        taken = np.empty(len(self.each))
        for n, batch in enumerate(self.each):
            start = time.thread_time()
            self._served.score(batch)
            taken[n] = 1000 * (time.thread_time() - start)
        return float(np.quantile(taken, 0.99))


def serving() -> Benchmark:
    requests = Requests()
    return Benchmark(
        "serving-100",
        "answers / CPU s",
        Work(requests.answer, REQUESTS),
        target=0.5,
        reference=Work(requests.answer_by_sketch, REQUESTS),
        reference_is="bare torch, without the linear part",
    )


def slowest_answer(runs: int) -> Figure:
    requests = Requests()
    benchmark = Benchmark(
        "serving-100-p99", "CPU ms", Work(requests.answer, REQUESTS), target=1.0, goal=AT_MOST_MS, against="less"
    )
    rates({"warm": benchmark.work}, 1)
    return figure_of(benchmark, [requests.slowest_ms() for _ in range(runs)], None, None)
