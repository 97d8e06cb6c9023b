"""Feed of settled rows: both input topics, merged into one order, labels joined as windows close."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_args

import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Topic
from pipelines.core.run_dir.end_offsets import stored_ends
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.stopwatch import Stopwatch
from streaming.asof.forgotten import ForgottenId, RemovedCounts
from streaming.intake.intake import AwaitedRows, InputTopic, Intake
from streaming.intake.merge import END_OF_TIME
from streaming.kafka.reader import TopicReader
from streaming.messages.dead_letters import Kind
from streaming.messages.source import EndOfStream
from streaming.position import Partition
from streaming.settlement.settlement import SettledRows, Settlement

JUMP_MS = 1_000
"""A smaller step back is none: clocks that are kept are slowed, not set back."""
CORRECTION_MS = 86_400_000
"""A clock that goes back by more was wrong before, and is followed."""


class Feed(Protocol):
    """Settled rows, a bounded number at a time, and the state between topics and lake; `rows_read` counts input."""

    rows_read: int

    @property
    def removed(self) -> dict[ForgottenId, RemovedCounts]:
        """Ids that were forgotten since this was opened."""

    @property
    def watermark_ms(self) -> int:
        """The largest key time of a row that was taken; no row before it comes any more."""

    @property
    def finished(self) -> bool:
        """True if the stream has ended and every row was returned."""

    @property
    def at_end(self) -> bool:
        """True if the stream has ended; rows may still be due."""

    @property
    def ended(self) -> bool:
        """True if the loaded state is that of a stream that has ended."""

    @property
    def rows_due(self) -> bool:
        """True if rows are known to be due that `next` has not returned."""

    def open(self, position: dict[str, Any] | None, clock_ms: int | None) -> None:
        """Continue from `position`, with this machine's clock not before `clock_ms`; None: at the topics' beginning."""

    def next(self, max_rows: int, max_bytes: int) -> SettledRows | None:
        """The next settled rows, at most `max_rows` and ending with the one that reaches `max_bytes`, possibly none;
        None if there was nothing to read."""

    def position(self) -> dict[str, Any]:
        """Position after the last row read, which belongs to the settlement state. Raises DataLost unless the offsets
        up to there hold exactly the rows counted by settlement."""

    def load(self, state: int) -> None:
        """Continue from the settlement state of this number, whichever writer saved it."""

    def save(self, state: int, keep: int) -> None:
        """Store the settlement state; only this one and `keep` can be loaded afterwards."""

    def declare(self, verticals: Collection[str]) -> None:
        """Let verticals in, regardless of the limit."""

    def forget(self, id: ForgottenId, shown: Iterable[pa.RecordBatch] = ()) -> None:
        """`Settlement.forget`."""

    def show_lag(self) -> None:
        """Commit offsets for lag displays only."""

    def await_all(self) -> None:
        """Wait for every partition again: the broker may have been away."""

    @property
    def known_lag_rows(self) -> int:
        """Rows still to be read, or their last known number."""

    def status(self) -> FeedStatus:
        """Counts and notes for reports."""

    def close(self) -> None: ...


class FeedStatus(NamedTuple):
    """Counts and notes of a feed.

    counters      `Settlement.counters`
    offsets       counts of offsets by kind (`OffsetAccounts.counts`)
    examples      the first dead letter of each kind and reason
    bytes         of memory of the state, and of the files of the last save
    first_wait_s  wait of the first impression: its total and its elapsed part, in seconds of event time
    lag           rows still to be read of each partition; None while the broker does not answer
    reached_ms    the latest event time of each partition that has brought a row
    warnings      about rows that were accepted nevertheless
    note          why no rows arrive; None if simply none were sent
    held          rows that were read, and what they wait for
    """

    counters: dict[str, Any]
    offsets: dict[str, dict[str, int]]
    examples: dict[str, dict[str, Any]]
    bytes: tuple[int, int]
    first_wait_s: tuple[float, float]
    watermark_ms: int
    lag: dict[str, int] | None
    reached_ms: dict[str, int]
    warnings: dict[str, str]
    note: str | None
    held: AwaitedRows

    @classmethod
    def of(cls, intake: Intake, clock: SteadyClock, **settled: Any) -> FeedStatus:
        """Status of an intake, and of what has `settled`: counters, examples, bytes and the first wait."""
        return cls(
            **settled,
            offsets={kind: intake.offsets(kind) for kind in get_args(Kind)},
            watermark_ms=intake.watermark_ms,
            lag=intake.lag(),
            reached_ms=intake.reached_ms,
            warnings=intake.warnings | clock.warnings,
            note=intake.note,
            held=intake.held,
        )


class SettledFeed:
    """Rows of all partitions, in one merged order (`settlement.by: stream`); a `Feed`."""

    def __init__(
        self,
        intake: Intake,
        settlement: Settlement,
        watch: Stopwatch,
        steady: SteadyClock,
        *,
        states: Path,
        state_folder: Callable[[int], Path],
        rows_read: int = 0,
    ) -> None:
        """`states`: folder of the states saved here; `state_folder`: of a state by its number."""
        self.intake, self.settlement = intake, settlement
        self.rows_read = rows_read
        self._watch, self._steady = watch, steady
        self._states, self._state_folder = states, state_folder
        self._more = False  # rows are due beyond those that were asked for
        self._at_end = False

    @property
    def removed(self) -> dict[ForgottenId, RemovedCounts]:
        return self.settlement.removed

    @property
    def watermark_ms(self) -> int:
        return self.settlement.watermark_ms

    @property
    def ended(self) -> bool:
        return self.watermark_ms == END_OF_TIME

    def open(self, position: dict[str, Any] | None, clock_ms: int | None) -> None:
        if clock_ms is not None:
            self._steady.restore(clock_ms)
        self.intake.open(position, rows_before=self._counted())

    def _counted(self) -> dict[Kind, int]:
        counters = self.settlement.counters()
        return {"impression": counters["impressions_read"], "feedback": counters["feedback_read"]}

    def position(self) -> dict[str, Any]:
        self.intake.check_accounts(self._counted())
        return self.intake.position()

    def load(self, state: int) -> None:
        self.settlement.load(self._state_folder(state), str(state))

    def save(self, state: int, keep: int) -> None:
        self.settlement.save(self._states, str(state), keep=[str(keep)])

    def declare(self, verticals: Collection[str]) -> None:
        self.settlement.verticals.declare(verticals)

    def forget(self, id: ForgottenId, shown: Iterable[pa.RecordBatch] = ()) -> None:
        self.settlement.forget(id, shown)

    @property
    def finished(self) -> bool:
        return self._at_end and not self._more

    @property
    def at_end(self) -> bool:
        return self._at_end

    @property
    def rows_due(self) -> bool:
        return self._more

    def next(self, max_rows: int, max_bytes: int | None = None) -> SettledRows | None:
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

    def show_lag(self) -> None:
        self.intake.show_lag()

    def await_all(self) -> None:
        self.intake.await_all()

    @property
    def known_lag_rows(self) -> int:
        return self.intake.known_lag_rows

    def status(self) -> FeedStatus:
        settlement = self.settlement
        return FeedStatus.of(
            self.intake,
            self._steady,
            counters=settlement.counters(),
            examples=settlement.letters.examples,
            bytes=(settlement.state_bytes, settlement.disk_bytes),
            first_wait_s=settlement.first_wait_s,
        )

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
    only: range | None = None,
) -> Intake:
    """The input topics of a config. A source of ours ends at its end markers. Topics that others fill end with
    `until_end` alone: at a marker, or where they ended when the run began; else a marker is passed over. `row_bytes`:
    of a row that can be published (`ExamplesPublisher`). `only`: numbers of the partitions; None: all."""
    kafka = config.kafka
    configured: list[tuple[Topic, Kind]] = [(kafka.impressions, "impression"), (kafka.feedback, "feedback")]
    inputs = [
        InputTopic(t.topic, t.partitions, t.codec, kind, t.avro_schemas, t.unwrap, t.impression_id == "key", only)
        for t, kind in configured
    ]
    ends: dict[Partition, int] = {}
    if until_end and config.source is None:
        ends = stored_ends(run_dir.end_offsets)
    partitions = [partition for topic in inputs for partition in topic.all]
    return Intake(
        config.rows,
        TopicReader(
            kafka,
            partitions,
            group=f"exfm-{inputs[0].topic}",
            ends={partition: ends[partition] for partition in partitions if partition in ends},
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
