"""A slow stream: years of event time, a few hundred rows a day, in small commits; by dates, and as partitions follow.

    python -m tests.benchmarks.bench_slow_stream [--rows 500000] [--block-rows 512] [--days 1500] [--layouts dates auto]

Four verticals. For each layout in turn, a lake is written in blocks and kept in order as in a run (`Housekeeper` after
every commit), while a student of one vertical with a twin learns each block as it comes; then another learns the whole
lake from its start. Printed are files, the share of "read" in each student's busy time (wanted: at most 25 %), the time
of a commit, and what the first layout costs in multiples of the last: ratios of one machine and one run, not seconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.machine import set_threads
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.worker import Orders
from streaming.lake.delta.files import TableFiles
from streaming.lake.housekeeping import Housekeeper
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.lake.writer import LakeTable
from tests.support.pipelines.small_runs import small

DAY_MS, VERTICALS = 86_400_000, ("action", "comedy", "drama", "other")


class Found(NamedTuple):
    """What one layout cost."""

    partitioned_by: tuple[str, ...]
    files: int
    most_files: int
    commit_ms: float
    read_live: float
    read_from_start: float
    read_live_s: float

    def __str__(self) -> str:
        return (
            f"by {' and '.join(self.partitioned_by)}: {self.files:,} live files ({self.most_files:,} at most), "
            f"{self.commit_ms:.1f} ms a commit in the last tenth; the student's read: {self.read_live:.0%} of its busy "
            f"time live, {self.read_from_start:.0%} from the start of the lake"
        )


def config_of(layout: str) -> Config:
    sparse = [{"name": name, "rows": 10_000} for name in ("user_id", "ad_id")]
    model = {"width": 8, "trunk": {"name": "mlp", "mlp": [64, 32]}, "arm": "recommended"}
    return small(
        "nowhere:1",
        source=None,
        rows__tasks=[{"name": "ctr", "window_s": 600}],
        features={"sparse": sparse},
        teacher__only=[],
        lake={"layout": layout},
        students=[{"name": "drama", "twin": True, "batch_rows": 128, "model": model}],
    )


def blocks_of(config: Config, rows: int, block_rows: int, days: int) -> Iterator[pa.RecordBatch]:
    for number, first in enumerate(range(0, rows, block_rows)):
        yield block_of(config, number, first, min(block_rows, rows - first), days * DAY_MS / rows)


def block_of(config: Config, number: int, first: int, count: int, row_ms: float) -> pa.RecordBatch:
    drawn, seq = np.random.default_rng(number), np.arange(first, first + count)
    time_ms = (seq * row_ms).astype(np.int64)
    given = {
        "lake_seq": pa.array(seq),
        "impression_id": pa.array(seq),
        "block": pa.array(np.full(count, number)),
        "event_time_ms": pa.array(time_ms),
        "event_date": pc.strftime(pa.array(time_ms, pa.timestamp("ms")), format="%Y-%m-%d"),
        "vertical": pa.array(np.array(VERTICALS)[drawn.integers(0, len(VERTICALS), count)]),
        "settlement": pa.array([config.rows.groups[0].name] * count),
        "label_ctr": pa.array(drawn.integers(0, 2, count)),
        "teacher_logit_ctr": pa.array(drawn.normal(size=count)),
        "source_topic": pa.array(["impressions"] * count),
    }
    columns = [
        given.get(field.name, pa.array(drawn.integers(0, 5, count))).cast(field.type) for field in config.rows.augmented
    ]
    return pa.RecordBatch.from_arrays(columns, schema=config.rows.augmented)


def read_s(worker: StudentWorker) -> tuple[float, float]:
    """(seconds of reading, share of the busy time)"""
    seconds = worker.watch.phases_s["read"]
    return seconds, seconds / worker.watch.busy_s


def measured(layout: str, folder: Path, rows: int, block_rows: int, days: int) -> Found:
    config, run_dir = config_of(layout), RunDir(folder)
    (settings,) = config.students
    writer = LakeTable(run_dir.lake, config.rows, config.lake.layout).open_writer()
    keeper = Housekeeper(run_dir.lake, [], Readers(run_dir.readers), config.lake)
    student = StudentWorker(config, settings, run_dir)
    student.open()
    commit_s, most_files = [], 0
    for number, block in enumerate(blocks_of(config, rows, block_rows, days)):
        start = time.perf_counter()
        writer.commit(block, state=number, metadata={})
        commit_s.append(time.perf_counter() - start)
        keeper.maybe()
        while student.step():
            pass
        student.describe(student.report())  # as a runner asks, at most twice a second
        if number % 100 == 99:
            most_files = max(most_files, LakeReader(run_dir.lake, config.rows).files)
    keeper.wait(600)
    keeper.close()
    end = Orders(end_seq=writer.last_lake_seq)
    student.advance(600, end)
    student.close()
    files, late = TableFiles(run_dir.lake), RunDir(folder / "late")
    late.lake.parent.mkdir(parents=True)
    late.lake.symlink_to(run_dir.lake)
    other = StudentWorker(config, settings, late)
    other.open()
    while not other.done:
        other.advance(60, end)
    other.close()
    assert student.rows == other.rows
    live_s, live = read_s(student)
    last = commit_s[-max(1, len(commit_s) // 10) :]
    commit_ms = 1000 * statistics.median(last)
    return Found(
        files.partition_by,
        len(files.files),
        max(most_files, len(files.files)),
        commit_ms,
        live,
        read_s(other)[1],
        live_s,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=500_000)
    options.add_argument("--block-rows", type=int, default=512)
    options.add_argument("--days", type=int, default=1500)
    options.add_argument("--layouts", nargs="+", default=["dates", "auto"])
    asked = options.parse_args()
    set_threads(1)
    found = []
    for layout in asked.layouts:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measured(layout, Path(folder), asked.rows, asked.block_rows, asked.days))
        print(f"{layout:9} {found[-1]}", flush=True)
    one, other = found[0], found[-1]
    print(
        f"{asked.layouts[0]} / {asked.layouts[-1]}: files x{one.files / other.files:.0f}, "
        f"reading x{one.read_live_s / other.read_live_s:.1f}, a commit x{one.commit_ms / other.commit_ms:.1f}"
    )


if __name__ == "__main__":
    main()
