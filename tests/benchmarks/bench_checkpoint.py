"""What a checkpoint costs the training beside it.

    python -m tests.benchmarks.bench_checkpoint [--rows 1500000]

A teacher of three tables steps on, once with nothing else going on and once while its checkpoints are written, without
a pause, by the writer's thread. Prints the copy (all that a step ever waits for), the write, and the ratio of the two
step times; the same steps in one process, one after the other, so that the ratio holds whatever else the machine does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from exfm.features.batch import Batch, BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.machine import set_threads
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.snapshots.checkpoint import prune_checkpoints, save_checkpoint
from pipelines.live.training.writer import Writer
from pipelines.live.workers.stopwatch import Stopwatch

TABLES, BATCH_ROWS = ("user", "ad", "page"), 2048


def batches(rows: int, count: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    build = BatchBuilder(features_of(rows), ["ctr"])
    return [
        build(
            pa.table(
                {name: rng.integers(0, rows, BATCH_ROWS) for name in TABLES}
                | {"bid": rng.random(BATCH_ROWS), "label_ctr": rng.integers(0, 2, BATCH_ROWS).astype(np.int8)}
            )
        )
        for _ in range(count)
    ]


def features_of(rows: int) -> FeatureSet:
    sparse = [SparseFeature(name=name, rows=rows // len(TABLES)) for name in TABLES]
    return FeatureSet(sparse=sparse, dense=[DenseFeature(name="bid")])


def timed_steps(teacher: Teacher, stream: list[Batch], until: Callable[[int], bool]) -> list[tuple[float, float]]:
    """(seconds, of the processor in this thread) of each step, over and over the stream until `until(steps)`."""
    found: list[tuple[float, float]] = []
    while not until(len(found)):
        start, own = time.perf_counter(), time.thread_time()
        teacher.train_step(stream[len(found) % len(stream)])
        found.append((time.perf_counter() - start, time.thread_time() - own))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_500_000, help="of all embedding tables")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--writes", type=int, default=5)
    given = parser.parse_args()
    set_threads(1)
    teacher = Teacher(TeacherConfig(width=given.width), features_of(given.rows), ["ctr"], seed=0)
    stream = batches(given.rows, 20)
    timed_steps(teacher, stream, lambda steps: steps >= 20)  # warm
    alone = timed_steps(teacher, stream, lambda steps: steps >= given.steps)

    copies, writes, beside = [], [], []
    with tempfile.TemporaryDirectory() as root:
        watch = Stopwatch()
        writer = Writer("bench", 1, watch)

        def write(number: int, tensors) -> None:
            start = time.perf_counter()
            save_checkpoint(root, f"v{number:08d}", tensors, {})
            prune_checkpoints(root, keep=2)
            writes.append(time.perf_counter() - start)

        for number in range(given.writes):
            start = time.perf_counter()
            tensors = teacher.state()
            copies.append(time.perf_counter() - start)
            writer.put(lambda number=number, tensors=tensors: write(number, tensors))
            del tensors
            beside += timed_steps(teacher, stream, lambda steps: writer.idle)
        writer.close()
        size = sum(file.stat().st_size for file in Path(root).rglob("tensors.bin")) / 2
        waited = watch.phases_s.get("wait for disk", 0.0)
    alone += timed_steps(teacher, stream, lambda steps: steps >= given.steps)
    teacher.close()

    def middle(seconds: Iterable[float]) -> float:
        return 1000 * float(np.median(list(seconds)))

    (alone_s, alone_own), (beside_s, beside_own) = zip(*alone, strict=True), zip(*beside, strict=True)
    print(f"teacher    {given.rows:,} embedding rows x {given.width}, checkpoint {size / 2**20:.0f} MB")
    print(f"copy       {middle(copies):8.1f} ms   what a step waits for")
    times = middle(writes) / middle(copies)
    print(f"write      {middle(writes):8.1f} ms   in the background, {times:.1f} times the copy")
    print(f"waited     {1000 * waited:8.1f} ms   for a full queue, over {given.writes} checkpoints")
    print(f"step       {middle(alone_s):8.2f} ms   of {BATCH_ROWS} rows with nothing written ({len(alone)} steps)")
    print(f"           {middle(beside_s):8.2f} ms   while a checkpoint is written ({len(beside)} steps)")
    ratio = middle(beside_s) / middle(alone_s)
    print(f"ratio      {ratio:8.2f}      of the medians; longest step {1000 * max(beside_s):.0f} ms")
    own = middle(beside_own) / middle(alone_own)
    print(f"           {own:8.2f}      of the step's own processor time: the rest is who else uses the cores")


if __name__ == "__main__":
    main()
