"""A student's worker without a lake: batches of rows go straight into it, as those of its reader would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.feeds.student import StudentBatch
from pipelines.live.workers.student.worker import StudentWorker
from tests.support.pipelines.stored_run import rows_of
from tests.support.waiting import eventually


@contextmanager
def starting(config: Config, root: Path) -> Iterator[Callable[[], StudentWorker]]:
    """Starts a worker of the config's first student, `feed`, as often as asked, in one run directory."""
    workers = []

    def start() -> StudentWorker:
        worker = StudentWorker(config, config.students[0], RunDir(root))
        worker.resume()
        worker.state.record.predictions.open(worker.position)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.abandon()


def learn(worker: StudentWorker, *blocks: int) -> None:
    for block in blocks:
        worker.learn(
            StudentBatch(rows_of(block), worker.build(rows_of(block)))
        )  # a checkpoint is due after every 16 rows
    eventually(lambda: worker.checkpointer.idle)
