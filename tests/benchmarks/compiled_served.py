"""What compiled code gives a served student, next to eager (exfm/models/compiled.py).

    python -m tests.benchmarks.compiled_served [--runs 5]

A student of configs/demo.yaml's size with any weights, one core. Eager and compiled take turns; core milliseconds of a
call, the median of each run: of the median run, the fastest and the slowest. *forward* scores a batch; *request* is one
of Arrow, from its body to its probabilities. Needs g++.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from exfm.features.batch import BatchBuilder
from exfm.machine import set_threads
from exfm.models.compiled import Packages
from exfm.models.served import load_served
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.prediction_request import ARROW, PredictionRequest, parse_request
from pipelines.serve.version import ServedVersion
from pipelines.served_rows import checked_columns, serving_rules
from tests.support.pipelines.serving_load import MAX_ROWS, VERSION, bare_forward, questions, run_of


def cost(call: Callable[[], object], times: int) -> tuple[float, float]:
    """Median and 99th percentile."""
    taken = []
    for _ in range(times):
        start = time.thread_time()
        call()
        taken.append(time.thread_time() - start)
    p50, p99 = np.quantile(taken[times // 10 :], (0.5, 0.99))
    return 1000 * float(p50), 1000 * float(p99)


def whole(version: ServedVersion, asked: Callable[[], PredictionRequest]) -> object:
    return version.answer(asked())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5)
    runs = options.parse_args().runs
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        eager, rows = run_of(root), config_of(RunDir(root)).rows
        path = RunDir(root).versions(eager.model) / VERSION
        took = []
        for _ in range(2):
            start = time.perf_counter()
            compiled = ServedVersion(eager.model, VERSION, path, rows, {}, packages=Packages(root / "compiled"))
            took.append(time.perf_counter() - start)
        (package,) = (root / "compiled").glob("*.pt2")
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; package {package.stat().st_size / 1e6:.1f} MB")
        print(f"first version {took[0]:.1f} s, next {took[1]:.2f} s")
        plain, other = load_served(path), load_served(path)
        Packages(root / "compiled").compile(other)
        rules, build = serving_rules(rows, plain.features), BatchBuilder(plain.features, plain.tasks)
        for question in [each for each in questions(eager) if each.kind == ARROW]:
            asked = partial(parse_request, question.body, ARROW, only=eager.inputs.names, max_rows=MAX_ROWS)
            value = asked()
            batch = build(checked_columns(value.columns, value.context, value.size, rules)[0])
            answers = [version.answer(value).probabilities for version in (eager, compiled)]
            print(f"\n{question.rows} rows: probabilities differ by {np.abs(answers[0] - answers[1]).max():.1g}")
            calls = {
                "forward, eager": partial(bare_forward, plain, batch),
                "forward, compiled": partial(bare_forward, other, batch),
                "request, eager": partial(whole, eager, asked),
                "request, compiled": partial(whole, compiled, asked),
            }
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
            for _ in range(runs):
                for name, call in calls.items():
                    found[name].append(cost(call, 400 if question.rows < MAX_ROWS else 40))
            for name, each in found.items():
                p50, p99 = ([run[n] for run in each] for n in (0, 1))
                spread = f"{statistics.median(p50):.3f} ms ({min(p50):.3f} to {max(p50):.3f})"
                print(f"  {name:<20}{spread}   p99 {statistics.median(p99):.3f} ({min(p99):.3f} to {max(p99):.3f})")


if __name__ == "__main__":
    main()
