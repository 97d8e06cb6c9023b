"""How long after a click's window its label is learned, with conversions waited for an hour or a week.

    python -m tests.benchmarks.ctr_lag [--impressions 20000] [--days 1] [--pace lockstep]

The same stream twice, click window 10 min, all workers stepped in this process, a chunk of the source at a time. For
every row that settles a click: how far the stream had come in event time (the merge's watermark) past the impression,
when the row was committed to the lake, learned by the teacher, and learned by the students that read it. What a row has
to wait for is its window and the rest of its block; rows of conversions that share its blocks make these fill sooner.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import prepare
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from pipelines.live.workers.ingest import IngestWorker
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.teacher.worker import TeacherWorker
from pipelines.live.workers.worker import Orders, Worker
from streaming.broker.broker import LocalBroker
from streaming.kafka.topics import ensure_topics
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
from tests.support.pipelines.small_runs import small

WINDOWS_S = {"1 hour": 3600, "7 days": 7 * 86400}
CTR_WINDOW_S = 600
STEPS = ("in the lake", "learned by the teacher", "learned by its students")


class Clocked:
    """A worker, and how far event time had come whenever its position had moved."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.seqs: list[int] = []
        self.event_times_ms: list[int] = []

    def work(self, watermark_ms: Callable[[], int]) -> bool:
        """Step until there is nothing to do; False when nothing was done at all. Event time moves with augmentation's
        own steps only."""
        worked = False
        while not self.worker.done and self.worker.step():
            worked = True
            if isinstance(self.worker, AugmentationWorker):
                self._note(self.worker.report().lake_seq, watermark_ms())
        if worked:
            self._note(self.worker.report().lake_seq, watermark_ms())
        return worked

    def _note(self, seq: int | None, event_time_ms: int) -> None:
        if seq is not None and seq >= 0 and (not self.seqs or seq > self.seqs[-1]):
            self.seqs.append(seq)
            self.event_times_ms.append(event_time_ms)

    def when(self, seq_N: np.ndarray) -> np.ndarray:
        """Event time, ms, at which each row was done."""
        return np.asarray(self.event_times_ms)[np.searchsorted(self.seqs, seq_N)]


def lags(config: Config, root: Path) -> dict[int, tuple[float, ...]]:
    """By impression: seconds of event time from it to each of `STEPS`; of clicks settled while the stream lasted."""
    run_dir = RunDir(root)
    root.mkdir()
    prepare(config, run_dir)
    kafka = config.kafka
    ensure_topics(kafka, {t.topic: t.partitions for t in (kafka.impressions, kafka.feedback, kafka.examples)})
    ensure_topics(kafka, {kafka.dead_letters.topic: 1})
    LakeTable(run_dir.lake, config.rows).open_writer()
    ingest = IngestWorker(config, run_dir)
    augmentation = AugmentationWorker(config, run_dir, until_end=True)
    teacher = Clocked(TeacherWorker(config, run_dir))
    students = [Clocked(StudentWorker(config, student, run_dir)) for student in config.students]
    committed = Clocked(augmentation)
    for worker in (ingest, augmentation, teacher.worker, *(student.worker for student in students)):
        worker.open()

    def watermark_ms() -> int:
        return augmentation.stream.feed.intake.watermark_ms

    while not all(each.worker.done for each in (committed, teacher, *students)):
        if not ingest.done:
            ingest.step()
            for output in ingest._outputs:
                output.writer.flush()
        while any([each.work(watermark_ms) for each in (committed, teacher, *students)]):
            pass
        if augmentation.done:
            for each in (teacher, *students):
                each.worker.orders = Orders(end_seq=augmentation.report().lake_seq)
    for worker in (ingest, augmentation, teacher.worker, *(student.worker for student in students)):
        worker.close()

    columns = ["lake_seq", "impression_id", "event_time_ms", "vertical", "settlement"]
    lake = LakeReader(run_dir.lake, config.rows).read(columns=columns).table
    clicks = lake.filter(pc.equal(lake["settlement"], "ctr"))
    seq_N, time_N = clicks["lake_seq"].to_numpy(), clicks["event_time_ms"].to_numpy()
    verticals_N = np.asarray(clicks["vertical"].to_pylist())
    slowest_N = np.zeros(len(seq_N), np.int64)
    for student, settings in zip(students, config.students, strict=True):
        mine = np.isin(verticals_N, settings.row_filter)
        slowest_N[mine] = np.maximum(slowest_N[mine], student.when(seq_N[mine]))
    reached = np.column_stack([committed.when(seq_N), teacher.when(seq_N), slowest_N])
    flowing = (reached <= time_N.max()).all(1) & (slowest_N > 0)  # after the end, event time is infinite
    lag = (reached - time_N[:, None])[flowing] / 1000
    return dict(zip(clicks["impression_id"].to_numpy()[flowing].tolist(), map(tuple, lag), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impressions", type=int, default=20_000)
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--pace", choices=["lockstep", "free"], default="lockstep")
    parser.add_argument("--block-rows", type=int, default=32)
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        broker = LocalBroker(Path(folder) / "broker", heap_mb=256)
        try:
            servers = broker.start().bootstrap_servers
            for name, window_s in WINDOWS_S.items():
                tasks = [{"name": "ctr", "window_s": CTR_WINDOW_S}]
                tasks += [{"name": "cvr", "window_s": window_s, "given": "ctr"}]
                config = small(
                    servers,
                    rows__tasks=tasks,
                    source__impressions=options.impressions,
                    source__duration_s=options.days * 86400,
                    source__daily_swing=0.0,
                    source__chunk_rows=16,
                    pace__mode=options.pace,
                    pace__block_rows=options.block_rows,
                    teacher__publish_every_rows=options.block_rows,
                )
                found[name] = lags(config, Path(folder) / name.replace(" ", "-"))
        finally:
            broker.stop()
    both = sorted(set.intersection(*(set(lag) for lag in found.values())))
    print(f"{len(both):,} clicks and non-clicks; seconds of event time after the impression (window {CTR_WINDOW_S} s)")
    print(f"{'':28}" + "".join(f"{f'{name}: median':>16}{'p99':>10}" for name in found) + f"{'ratio':>10}{'p99':>8}")
    for index, step in enumerate(STEPS):
        lag = [np.array([of[impression][index] for impression in both]) for of in found.values()]
        figures = [(float(np.median(each)), float(np.percentile(each, 99))) for each in lag]
        ratios = [figures[1][which] / figures[0][which] for which in (0, 1)]
        print(
            f"{step:28}"
            + "".join(f"{median:16,.0f}{p99:10,.0f}" for median, p99 in figures)
            + f"{ratios[0]:10.3f}{ratios[1]:8.3f}"
        )


if __name__ == "__main__":
    main()
