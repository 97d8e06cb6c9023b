"""What reading ahead is worth to the teacher.

    python -m tests.benchmarks.bench_reader_ahead [--blocks 8] [--turns 3] [--steps 40]

1. One rank, the whole worker: it learns a lake of BLOCKS × 16,384 rows, TURNS times with its reading (decode, cut,
   build) in a thread of its own and TURNS times without, in turns. Rows a second, and where the time went. Once with
   ids that are numbers, and once with ids that are strings, which take longer to decode and to hash.
2. Two ranks over gloo: STEPS steps with the ids of batch t + 1 on their way during step t (`Teacher.prepare`), and as
   many without, in turns. Milliseconds a step of rank 0; batches are built beforehand.

Ratios are medians over pairs of neighbours, with the smallest and the largest. What is computed is the same to the bit:
tests/contracts/test_pipeline.py and tests/unit/exfm hold that, and 1. compares the checkpoints at its end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.machine import set_threads
from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.teacher import worker as teacher_module
from pipelines.live.workers.teacher.worker import TeacherWorker
from pipelines.live.workers.worker import Orders
from streaming.lake.writer import LakeTable
from streaming.ports import free_port
from tests.support.pipelines.small_runs import small

BLOCK_ROWS, IDS, FLOATS = 16_384, 12, 4
RANK = """
import sys
from tests.benchmarks.bench_reader_ahead import steps_of_a_rank
steps_of_a_rank(*map(int, sys.argv[1:]))
"""


def config_of(ids: str = "int64", **changes: Any) -> Config:
    columns: list[dict[str, Any]] = [{"name": f"id_{i}", "type": ids} for i in range(IDS)]
    columns += [{"name": f"value_{i}", "type": "float32"} for i in range(FLOATS)]
    sparse = [{"name": f"id_{i}", "rows": 20_000} for i in range(IDS)]
    sparse += [{"name": f"pair_{i}", "columns": [f"id_{i}", f"id_{i + 1}"], "rows": 20_000} for i in range(4)]
    model = {"width": 16, "layers": 2}
    return small(
        "nowhere:1",
        source=None,
        rows__columns=columns,
        features={"sparse": sparse, "dense": [{"name": f"value_{i}"} for i in range(FLOATS)]},
        pace={"mode": "free", "max_rows_ahead": 1 << 30},
        teacher={
            "batch_rows": 2048,
            "publish_every_rows": 1 << 24,
            "checkpoint_every_blocks": 1 << 20,
            "model": model,
        },
        students=[],
        **changes,
    )


def block_of(config: Config, number: int) -> pa.RecordBatch:
    drawn, first = np.random.default_rng(number), number * BLOCK_ROWS
    columns = []
    for field in config.rows.augmented:
        if field.name in ("lake_seq", "impression_id"):
            column = pa.array(np.arange(first, first + BLOCK_ROWS))
        elif field.name == "block":
            column = pa.array(np.full(BLOCK_ROWS, number))
        elif field.name == "vertical":
            column = pa.array(np.array(["news", "shop", "video"])[drawn.integers(0, 3, BLOCK_ROWS)])
        elif pa.types.is_string(field.type) and field.name.startswith("id_"):
            column = pc.binary_join_element_wise("id of", pa.array(drawn.zipf(1.2, BLOCK_ROWS)).cast("string"), "-")
        elif pa.types.is_string(field.type):
            column = pa.array(np.full(BLOCK_ROWS, "2026-01-01" if field.name == "event_date" else "ctr"))
        elif pa.types.is_floating(field.type):
            column = pa.array(drawn.random(BLOCK_ROWS)).cast(field.type)
        elif field.name.startswith("label_"):
            column = pa.array(drawn.integers(0, 2, BLOCK_ROWS)).cast(field.type)
        else:
            column = pa.array(drawn.zipf(1.2, BLOCK_ROWS) % 1_000_000).cast(field.type)
        columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=config.rows.augmented)


class NoTopic:
    """An examples topic that no longer holds anything: all comes from the lake."""

    def __init__(self, *_: Any) -> None: ...
    def open(self, position: Any = None) -> None: ...
    def seek(self, position: Any) -> None: ...
    def close(self) -> None: ...

    def next_batch(self, max_wait_s: float = 0.0) -> None:
        return None

    def at_end(self) -> bool:
        return True


def one_rank(lake: Path, ids: str, blocks: int, read_ahead: int, root: Path) -> tuple[float, dict[str, float], bytes]:
    """(rows a second, seconds by phase, all weights at the end)."""
    shutil.rmtree(root, ignore_errors=True)
    run_dir = RunDir(root)
    run_dir.lake.parent.mkdir(parents=True)
    run_dir.lake.symlink_to(lake)
    config = config_of(ids)
    config = config.model_copy(update={"teacher": config.teacher.model_copy(update={"read_ahead": read_ahead})})
    worker = TeacherWorker(config, run_dir)
    worker.open()
    orders, start = Orders(end_seq=blocks * BLOCK_ROWS - 1), time.perf_counter()
    while not worker.done:
        worker.advance(60.0, orders)
    took = time.perf_counter() - start
    assert worker.rows == blocks * BLOCK_ROWS
    phases = worker.watch.phases_s
    worker.close()
    newest = latest_checkpoint(run_dir.checkpoints("teacher"))
    assert newest is not None
    weights = b"".join(tensor.numpy().tobytes() for _, tensor in sorted(load_checkpoint(newest).tensors.items()))
    return worker.rows / took, phases, weights


def steps_of_a_rank(rank: int, port: int, turns: int, steps: int) -> None:
    """Rank 0 prints the milliseconds a step of every turn, with and without."""
    set_threads(1)
    from exfm.features.batch import BatchBuilder
    from exfm.models.teacher import Teacher
    from exfm.parallel.group import RankGroup

    config = config_of()
    build = BatchBuilder(config.features, config.tasks)
    rows = block_of(config, 0)
    batches = [build(rows.slice((2 * i + rank) * 1024, 1024)) for i in range(8)]
    found: dict[str, list[float]] = {"on": [], "off": []}
    with RankGroup(rank, 2, master_port=port) as group:
        teacher = Teacher(config.teacher.model, config.features, config.tasks, 1, group=group)
        for batch in batches:
            teacher.train_step(batch)
        for _ in range(turns):
            for way in ("off", "on"):
                start = time.perf_counter()
                if way == "off":
                    for step in range(steps):
                        teacher.train_step(batches[step % 8])
                else:
                    sent = teacher.prepare(batches[0])
                    for step in range(steps):
                        now, sent = sent, teacher.prepare(batches[(step + 1) % 8])
                        teacher.train_step(now)
                    teacher.train_step(sent)  # one more than without
                count = steps + (way == "on")
                found[way].append((time.perf_counter() - start) / count * 1000)
    if rank == 0:
        print(json.dumps(found))


def ratio(on: list[float], off: list[float]) -> str:
    pairs = [a / b for a, b in zip(on, off, strict=True)]
    return f"{statistics.median(pairs):.3f} ({min(pairs):.3f} to {max(pairs):.3f})"


def compare_one_rank(folder: Path, ids: str, blocks: int, turns: int) -> None:
    config = config_of(ids)
    writer = LakeTable(folder / "lake", config.rows).open_writer()
    for number in range(blocks):
        writer.commit(block_of(config, number), state=number, metadata={})
    rates: dict[str, list[float]] = {"on": [], "off": []}
    ends = set()
    for turn in range(turns + 1):
        for way, ahead in (("off", 0), ("on", 2)):
            rate, phases, weights = one_rank(folder / "lake", ids, blocks, ahead, folder / way)
            ends.add(weights)
            if turn:  # the first is warming up
                rates[way].append(rate)
            if turn == turns:
                spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in sorted(phases.items()))
                print(f"one rank, {ids} ids, reading ahead {way}: {statistics.median(rates[way]):,.0f} rows/s; {spent}")
    gained = ratio(rates["on"], rates["off"])
    print(f"one rank, {ids} ids: rows/s on / off {gained}; weights equal: {len(ends) == 1}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--blocks", type=int, default=8)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--steps", type=int, default=40)
    asked = options.parse_args()
    set_threads(1)
    teacher_module.ExamplesReader = NoTopic  # type: ignore[assignment,misc]
    for ids in ("int64", "string"):
        with tempfile.TemporaryDirectory() as folder:
            compare_one_rank(Path(folder), ids, asked.blocks, asked.turns)
    port = str(free_port())
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), port, str(asked.turns), str(asked.steps)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=600)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    found = json.loads(told[0])
    on, off = (statistics.median(found[way]) for way in ("on", "off"))
    print(f"two ranks over gloo: {off:.2f} ms/step without, {on:.2f} with; off / on {ratio(found['off'], found['on'])}")


if __name__ == "__main__":
    main()
