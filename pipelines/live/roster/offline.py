"""Offline learning: a student learns the lake of a stopped run in this process, without a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import locked
from pipelines.live.loop.signals import stopping
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.worker import Orders
from streaming.lake.reader import LakeReader

STEP_S = 0.5


def learn_offline(
    config: Config, name: str, run_dir: RunDir, *, ended: bool, advance: Callable[[int, int], None]
) -> int:
    """Learn the lake to its end, from the student's checkpoint if it has one; returns the number of rows learned now.
    `ended`: the stream is over, so its last rows are a batch, however few; else they wait for what the run brings when
    it goes on. `advance(done, total)` is called with rows of the lake.

    Ctrl-C ends it after a checkpoint; the same call goes on from there. Raises BadInput where the run lives, DataLost
    where rows that it needs were deleted.
    """
    with locked(run_dir):
        last = LakeReader(run_dir.lake, config.rows).last_lake_seq
        orders, stop_reasons = Orders(end_seq=last if ended else None), list[str]()
        worker = StudentWorker(config, config.student(name), run_dir)
        try:
            with stopping(stop_reasons.append, lambda: bool(stop_reasons)) if _in_main_thread() else nullcontext():
                worker.open()
                begins = worker.position + 1
                while not stop_reasons:
                    report = worker.advance(STEP_S, orders)
                    advance(max(0, (worker.position + 1) - begins), last + 1 - begins)
                    if worker.done or (not ended and report.lag_rows == 0):
                        break
        except BaseException:  # in the midst of a batch: what the last checkpoint has is what counts
            worker.abandon()
            raise
        worker.close()
        if stop_reasons:
            raise KeyboardInterrupt
        return worker.rows


def _in_main_thread() -> bool:
    """True if signals can be taken here."""
    return threading.current_thread() is threading.main_thread()
