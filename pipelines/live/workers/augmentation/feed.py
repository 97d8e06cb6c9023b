"""Feed of settled rows: both input topics, merged into one order, labels joined as windows close."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
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

JUMP_MS = 1_000
"""A smaller step back is none: clocks that are kept are slowed, not set back."""
CORRECTION_MS = 86_400_000
"""A clock that goes back by more was wrong before, and is followed."""


class SettledFeed:
    """Settled rows in merged order, a bounded number at a time. `rows_read` counts input rows."""

    def __init__(self, intake: Intake, settlement: Settlement, watch: Stopwatch, rows_read: int = 0) -> None:
        self.intake, self.settlement = intake, settlement
        self.rows_read = rows_read
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


class SteadyClock:
    """Milliseconds since 1970 that never go back with the machine's clock, since correct producers' rows would then lie
    in the future. `warnings` names the first time that it did.

    >>> wall, passed = [1_700_000_600_000], [0.0]
    >>> clock = SteadyClock(lambda: wall[0], lambda: passed[0])
    >>> wall[0], passed[0] = 1_700_000_002_000, 2.0
    >>> clock(), clock.warnings["clock"][:63]
    (1700000602000, "this machine's clock went back by 600 s, to 2023-11-14 22:13:22")
    """

    def __init__(self, wall_ms: Callable[[], int], passed_s: Callable[[], float]) -> None:
        """`wall_ms`: the machine's clock; `passed_s`: one that never jumps."""
        self._wall_ms, self._passed_s = wall_ms, passed_s
        self._begin_ms, self._begin_s = wall_ms(), passed_s()
        self.warnings: dict[str, str] = {}

    def restore(self, shown_ms: int) -> None:
        """Continue after a process whose clock was at `shown_ms`."""
        self._begin_ms = max(self(), shown_ms)
        self._begin_s = self._passed_s()

    def __call__(self) -> int:
        wall_ms, now_s = self._wall_ms(), self._passed_s()
        shown_ms = self._begin_ms + round(1000 * (now_s - self._begin_s))
        back_ms = shown_ms - wall_ms
        if back_ms > JUMP_MS and "clock" not in self.warnings:
            now = datetime.fromtimestamp(wall_ms / 1000, UTC)
            self.warnings["clock"] = (
                f"this machine's clock went back by {back_ms / 1000:,.0f} s, to {now:%Y-%m-%d %H:%M:%S} UTC. No row is "
                "refused for that; see that its time service (NTP) runs"
            )
        if 0 <= back_ms <= CORRECTION_MS:
            return shown_ms
        self._begin_ms, self._begin_s = wall_ms, now_s
        return wall_ms
