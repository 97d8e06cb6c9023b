"""A student's worker without a lake: batches of rows go straight into it, as those of its reader would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.config import Config
from pipelines.run_dir import RunDir
from pipelines.training import PredictionLog
from pipelines.workers.student import StudentWorker
from tests.support.pipelines.disks import eventually
from tests.support.pipelines.stored_run import rows_of


@contextmanager
def starting(config: Config, root: Path) -> Iterator[Callable[[], StudentWorker]]:
    """Starts a worker of the config's first student, `feed`, as often as asked, in one run directory."""
    workers = []

    def start() -> StudentWorker:
        worker = StudentWorker(config, config.students[0], RunDir(root))
        worker.take_up()
        worker._predictions = PredictionLog(root / "predictions" / "feed")
        worker._predictions.open(worker._seq)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.abandon()


def learn(worker: StudentWorker, *blocks: int) -> None:
    for block in blocks:
        worker._learn(rows_of(block), worker._build(rows_of(block)))  # a checkpoint is due after every 16 rows
    eventually(lambda: worker._writer.idle)
