"""Feed of settled rows: both input topics, merged into one order, labels joined as windows close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Topic
from pipelines.core.run_dir.end_offsets import stored_ends
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.stopwatch import Stopwatch
from streaming.intake.intake import InputTopic, Intake
from streaming.kafka.reader import TopicReader
from streaming.messages.dead_letters import Kind
from streaming.messages.source import EndOfStream
from streaming.position import Partition
from streaming.settlement.settlement import SettledRows, Settlement


class SettledFeed:
    """Settled rows in merged order, a bounded number at a time. `rows_read` counts input rows."""

    def __init__(self, intake: Intake, settlement: Settlement, watch: Stopwatch) -> None:
        self.intake, self.settlement = intake, settlement
        self.rows_read = 0
        self._watch = watch
        self._more = False  # rows are due beyond those that were asked for
        self._at_end = False

    def open(self, position: dict[str, Any] | None) -> None:
        """Continue from `position`, or start at the beginning of the topics."""
        self.intake.open(position, rows_before=self._counted())

    def check_accounts(self) -> None:
        """Raise DataLost unless the offsets up to the position hold exactly the rows counted by settlement."""
        self.intake.check_accounts(self._counted())

    def _counted(self) -> dict[Kind, int]:
        counters = self.settlement.counters()
        return {"impression": counters["impressions_read"], "feedback": counters["feedback_read"]}

    def position(self) -> dict[str, Any]:
        """Position after the last row read, which belongs to the settlement state."""
        return self.intake.position()

    @property
    def finished(self) -> bool:
        """True if the stream has ended and every row was returned."""
        return self._at_end and not self._more

    @property
    def at_end(self) -> bool:
        """True if the stream has ended; rows may still be due."""
        return self._at_end

    def next(self, max_rows: int, max_bytes: int | None = None) -> SettledRows | None:
        """The next settled rows, at most `max_rows` and ending with the one that reaches `max_bytes`, possibly none;
        None if there was nothing to read."""
        if self._more:
            with self._watch("settle"):
                return self._handed_out(self.settlement.release(max_rows, max_bytes))
        try:
            chunk = self.intake.next_batch()
        except EndOfStream:
            with self._watch("settle"):
                self._at_end = True
                return self._handed_out(self.settlement.finish(max_rows, max_bytes))
        if chunk is None:
            return None
        with self._watch("settle"):
            self.rows_read += len(chunk)
            return self._handed_out(self.settlement.step(chunk, max_rows, max_bytes))

    def _handed_out(self, settled: SettledRows) -> SettledRows:
        self._more = settled.more
        return settled

    def close(self) -> None:
        self.intake.close()


def intake_of(
    config: Config,
    run_dir: RunDir,
    *,
    until_end: bool,
    watch: Stopwatch,
    now_ms: Callable[[], int],
    clock: Callable[[], float],
    row_bytes: int,
) -> Intake:
    """The input topics of a config. A source of ours ends at its end markers. Topics that others fill end with
    `until_end` alone: at a marker, or where they ended when the run began; else a marker is passed over. `row_bytes`:
    of a row that can be published (`ExamplesPublisher`)."""
    kafka = config.kafka
    configured: list[tuple[Topic, Kind]] = [(kafka.impressions, "impression"), (kafka.feedback, "feedback")]
    inputs = [
        InputTopic(t.topic, t.partitions, t.codec, kind, t.avro_schemas, t.unwrap, t.impression_id == "key")
        for t, kind in configured
    ]
    ends: dict[Partition, int] = {}
    if until_end and config.source is None:
        ends = stored_ends(run_dir.end_offsets)
    return Intake(
        config.rows,
        TopicReader(
            kafka,
            [p for topic in inputs for p in topic.all],
            group=f"exfm-{inputs[0].topic}",
            ends=ends,
            markers_end=until_end or config.source is not None,
            clock=clock,
        ),
        inputs,
        buffer_rows=config.augmentation.buffer_rows,
        buffer_bytes=round(config.augmentation.buffer_mb * 2**20),
        idle_s=None if config.pace.mode == "lockstep" else config.augmentation.idle_s,
        max_future_skew_s=config.max_future_skew_s,
        now_ms=now_ms if config.reads_live else None,
        max_message_bytes=kafka.max_message_bytes,
        limits=config.limits._replace(row_bytes=row_bytes),
        watch=watch,
        clock=clock,
    )
