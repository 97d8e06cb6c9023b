"""Where several augmentation workers end: blocks played for 1 to 64 ranks from the part costs that runs recorded.

    python -m tests.benchmarks.bench_partitions RUN… [--block-rows 16384]

RUN: finished runs of one stream with `settlement.by: partition`, several numbers of `augmentation.workers` and two of
partitions; as RUN@STATUS, without what a copy of its status.json that was made in its midst had already. Each phase of
each rank (`workers.augmentation.ranks[].cpu_s` of summary.json) is fitted by

    CPU seconds a block = (shared + P · partition) / N + own + (committer + hears · N on rank 0)   none below zero

and blocks are played with N partitions, at least as many as runs had, and rows drawn by partition: a stage takes as
long as its slowest rank, and the committer comes on top. Every rank has a core; disks, networks and teachers take no
time. Beside it a commit of as many files as N ranks write is made and timed, at every N.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from scipy.optimize import nnls

from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.shards import numbers_of
from pipelines.report.results.stored import read_summary
from streaming.lake.delta.files import DataFile
from streaming.lake.delta.table import write_rows
from streaming.lake.writer import LakeTable
from tests.support.streams.wide_rows import SCHEMA, batch

RANKS = (1, 2, 4, 8, 16, 32, 64)
STAGES = (
    ("read and settle", ("wait for messages", "poll", "decode", "merge", "settle")),
    ("load, score, write", ("load", "score", "write")),
    ("save state", ("save state",)),
    ("commit", ("commit", "deliver")),
    ("publish", ("publish",)),
    ("orders, answers", ("order", "wait for orders", "answer", "wait for ranks")),
)
REST = "other threads, status"
"""All other phases."""
PLAYED, COMMITS = 200, 5


class Cost(NamedTuple):
    """CPU seconds of a stage a block: what ranks share, of the rows and of each partition, what each rank has anew, and
    what rank 0 has beside them."""

    shared: float
    partition: float
    own: float
    committer: float
    hears: float


class Recorded(NamedTuple):
    """One rank of a run: CPU seconds a block by stage."""

    ranks: int
    partitions: int
    rank: int
    seconds: Mapping[str, float]


def stages_of(phases: Mapping[str, float], blocks: float) -> dict[str, float]:
    """CPU seconds a block by stage.

    >>> stages_of({"score": 2.0, "write": 1.0, "status": 3.0}, 2)["load, score, write"]
    1.5
    """
    seconds = {stage: sum(phases.get(phase, 0.0) for phase in names) / blocks for stage, names in STAGES}
    return seconds | {REST: sum(phases.values()) / blocks - sum(seconds.values())}


def recorded(run: str, block_rows: int) -> list[Recorded]:
    """The ranks of a run, per block of so many rows."""
    root, _, since = run.partition("@")
    run_dir, summary = RunDir(Path(root)), read_summary(RunDir(Path(root)))
    config, worker = load(run_dir.config), summary.workers["augmentation"]
    N, P = config.augmentation.workers, config.kafka.impressions.partitions
    rows, each = summary.counts.lake_rows, [Counter(rank.cpu_s) for rank in worker.ranks] or [Counter(worker.cpu_s)]
    if since:
        before = json.loads(Path(since).read_text())
        own = before["workers"]["augmentation"]
        rows -= before["lake"]["rows"]
        for phases, earlier in zip(each, own["ranks"] or [own], strict=True):
            phases.subtract(earlier["cpu_s"])
    total = sum(sum(phases.values()) for phases in each)
    print(f"{root}: {N} ranks, {P} partitions, {rows:,} rows, {total:.2f} CPU s, {1e6 * total / rows:.1f} µs a row")
    return [Recorded(N, P, rank, stages_of(phases, rows / block_rows)) for rank, phases in enumerate(each)]


def fitted(runs: Sequence[Recorded], stage: str) -> Cost:
    """The cost of a stage by least squares over all ranks.

    >>> sizes = [(N, P) for N in (1, 2, 4) for P in (4, 8)]
    >>> runs = [Recorded(N, P, r, {"x": (8 + P) / N + 1 + (r == 0) * 2}) for N, P in sizes for r in range(N)]
    >>> [round(float(part), 6) for part in fitted(runs, "x")]
    [8.0, 1.0, 1.0, 2.0, 0.0]
    """
    terms = np.array(
        [[1 / r.ranks, r.partitions / r.ranks, 1, r.rank == 0, r.ranks * (r.rank == 0)] for r in runs], float
    )
    return Cost(*nnls(terms, np.array([run.seconds[stage] for run in runs]))[0])


def played(costs: Mapping[str, Cost], ranks: int, partitions: int, block_rows: int) -> tuple[float, float]:
    """Seconds a block, and those of them that are the committer's alone."""
    random, of = np.random.default_rng(0), [numbers_of(partitions, rank, ranks) for rank in range(ranks)]
    rows = random.multinomial(block_rows, np.full(partitions, 1 / partitions), PLAYED)
    slowest = np.mean([max(row[list(numbers)].sum() for numbers in of) / block_rows for row in rows])
    alone = sum(cost.committer + cost.hears * ranks for cost in costs.values())
    stages = (cost.shared * float(slowest) + cost.partition * partitions / ranks + cost.own for cost in costs.values())
    return sum(stages) + alone, alone


class Written:
    """A block's rows as files of so many ranks, written before they are asked for."""

    def __init__(self, lake: LakeTable, rows: pa.Table, ranks: int, by: Sequence[str]) -> None:
        self.facts, step = rows.select(["lake_seq", "block", "event_time_ms", "vertical"]), -(-rows.num_rows // ranks)
        parts = [rows.slice(first, step) for first in range(0, rows.num_rows, step)]
        self.written = [file for part in parts for file in write_rows(lake.path, part, by, ("lake_seq",))]

    def files(self, by: Sequence[str], statistics: Sequence[str]) -> list[DataFile]:
        return self.written


def commit_seconds(ranks: int, block_rows: int) -> tuple[float, int]:
    """CPU seconds of a commit (median) of the files of so many ranks, and how many those are."""
    with tempfile.TemporaryDirectory() as folder:
        lake = LakeTable(Path(folder) / "lake", SCHEMA, "verticals")
        writer, took = lake.open_writer(), []
        for number in range(COMMITS):
            block = pa.Table.from_batches([batch(writer.last_lake_seq + 1, block_rows)])
            held = Written(lake, block, ranks, ("vertical",))
            began = time.process_time()
            writer.commit(None, state=number, metadata={}, elsewhere=held)
            took.append(time.process_time() - began)
        return float(np.median(took)), len(held.written)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", nargs="+", metavar="RUN[@STATUS]")
    options.add_argument("--block-rows", type=int, default=16384)
    asked = options.parse_args()
    runs = [rank for root in asked.runs for rank in recorded(root, asked.block_rows)]
    least = min(run.partitions for run in runs)
    measured, names = {run.ranks for run in runs}, [*(stage for stage, _ in STAGES), REST]
    costs = {stage: fitted(runs, stage) for stage in names}
    print(
        "\n| CPU ms a block | shared | each partition | each rank | committer | committer, a rank |\n"
        + "|---" * 6
        + "|"
    )
    for stage, cost in costs.items():
        print(f"| {stage} | {' | '.join(f'{1e3 * part:.1f}' for part in cost)} |")
    print(
        "\n| ranks | | rows/s | a rank's own | committer, ms a block | its share | a commit of files, ms |\n"
        + "|---" * 7
        + "|"
    )
    for ranks in RANKS:
        seconds, alone = played(costs, ranks, max(ranks, least), asked.block_rows)
        own, (commit_s, files) = sum(cost.own for cost in costs.values()), commit_seconds(ranks, asked.block_rows)
        print(
            f"| {ranks} | {'recorded' if ranks in measured else 'extrapolated'} | {asked.block_rows / seconds:,.0f} | "
            f"{own / seconds:.2f} | {1e3 * alone:.0f} | {alone / seconds:.2f} | {files}: {1e3 * commit_s:.0f} |"
        )
    never = costs and sum(cost.own + cost.committer for cost in costs.values())
    print(f"\nwithout what grows with ranks, no number of them passes {asked.block_rows / never:,.0f} rows/s")


if __name__ == "__main__":
    main()
