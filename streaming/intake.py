"""Both input topics, read, decoded and merged into one deterministic order.

    partitions --poll--> messages --codec--> rows and dead letters --merge--> chunks

Event time is held up by the slowest partition; the others are read ahead no further than their buffers allow. A
partition is idle only when the broker confirms that it stands at its end for `idle_s`; a broker that does not answer
stops event time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from streaming.codecs import CodecName, RawMessage, by_partition, is_end_marker, make_codec
from streaming.dead_letters import Kind
from streaming.kafka import KafkaSettings, TopicReader
from streaming.merge import Merge, MergedChunk
from streaming.position import Partition, SourcePosition
from streaming.schema import RowSchema

Watch = Callable[[str], AbstractContextManager[None]]

LAG_EVERY_S = 1.0
LOOK_EVERY_S = 0.1  # for idle partitions


@dataclass(frozen=True)
class InputTopic:
    topic: str
    partitions: int
    codec: CodecName
    kind: Kind

    @property
    def all(self) -> list[Partition]:
        return [Partition(self.topic, number) for number in range(self.partitions)]


class Intake:
    """Merged chunks of the input topics.

    idle_s  None: no partition is ever idle, and the sequence of rows is a function of the topics alone (lockstep)
    ends    offsets at which partitions end, for topics without end markers; rows beyond are left alone
    """

    def __init__(
        self,
        schema: RowSchema,
        settings: KafkaSettings,
        topics: list[InputTopic],
        *,
        buffer_rows: int,
        idle_s: float | None,
        max_future_skew_s: float | None = None,
        ends: Mapping[Partition, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limit = settings.max_message_bytes
        self._codecs = {t.topic: make_codec(t.codec, t.kind, schema, max_message_bytes=limit) for t in topics}
        kinds = {partition: t.kind for t in topics for partition in t.all}
        self._merge = Merge(schema, kinds, max_future_skew_s=max_future_skew_s, buffer_rows=buffer_rows)
        self._reader = TopicReader(settings, list(kinds), group=f"exfm-{topics[0].topic}")
        self._ends = dict(ends or {})
        self._ended: set[Partition] = set()
        self._idle_s = idle_s
        self._at_end_since: dict[Partition, float] = {}
        self._looked_at = -LOOK_EVERY_S
        self._clock = clock
        self._rows_per_message = 1.0
        self._lag: tuple[float, int] = (-LAG_EVERY_S, 0)

    def open(self, state: Mapping[str, Any] | None) -> None:
        """From the beginning, or from where `state` was taken."""
        if state is not None:
            self._merge.restore(state)
        positions = self._merge.positions()
        self._reader.open({p: SourcePosition(position.offset) for p, position in positions.items()})
        self._look_for_ends()

    def state(self) -> dict[str, Any]:
        """Where a restart goes on: after the last row popped."""
        return self._merge.state()

    @property
    def finished(self) -> bool:
        return self._merge.finished

    @property
    def watermark_ms(self) -> int:
        return self._merge.watermark_ms

    @property
    def note(self) -> str | None:
        """Why nothing comes, if it is not simply that nothing was sent."""
        return None if self._reader.broker_reachable else "the broker does not answer; event time stands still"

    def pop(self, watch: Watch) -> MergedChunk | None:
        with watch("merge"):
            return self._merge.pop()

    def read(self, watch: Watch, max_wait_s: float = 0.05) -> bool:
        """Take what the broker has, as far as the buffers allow; False when there was nothing."""
        wanted = {p for p in self._reader.partitions if p not in self._ended and self._merge.wants(p)}
        if not wanted:
            return False
        with watch("poll"):
            messages = self._reader.poll(max_wait_s, only=wanted)
        for partition, of_partition in by_partition(messages).items():
            with watch("decode"):
                self._push(partition, of_partition)
        with watch("poll"):
            self._look_for_ends()
            self._look_for_idle(wanted.difference(by_partition(messages)))
        return bool(messages)

    def _push(self, partition: Partition, messages: list[RawMessage]) -> None:
        end = self._ends.get(partition)
        if end is not None:
            messages = [m for m in messages if m.offset < end]
        markers = [index for index, message in enumerate(messages) if is_end_marker(message)]
        if markers:
            messages = messages[: markers[0]]
        decoded = self._codecs[partition.topic].decode(messages)
        rows = decoded.batch.num_rows + len(decoded.dead)
        if messages:
            self._rows_per_message += 0.1 * (rows / len(messages) - self._rows_per_message)
        self._merge.push(partition, decoded.batch, decoded.dead)
        self._at_end_since.pop(partition, None)
        if markers:
            self._end(partition)

    def _end(self, partition: Partition) -> None:
        self._merge.mark_ended(partition)
        self._ended.add(partition)

    def _look_for_ends(self) -> None:
        """Also past what is no message (a transaction's marker), and where nothing was left to read."""
        open_ends = self._ends.keys() - self._ended
        positions = self._reader.position if open_ends else {}
        for partition in open_ends:
            if positions[partition].offset >= self._ends[partition]:
                self._end(partition)

    def _look_for_idle(self, silent: set[Partition]) -> None:
        """All silent partitions at once: those behind one another in event time do not wait for one another."""
        now = self._clock()
        if self._idle_s is None or now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        for partition in silent:
            if not self._reader.at_end(partition):
                self._at_end_since.pop(partition, None)
            elif now - self._at_end_since.setdefault(partition, now) >= self._idle_s:
                self._merge.mark_idle(partition)

    def lag_rows(self) -> int:
        """About how many rows are still to be read, from end offsets at most a second old."""
        now = self._clock()
        if now - self._lag[0] >= LAG_EVERY_S:
            ends, positions = self._reader.end_offsets(), self._reader.position
            messages = sum(max(0, end - positions[p].offset) for p, end in ends.items())
            self._lag = (now, round(messages * self._rows_per_message) + self._merge.buffered_rows)
        return self._lag[1]

    def show_lag(self) -> None:
        """Committed offsets are for lag displays only; nothing reads them back."""
        self._reader.commit_for_display(self._merge.positions())

    def close(self) -> None:
        self._reader.close()
