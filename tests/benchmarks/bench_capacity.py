"""CPU seconds of a step by size of model and batch: what `exfm capacity` scales a measured row by.

    python -m tests.benchmarks.bench_capacity [--steps 6] [--rounds 3] [--write RUN]
    python -m tests.benchmarks.bench_capacity --compare RUN

    seconds a row = step / B + flop · F + value · V       B rows a step, F FLOPs a row, V = looked-up ids · width

Students learn with the recommended arm, teachers learn and score, on the rows of `exfm bench` (uniform ids) with 8 and
26 tables; CPU seconds are those of the process, the smallest of the rounds. The three coefficients are fitted to
relative errors, none below zero. `--write` makes pipelines/core/shipped/rates.json of them and of a finished run of
configs/demo.yaml; `--compare` prints what that table says of another run beside what it took.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from exfm.features.batch import Batch, BatchBuilder
from exfm.features.features import FeatureSet
from exfm.interactions.registry import TrunkConfig
from exfm.machine import set_threads
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.planning.cost import flops_per_example, training_flops_per_example
from pipelines.capacity.price import DAY_S, Pricing
from pipelines.capacity.rates import EngineRate, run_rates, shipped_rates
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.shipped.files import rates_file
from pipelines.report.results.stored import read_summary
from streaming.lake.reader import LakeReader
from tests.benchmarks.suite.shape import FEATURES, SEED, TASKS, table

BATCHES = (128, 512, 2048)
STUDENTS = [
    StudentConfig(width=width, trunk=TrunkConfig(bottom=(16,), mlp=mlp))
    for width, mlp in itertools.product((8, 16), ((64, 32), (256, 128), (512, 256)))
]
TEACHERS = [
    TeacherConfig(width=width, layers=layers, num_fmb=8, num_lcb=8, rank=8, mlp=mlp)
    for width, (layers, mlp) in itertools.product((16, 32), ((2, (64,)), (3, (256,))))
]


class Point(NamedTuple):
    """`of`: (1 / B, F, V) of a row; `seconds`: CPU seconds of a row."""

    of: tuple[float, float, float]
    seconds: float


def fitted(points: list[Point]) -> tuple[np.ndarray, np.ndarray]:
    """The three coefficients, and the relative error of each point.

    >>> fitted([Point((1.0, 0.0, 0.0), 2.0), Point((0.0, 1.0, 0.0), 3.0), Point((0.0, 0.0, 1.0), 4.0)])[0].tolist()
    [2.0, 3.0, 4.0]
    """
    seconds = np.array([point.seconds for point in points])
    of = np.array([point.of for point in points]) / seconds[:, None]
    scale = np.abs(of).max(axis=0)
    coefficients = nnls(of / scale, np.ones(len(points)))[0] / scale
    return coefficients, of @ coefficients - 1


def cpu_seconds(call: Callable[[Batch], object], batches: list[Batch], rounds: int) -> float:
    """CPU seconds of a batch, in the fastest of the rounds; one round before warms up."""
    taken = []
    for _ in range(rounds + 1):
        start = time.process_time()
        for batch in batches:
            call(batch)
        taken.append((time.process_time() - start) / len(batches))
    return min(taken[1:])


def points(kind: str, steps: int, rounds: int) -> Iterator[Point]:
    configs: list[StudentConfig] | list[TeacherConfig] = STUDENTS if kind == "student" else TEACHERS
    for tables, size, config in itertools.product((8, len(FEATURES.sparse)), BATCHES, configs):
        features = FeatureSet(sparse=FEATURES.sparse[:tables], dense=FEATURES.dense)
        build = BatchBuilder(features, TASKS)
        batches = [build(table(size, seed)) for seed in range(steps)]
        model: Student | Teacher
        if isinstance(config, StudentConfig):
            model = Student(config, features, TASKS, SEED)
        else:
            model = Teacher(config, features, TASKS, SEED)
        flops = (flops_per_example if kind == "scoring" else training_flops_per_example)(config, features, len(TASKS))
        call = model.score if kind == "scoring" else model.train_step
        seconds = cpu_seconds(call, batches, rounds) / size
        print(f"{kind} {tables} × {config.width}, B {size}: {flops:,} FLOPs, {1e6 * seconds:.1f} µs", flush=True)
        yield Point((1 / size, flops, tables * config.width), seconds)


def compare(run: Path) -> None:
    """What the shipped rates say of a run, and what it took, worker by worker."""
    config, summary = load(run / "config.yaml"), read_summary(RunDir(run))
    pricing = Pricing(config, shipped_rates())
    wall_s, counts = summary.run.wall_s, summary.counts
    workload = pricing.workload(counts.impressions_read / wall_s, counts.feedback_read / wall_s)
    price = pricing.price(workload, 1, 1e9)
    print("| worker | CPU s, predicted | measured | ratio |\n|---|---|---|---|")
    for name, cores in price.workers.items():
        took = sum(summary.workers[name].cpu_s.values())
        print(f"| {name} | {cores * wall_s:.1f} | {took:.1f} | {cores * wall_s / took:.2f} |")
    lake = LakeReader(RunDir(run).lake, config.rows)
    (grows,) = (size.bytes for size in price.disk if size.name == "lake")
    predicted = grows / DAY_S * wall_s
    print(f"| lake, MB | {predicted / 1e6:.1f} | {lake.bytes / 1e6:.1f} | {predicted / lake.bytes:.2f} |")


def write(run: Path, engines: dict[str, dict[str, float]]) -> None:
    """Put the rates of a run of configs/demo.yaml and of the engines into the shipped table; its constants stay."""
    rates = json.loads(rates_file().read_text())
    made = {name: EngineRate(**of) for name, of in engines.items()}
    run_of = run_rates(RunDir(run), made).model_dump()
    run_of["measured"] = run_of["measured"].replace(str(run), "configs/demo.yaml")
    measured = f"{datetime.now(UTC):%Y-%m-%d}, {processor()}"
    rates |= {"measured": measured, "engines": engines, "run": run_of}
    rates_file().write_text(json.dumps(rates, indent=2) + "\n")


def processor() -> str:
    """Model and count of this machine's cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, metavar="RUN", help="make the shipped table, with this run's rates")
    parser.add_argument("--compare", type=Path, metavar="RUN", help="only compare this run with the shipped table")
    asked = parser.parse_args()
    if asked.compare is not None:
        compare(asked.compare)
        return
    set_threads(1)
    engines = {}
    for kind in ("student", "teacher", "scoring"):
        coefficients, errors = fitted(list(points(kind, asked.steps, asked.rounds)))
        mean, most = (100 * of(np.abs(errors)) for of in (np.mean, np.max))
        print(f"{kind}: the fit is off by {mean:.0f} % (mean), {most:.0f} % at most")
        engines[kind] = dict(zip(("step_s", "flop_s", "value_s"), coefficients.tolist(), strict=True))
    print(json.dumps(engines, indent=2))
    if asked.write is not None:
        write(asked.write, engines)


if __name__ == "__main__":
    main()
