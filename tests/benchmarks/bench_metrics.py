"""What scrapes and spans cost, as shares of the CPU seconds of a run.

    python -m tests.benchmarks.bench_metrics RUN

RUN is a run, living or not; its `status.json` says what its workers computed and for how long. Its metrics are served
here and asked for over HTTP, as Prometheus does, and the CPU seconds of both sides of a scrape are set against those of
the run in the time between two scrapes. Spans of its blocks are made and exported to a file: of each block six steps of
augmentation, one of the teacher, and one of each student for every batch of 512 rows.
"""

from __future__ import annotations

import argparse
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.core.run_dir.logs import LogForm
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.stored import read_status
from pipelines.live.workers.block_spans import BlockRows, BlockSpans, file_exporter
from pipelines.live.workers.stopwatch import Stopwatch
from pipelines.track.endpoint import metrics_served
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.identifiers import LAKE_SEQ

SCRAPES, BLOCKS = 100, 200
BATCH_ROWS = 512
COMMITTED = ("poll", "merge", "settle", "load", "score", "commit", "publish")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--every-s", type=float, default=15.0, help="between two scrapes; Prometheus' usual 15 s")
    parser.add_argument("--block-rows", type=int, default=4096)
    asked = parser.parse_args()
    status = read_status(asked.run)
    workers = [worker.model_dump() for worker in status.workers.values()]
    computed_s = sum(sum((worker["cpu_s"] or {}).values()) for worker in workers)
    rows = (TableFiles(RunDir(asked.run).lake).identifier(LAKE_SEQ) or 0) + 1
    learned = sum(worker["rows"] for worker in workers if worker["kind"] == "student")
    scrape_s, size = scrape_cost(asked.run)
    between_s = computed_s * asked.every_s / (status.wall_s or 1.0)
    print(f"run        {computed_s:,.1f} CPU s of workers in {status.wall_s:,.0f} s, {rows:,} rows in the lake")
    print(f"scrape     {1000 * scrape_s:.1f} CPU ms for {size / 1024:,.0f} KiB, of which none is a worker's")
    print(f"           {100 * scrape_s / between_s:.3f} % of the run's CPU seconds, every {asked.every_s:g} s")
    commit_s, learn_s = span_cost(COMMITTED, root=True), span_cost(("train",), root=False)
    blocks = rows / asked.block_rows
    spans_s = blocks * (commit_s + learn_s) + learned / BATCH_ROWS * learn_s
    print(f"spans      {1e6 * commit_s:.0f} CPU us a block in augmentation, {1e6 * learn_s:.0f} us a step of learning")
    print(
        f"           {100 * spans_s / computed_s:.3f} % of the run's CPU seconds, with blocks of {asked.block_rows:,}"
    )


def scrape_cost(run: Path) -> tuple[float, int]:
    """CPU seconds of a scrape, of who serves and who asks, and its bytes."""
    with metrics_served(run, 0) as url:
        assert url is not None

        def scrape() -> int:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return len(answer.read())

        size, before = scrape(), time.process_time()
        for _ in range(SCRAPES):
            scrape()
        return (time.process_time() - before) / SCRAPES, size


def span_cost(phases: tuple[str, ...], *, root: bool) -> float:
    """CPU seconds of the spans of one block with these phases, the exporting thread's included."""
    with TemporaryDirectory() as folder:
        watch = Stopwatch()
        log = LogForm(10.0).handler(Path(folder) / "worker.spans.jsonl")
        spans = BlockSpans("bench", "worker", "a lake", watch, [file_exporter(log)])
        before = time.process_time()
        for number in range(BLOCKS):
            for phase in phases:
                with watch(phase):
                    pass
            spans.note([BlockRows(number, 1, number, number)], root=root)
        spans.close()
        return (time.process_time() - before) / BLOCKS


if __name__ == "__main__":
    main()
