"""Feeding of a recorded file into the input topics of a config, by an IngestWorker in this process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pipelines.core.config.sections import Advance, Recorded
from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Kafka
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.ingest import IngestWorker
from streaming.broker.broker import LocalBroker
from streaming.errors import BadInput
from streaming.kafka.topics import ensure_topics
from streaming.sources.label_column import FeedbackFile
from streaming.sources.pacer import Pacer
from streaming.store.lock import file_lock

IDLE_S = 0.02


@dataclass(frozen=True)
class Fed:
    """Progress of feeding a file: `rows` of `total` impressions, `before` of them from earlier calls; `stopped`
    before its end."""

    rows: int
    total: int
    before: int
    took_s: float
    stopped: bool

    @property
    def rows_per_s(self) -> float:
        return (self.rows - self.before) / self.took_s if self.took_s else 0.0


def recorded_source(
    config: Config, file: Path, feedback: Path | None, rate: str | None, copies: Path, advance: Advance | None = None
) -> Recorded:
    """The source section for `file`: the config's if it has a recorded source, otherwise by the lake's column names.
    What is no Parquet file in order of time is copied as one into the folder `copies`; `advance` hears how far that is.

    Raises BadInput for an unusable rate, file or column.
    """
    source = config.source if isinstance(config.source, Recorded) else None
    if source is None and feedback is None:
        raise BadInput(
            f"where are the labels of {file}? The config has no source of kind recorded that names their columns; add "
            "one, or name the file of feedback with --feedback"
        )
    changed: dict[str, Any] = {"path": str(file), "written_path": None}
    if rate is not None:
        changed["rate"] = rate
    if feedback is not None:
        names = FeedbackFile(path="") if source is None or source.feedback is None else source.feedback
        own = names.model_copy(update={"path": str(feedback), "written_path": None})
        changed |= {"feedback": own, "labels": {}}
    if source is None:
        names, zone = FeedbackFile(path=""), config.rows.event_time_zone
        source = Recorded(path="", impression_id="impression_id", feedback=names, event_time_zone=zone)
    elif feedback is not None and source.impression_id is None:
        changed["impression_id"] = "impression_id"
    source = source.model_copy(update=changed)
    Pacer(source.rate)
    source.opened(config.rows, source.copies_in(copies, advance))
    return source


def reached(kafka: Kafka, run_dir: RunDir) -> Kafka:
    """`kafka` with its broker's address: the configured one, or the run directory's own, started if needed and left
    running."""
    if kafka.bootstrap_servers is not None:
        return kafka
    running = LocalBroker(run_dir.broker, port=kafka.port, heap_mb=kafka.heap_mb).start()
    return kafka.model_copy(update={"bootstrap_servers": running.bootstrap_servers})


def feed(config: Config, run_dir: RunDir, *, end: bool, append: bool, advance: Callable[[int, int], None]) -> Fed:
    """Feed until the stream ends or an interrupt comes; `advance` gets (impressions done, total)."""
    inputs = (config.kafka.impressions, config.kafka.feedback)
    ensure_topics(config.kafka, {topic.topic: topic.partitions for topic in inputs})
    worker = IngestWorker(config, run_dir, end=end, append=append)
    with _interrupt() as interrupted:
        started = time.monotonic()
        worker.open()
        try:
            if worker.done:  # by earlier calls
                return Fed(worker.total, worker.total, worker.total, 0.0, stopped=False)
            while not (worker.done or interrupted()):
                if not worker.step():
                    time.sleep(IDLE_S)
                advance(worker.rows, worker.total)
        finally:
            worker.close()
        took_s = time.monotonic() - started
    return Fed(worker.rows, worker.total, worker.resumed_rows, took_s, stopped=not worker.done)


@contextmanager
def alone(run_dir: RunDir) -> Iterator[None]:
    """Hold the feeding lock: two processes feeding the same topics would write everything twice."""
    run_dir.root.mkdir(parents=True, exist_ok=True)
    with file_lock(run_dir.root / "ingest.lock") as held:
        if not held:
            raise BadInput(
                f"another process (exfm ingest) feeds {run_dir.root}; wait for it, end it, or choose another --run-dir"
            )
        yield


@contextmanager
def _interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends the loop between two steps; a second one interrupts at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
