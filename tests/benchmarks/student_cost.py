"""What distillation costs: nothing where a student is served, little where it learns, one teacher inference a row.

    python -m tests.benchmarks.student_cost [--run-dir runs/demo] [--requests 400] [--steps 60] [--rounds 15]

Students of configs/demo.yaml's size, one for every arm, each beside its never-distilled twin, on rows of its stream.
Everything is measured interleaved, in one process, on one thread; a ratio is the median over rounds with its quartiles.
A second twin goes along wherever time is measured: its ratio to the first is what noise alone gives.

1. Served, of the exported student: parameters, FLOPs per example, p50 and p99 of a request (1 and 100 candidates).
2. In training: milliseconds a step (batches of 512 and 128 rows) and its ratio to the twin's.
3. Teacher inferences, counted by a run: per settled row, and per row that a student read a logit of.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from exfm.features.batch import Batch, BatchBuilder
from exfm.machine import set_threads
from exfm.models.student import Student
from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.rows import rows_of
from streaming.store.files import read_json
from tests.support.models.arm_costs import EVERY_ARM, TWIN, flops_per_example

CONFIG = "configs/demo.yaml"
CANDIDATES = (1, 100)
BATCHES = (512, 128)
SEED = 1

Times = dict[str, np.ndarray]  # by arm, (rounds, calls) seconds


def interleaved(calls: Mapping[str, Callable[[Batch], object]], batches: Sequence[Batch], rounds: int) -> Times:
    """Seconds of every call on every batch, in turns: all calls take a batch before the next one's turn, and whoever
    began one batch is last with the next. The first round warms up and is not kept."""
    names, times = list(calls), {name: np.empty((rounds + 1, len(batches))) for name in calls}
    for r, (b, batch) in itertools.product(range(rounds + 1), enumerate(batches)):
        first = (r + b) % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            calls[name](batch)
            times[name][r, b] = time.perf_counter() - start
    return {name: taken[1:] for name, taken in times.items()}


def ratio(of: np.ndarray, to: np.ndarray) -> str:
    """Of two figures of every round, (rounds,): median and quartiles."""
    low, median, high = np.quantile(of / to, (0.25, 0.5, 0.75))
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


def rows(config: Config, count: int) -> pa.Table:
    """Settled rows of the config's stream; the teacher's logits are any: what is asked is time."""
    with tempfile.TemporaryDirectory() as folder:
        table = rows_of(config, Path(folder), limit=count, run_dir=None, advance=lambda n: None).table
    drawn = np.random.default_rng(SEED)
    for task in config.tasks:
        logits = pa.array(drawn.normal(-2, 1, table.num_rows).astype(np.float32))
        table = table.append_column(f"teacher_logit_{task}", logits)
    return table


def batches_of(config: Config, table: pa.Table, size: int, count: int) -> list[Batch]:
    build = BatchBuilder(config.student_features(config.students[0]), config.tasks)
    assert table.num_rows >= size * count, f"{table.num_rows} rows are no {count} batches of {size}"
    return [build(table.slice(size * n, size)) for n in range(count)]


def students(config: Config) -> dict[str, Student]:
    settings = config.students[0]
    features = config.student_features(settings)
    return {
        name: Student(settings.model.model_copy(update={"arm": arm}), features, config.tasks, SEED)
        for name, arm in EVERY_ARM.items()
    }


def serving(config: Config, table: pa.Table, requests: int, rounds: int) -> None:
    trained, served = students(config), {}
    for name, one in trained.items():
        for batch in batches_of(config, table, 512, 4):
            one.train_step(batch)
        served[name] = one.export()
    print("| arm | parameters, in training | served | FLOPs per example, served |\n|---|---|---|---|")
    (batch,) = batches_of(config, table, 100, 1)
    for name, one in served.items():
        held = sum(p.numel() for p in trained[name].net.parameters()) + _corrector_parameters(trained[name])
        print(f"| {name} | {held:,} | {one.parameter_count:,} | {flops_per_example(one, batch):,} |")
    for size in CANDIDATES:
        calls = {name: one.score for name, one in served.items()}
        times = interleaved(calls, batches_of(config, table, size, requests), rounds)
        print(f"\na request of {size} candidate(s), {rounds} rounds of {requests}, interleaved; ratios by round\n")
        print("| arm | p50, µs | p99, µs | p50 / twin's | p99 / twin's |\n|---|---|---|---|---|")
        for name, taken in times.items():
            p50, p99 = (np.quantile(taken, q, axis=1) for q in (0.5, 0.99))
            twin50, twin99 = (np.quantile(times[TWIN], q, axis=1) for q in (0.5, 0.99))
            all50, all99 = (1e6 * np.quantile(taken, q) for q in (0.5, 0.99))
            ratios = f"{ratio(p50, twin50)} | {ratio(p99, twin99)}" if name != TWIN else "1 | 1"
            print(f"| {name} | {all50:.0f} | {all99:.0f} | {ratios} |")


def _corrector_parameters(student: Student) -> int:
    """Of the adapter and of Platt scaling, which are no modules."""
    return sum(t.numel() for name, t in student.state().items() if name in ("adapter/weights", "platt/theta"))


def training(config: Config, table: pa.Table, steps: int, rounds: int) -> None:
    for size in BATCHES:
        calls = {name: one.train_step for name, one in students(config).items()}
        times = interleaved(calls, batches_of(config, table, size, steps), rounds)
        print(
            f"\ntraining, batches of {size}: {rounds} rounds of {steps} steps, interleaved; ratios of rounds' medians\n"
        )
        print("| arm | ms a step | / twin's |\n|---|---|---|")
        for name, taken in times.items():
            ms = 1000 * np.median(taken)
            told = ratio(np.median(taken, axis=1), np.median(times[TWIN], axis=1)) if name != TWIN else "1"
            print(f"| {name} | {ms:.2f} | {told} |")


def inferences(run_dir: RunDir) -> None:
    """What a run counted. A row is read once by every student that distils and whose filter selects it."""
    config, summary = load(run_dir.config), read_json(run_dir.root / "summary.json")
    assert isinstance(summary, dict)
    made, settled = summary["counts"]["teacher_inferences"], summary["counts"]["lake_rows"]
    readers = [student for student in config.students if student.model.arm.distils]
    read = {student.name: summary["workers"][f"student-{student.name}"]["rows"] for student in readers}
    print(f"\n{run_dir.root}: {made:,} teacher inferences, {settled:,} settled rows: {made / settled:.3f} a row")
    told = ", ".join(f"{name} {rows:,}" for name, rows in read.items())
    print(f"{len(readers)} students read {sum(read.values()):,} logits ({told}): {made / sum(read.values()):.3f} each")
    by_readers = defaultdict(list)
    for vertical in sorted({vertical for student in readers for vertical in student.row_filter}):
        by_readers[tuple(s.name for s in readers if vertical in s.row_filter)].append(vertical)
    for names, verticals in by_readers.items():
        print(f"- a row of {', '.join(verticals)}: read by {', '.join(names)}, 1/{len(names)} of an inference for each")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/demo"))
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    set_threads(1)
    config = load(CONFIG, ["source.impressions=60000"])
    table = rows(config, max(512 * args.steps, 100 * args.requests))
    serving(config, table, args.requests, args.rounds)
    training(config, table, args.steps, args.rounds)
    if (args.run_dir / "summary.json").exists():
        inferences(RunDir(args.run_dir))
    else:
        print(f"\n{args.run_dir} has no summary.json: run `make demo`, or give --run-dir of a run that ended")


if __name__ == "__main__":
    main()
