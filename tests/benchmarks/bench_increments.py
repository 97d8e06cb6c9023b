"""What increments cost: the steps of the student that publishes them, and the requests of a server that takes them up.

    python -m tests.benchmarks.bench_increments [--rounds 6] [--seconds 10]

1. Training: stretches of steps of configs/demo.yaml's first student, by turns with an increment after each `--every`
   seconds (taken, and written by another thread) and without; the ratio of their times, round by round.
2. Serving over HTTP, an open load of 100 candidates as JSON at half of the saturated rate (bench_serving.py): p50, p99
   and p99.9 by turns of a quiet server, of one that takes an increment up each second, and of one whose champion
   changes each second. Ratios to the quiet windows of the same round, whose own spread is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from exfm.features.batch import Batch, BatchBuilder
from exfm.machine import set_threads
from exfm.models.changes import Touched, changes_of
from exfm.models.served import save_served
from exfm.models.student import Student
from exfm.snapshots.delta import Delta
from exfm.snapshots.increments.chain import ChainWriter
from exfm.snapshots.increments.increment import Probe, probe_of, take_full
from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.writer import Writer
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import HAND, POLICY, Ledger
from tests.support.pipelines.commands import COMMAND
from tests.support.pipelines.serving_load import CONFIG, VERSION, Question, due, over_http, questions, run_of

STEP_ROWS, OTHER = 1024, "v00000200"


def batches(config: Config, count: int) -> Iterator[Batch]:
    """Of ids that are drawn as those of impressions are: few of them often."""
    student, rng = config.students[0], np.random.default_rng(0)
    features, tasks = config.student_features(student), config.student_tasks(student)
    build = BatchBuilder(features, tasks)
    bounded = {feature.name: feature.rows for feature in features.sparse if feature.transform == "index"}
    needed = [field for field in config.rows.augmented if field.name in features.needs_columns()]
    for _ in range(count):
        columns = {}
        for field in needed:
            if pa.types.is_integer(field.type):
                values = rng.zipf(1.3, STEP_ROWS) % bounded.get(field.name, 5000)
                columns[field.name] = pa.array(values).cast(field.type)
            elif pa.types.is_floating(field.type):
                columns[field.name] = pa.array(rng.random(STEP_ROWS).astype(np.float32))
            else:
                columns[field.name] = pa.array(["feed"] * STEP_ROWS)
        for task in tasks:
            columns[f"label_{task}"] = pa.array(rng.integers(0, 2, STEP_ROWS).astype(np.int8))
            columns[f"teacher_logit_{task}"] = pa.array(rng.normal(size=STEP_ROWS).astype(np.float32))
        yield build(pa.table(columns))


class Publisher:
    """A student of the demo's size that learns, and its chain in a folder."""

    def __init__(self, config: Config, root: Path) -> None:
        settings = config.students[0]
        features, tasks = config.student_features(settings), config.student_tasks(settings)
        self.student, self.touched = Student(settings.model, features, tasks, 1), Touched(features)
        self.batches, self.chain = list(batches(config, 40)), ChainWriter(root)
        self.writer = Writer("bench", 1)
        self.learn(0, noted=False)
        probe = probe_of(self.student, self.batches[0])
        self.chain.begin("v00000001", {}, take_full(self.student, self.touched, probe))

    def learn(self, n: int, *, noted: bool) -> Batch:
        batch = self.batches[n % len(self.batches)]
        self.student.train_step(batch)
        if noted:
            self.touched.note(batch.sparse)
        return batch

    def take(self, batch: Batch) -> tuple[Delta, Probe]:
        probe = probe_of(self.student, batch)
        return changes_of(self.student, self.touched), probe

    def publish(self, increment: tuple[Delta, Probe], since_s: float) -> None:
        self.chain.add("v00000001", {"stepped_s": [since_s, since_s]}, *increment)


def training(publisher: Publisher, rounds: int, every_s: float) -> None:
    for n in range(30):
        publisher.learn(n, noted=False)
    ratios, took = [], []
    for turn in range(rounds):
        seconds = {}
        for on in (True, False) if turn % 2 else (False, True):
            started = last = time.perf_counter()
            for n in range(150):
                batch = publisher.learn(n, noted=on)
                if on and time.perf_counter() - last >= every_s:
                    last = time.perf_counter()
                    increment = publisher.take(batch)
                    took.append(time.perf_counter() - last)
                    publisher.writer.put(lambda increment=increment: publisher.publish(increment, time.time()))
            publisher.writer.drain()
            seconds[on] = time.perf_counter() - started
        publisher.touched.take()
        ratios.append(seconds[True] / seconds[False])
    print(f"training: with an increment every {every_s:g} s, {statistics.median(ratios):.3f} of the time without")
    print(f"  rounds: {' '.join(f'{ratio:.3f}' for ratio in ratios)}")
    print(f"  the student stands still for {1000 * statistics.median(took):.1f} ms at each (median)")


@contextmanager
def every_second(do: Callable[[int], None]) -> Iterator[None]:
    over = threading.Event()

    def work() -> None:
        n = 0
        while not over.wait(1.0):
            do(n)
            n += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def server(folder: Path, model: str, follow: str) -> Iterator[int]:
    words = ["serve", model, "--run-dir", str(folder), "--port", "0", "--no-access-log", "--follow", follow]
    process = subprocess.Popen([sys.executable, "-c", COMMAND, *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().split("http://127.0.0.1:")[1].split(";")[0])
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield port
    finally:
        process.terminate()
        process.wait()


def serving(
    name: str, port: int, model: str, question: Question, rounds: int, seconds: float, do: Callable[[int], None]
) -> None:
    rate = len(asyncio.run(over_http(port, model, question, None, seconds / 2))) / (seconds / 2)
    at = due(rate / 2, seconds)
    asyncio.run(over_http(port, model, question, at, seconds))
    found: dict[str, list[np.ndarray]] = {"quiet": [], name: [], "quiet again": []}
    for turn in range(rounds):
        order = list(found) if turn % 2 == 0 else list(found)[::-1]
        for which in order:
            if which == name:
                with every_second(do):
                    taken_ms = asyncio.run(over_http(port, model, question, at, seconds))
            else:
                taken_ms = asyncio.run(over_http(port, model, question, at, seconds))
            found[which].append(np.quantile(taken_ms, (0.5, 0.99, 0.999)))
    quiet = np.array(found["quiet"])
    print(f"\nserving, {name} against quiet, at {rate / 2:,.0f} requests/s (half of the saturated rate)")
    for which, rows in found.items():
        p50, p99, p999 = np.median(rows, axis=0)
        ratio = np.median(np.array(rows) / quiet, axis=0)
        print(
            f"  {which:<12} p50 {p50:7.3f}  p99 {p99:7.3f}  p99.9 {p999:7.3f} ms; of quiet's: "
            f"{ratio[0]:.2f} {ratio[1]:.2f} {ratio[2]:.2f}"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--every", type=float, default=1.0)
    asked = options.parse_args()
    set_threads(1)
    config = load(CONFIG, ["tracking.enabled=false"])
    model = config.students[0].name
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        question = next(q for q in questions(run_of(Path(folder))) if (q.rows, q.name) == (100, "JSON rows"))
        publisher = Publisher(config, RunDir(Path(folder)).live(model))
        training(publisher, asked.rounds, asked.every)
        ready = []
        for n in range(20):  # a step or so each, taken before, so that only files are written while requests are timed
            ready.append(publisher.take(publisher.learn(n, noted=True)))
        with server(Path(folder), model, "live") as port:
            serving(
                "increments", port, model, question, asked.rounds, asked.seconds,
                lambda n: publisher.publish(ready[-1]._replace(rows=ready[n % len(ready)].rows | ready[-1].rows), 0.0),
            )  # fmt: skip
        ledger = Ledger(RunDir(Path(folder)), model)
        save_served(publisher.student.export(), ledger.versions, OTHER)
        with ledger.writing() as writing:
            writing.add(Action.PUBLISHED, OTHER, by=POLICY, reason="made")

        def promote(n: int) -> None:
            with ledger.writing() as writing:
                writing.add(Action.PROMOTED, (OTHER, VERSION)[n % 2], by=HAND, reason="tried")

        with server(Path(folder), model, "champion") as port:
            serving("swaps", port, model, question, asked.rounds, asked.seconds, promote)


if __name__ == "__main__":
    main()
