"""A live topic that tests feed by hand, and the augmentation that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import prepare
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from pipelines.live.workers.report import Report
from streaming.kafka.topics import ensure_topics
from streaming.lake.writer import LakeTable
from streaming.partitioner import Partitioner
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.topics import by_hand, ipc, send
from tests.support.streams.scripted import HandClock

NOW_MS = 1_704_067_200_000 + 864_000_000  # ten days after the first impression
ROWS = 900


class Live:
    """A live topic by hand, and the augmentation that reads it; `reading` steps until what was sent is read."""

    def __init__(self, servers: str, root: Path, **settings: Any) -> None:
        """`settings`: changes of the config, as of `small`."""
        own = {"source": None, "pace__mode": "free", "pace__block_rows": 10_000, "pace__max_rows_ahead": 100_000}
        self.config: Config = small(servers, **(own | {"augmentation__idle_s": 0.2} | settings))
        self.run_dir, self.servers = RunDir(root), servers
        kafka = self.config.kafka
        topics = (kafka.impressions, kafka.feedback, kafka.examples, kafka.dead_letters)
        ensure_topics(kafka, {topic.topic: topic.partitions for topic in topics})
        self.shown, self.feedback = by_hand(self.config, ROWS, duplicate_rate=0.0)
        prepare(self.config, self.run_dir)
        LakeTable(self.run_dir.lake, self.config.rows).open_writer()

    def send(
        self, shown: list[dict[str, Any]], feedback: list[dict[str, Any]], timestamp_ms: int | None = None
    ) -> None:
        kafka, rows = self.config.kafka, self.config.rows
        messages = [(kafka.impressions.topic, n, ipc(of, rows.impression)) for n, of in self.parts(shown).items()]
        messages += [(kafka.feedback.topic, n, ipc(of, rows.feedback)) for n, of in self.parts(feedback).items()]
        send(self.servers, messages, timestamp_ms)

    def parts(self, rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
        """Rows by partition: in turn, or each where its id belongs."""
        if self.config.settlement.by == "stream":
            return {n: part for n in (0, 1) if (part := rows[n::2])}
        owner = Partitioner("exfm", 2)(pa.array([row["impression_id"] for row in rows], pa.int64()))
        of = {n: [row for row, own in zip(rows, owner.tolist(), strict=True) if own == n] for n in (0, 1)}
        return {n: part for n, part in of.items() if part}

    @contextmanager
    def opened(self, *, until_end: bool = False) -> Iterator[Callable[[], Report]]:
        """The worker at work: what is yielded reads all that was sent, commits it, and returns the report."""
        clock = HandClock()
        worker = AugmentationWorker(
            self.config, self.run_dir, until_end=until_end, now_ms=lambda: NOW_MS + round(1000 * clock()), clock=clock
        )
        worker.open()

        def read() -> Report:
            quiet = 0
            while quiet < 30 and not worker.done:
                quiet = 0 if worker.step() else quiet + 1
                clock.advance(0.5)
            return worker.report()

        try:
            yield read
        finally:
            worker.close()

    @contextmanager
    def reading(self, *, until_end: bool = False) -> Iterator[Report]:
        """Reads all that was sent, and commits it; the worker is closed behind the block."""
        with self.opened(until_end=until_end) as read:
            yield read()
