"""A source that plays a script, for tests: no broker, no waiting, every misfortune at a place of one's choice.

    ads, clicks = Partition("ads", 0), Partition("clicks", 0)
    topics = ScriptedTopics({ads: [row, row, PAUSE(30), row, ABORT, row, EOF], clicks: [EOF]})
    source = topics.reader()

A script is what a partition holds: message values, and between them

    EOF         the producer's end marker: nothing that follows is read
    ABORT       reading comes to here and the process dies (`Aborted`); once, so that a restart gets past it
    PAUSE(s)    reading comes to here and the broker is away for `s` seconds of the clock, which stands still until
                somebody advances it; once

Each of them takes an offset, as a transaction's marker does in Kafka. Scripts may be written on while they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming.errors import BrokerAway, DataLost
from streaming.messages.message import RawMessage
from streaming.messages.source import EndOfStream, MessageSource
from streaming.position import Partition, Positions, SourcePosition


class Aborted(BaseException):
    """The process is gone; whoever catches this is the next process."""


class _Sentinel:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


EOF, ABORT = _Sentinel("EOF"), _Sentinel("ABORT")


@dataclass(frozen=True)
class PAUSE:
    """The broker is away for so long."""

    for_s: float


class HandClock:
    """A clock that moves when it is told to.

    >>> clock = HandClock()
    >>> clock.advance(5)
    >>> clock()
    5.0
    """

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


@dataclass
class Timed:
    """A message whose record carries a timestamp of its own."""

    value: bytes
    timestamp_ms: int


class ScriptedTopics:
    """What the topics hold, and what befalls those who read them. Outlives its readers, as a broker does.

    >>> ads = Partition("ads", 0)
    >>> topics = ScriptedTopics({ads: [b"a", b"b", ABORT, b"c", EOF]}, at_a_time=2)
    >>> source = topics.reader()
    >>> source.open()
    >>> [message.value for message in source.next_batch()], source.position()[ads].offset
    ([b'a', b'b'], 2)
    >>> try:
    ...     source.next_batch()
    ... except Aborted:
    ...     again = topics.reader()
    >>> again.open(source.position())
    >>> [message.value for message in again.next_batch()]
    [b'c']
    >>> again.next_batch()
    Traceback (most recent call last):
    streaming.messages.source.EndOfStream
    """

    def __init__(
        self,
        scripts: Mapping[Partition, Iterable[Any]],
        *,
        clock: HandClock | None = None,
        at_a_time: int = 1,
        give_up_s: float = 300.0,
    ) -> None:
        self.scripts = {partition: list(script) for partition, script in scripts.items()}
        self.clock = clock or HandClock()
        self.at_a_time, self.give_up_s = at_a_time, give_up_s
        self.away_until = float("-inf")
        self.begins = dict.fromkeys(self.scripts, 0)
        self.spent: set[tuple[Partition, int]] = set()

    def add(self, partition: Partition, *steps: Any) -> None:
        """Somebody goes on writing."""
        self.scripts[partition] += steps

    def delete_before(self, partition: Partition, offset: int) -> None:
        """Retention."""
        self.begins[partition] = offset

    def reader(self) -> ScriptedSource:
        return ScriptedSource(self)

    @property
    def away(self) -> bool:
        return self.clock() < self.away_until

    def once(self, partition: Partition, offset: int) -> bool:
        """True the first time that somebody comes to a place."""
        new = (partition, offset) not in self.spent
        self.spent.add((partition, offset))
        return new


@dataclass
class ScriptedSource(MessageSource):
    """Reads `topics`; the partitions in their order, up to `at_a_time` messages a batch."""

    topics: ScriptedTopics
    reachable: bool = True
    shown: Positions = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.partitions = tuple(self.topics.scripts)
        self._next: dict[Partition, int] = {}
        self._ended: set[Partition] = set()
        self._away_since: float | None = None
        self._ends_known = {partition: 0 for partition in self.partitions}
        self._asked_at = float("-inf")

    def open(self, position: Positions | None = None) -> None:
        self._next = dict(self.topics.begins)
        self.seek(position or {})

    def seek(self, position: Positions) -> None:
        for partition, at in position.items():
            self._next[partition] = at.offset
            self._ended.discard(partition)
            begin, end = self.topics.begins[partition], len(self.topics.scripts[partition])
            if not begin <= at.offset <= end:
                raise DataLost(
                    f"topic `{partition.topic}`, partition {partition.partition}: offset {at.offset} was to be read "
                    f"next, and the script holds {begin} to {end}: {max(0, begin - at.offset)} messages are lost"
                )

    def next_batch(
        self, max_wait_s: float = 0.0, *, max_messages: int = 500, only: Collection[Partition] | None = None
    ) -> list[RawMessage] | None:
        if len(self._ended) == len(self.partitions):
            raise EndOfStream
        found: list[RawMessage] = []
        for partition in self.partitions:
            if partition in self._ended or (only is not None and partition not in only):
                continue
            while len(found) < min(self.topics.at_a_time, max_messages) and not self._away():
                if not self._step(partition, found):
                    break
        return found or None

    def _step(self, partition: Partition, found: list[RawMessage]) -> bool:
        """Read the next of a partition; False where it goes no further for now."""
        script, offset = self.topics.scripts[partition], self._next[partition]
        if offset < self.topics.begins[partition]:
            self.seek({partition: SourcePosition(offset)})  # raises
        if offset >= len(script):
            return False
        step = script[offset]
        if step is EOF:
            self._ended.add(partition)
            return False
        if isinstance(step, PAUSE | _Sentinel):
            if found:
                return False  # what was read before it is handed out first
            self._next[partition] += 1
            if self.topics.once(partition, offset):
                if step is ABORT:
                    raise Aborted
                assert isinstance(step, PAUSE)
                self.topics.away_until = self.topics.clock() + step.for_s
            return True
        timed = step if isinstance(step, Timed) else Timed(step, -1)
        found.append(RawMessage(*partition, offset, timed.timestamp_ms, None, timed.value))
        self._next[partition] += 1
        return True

    def _away(self) -> bool:
        now = self.topics.clock()
        if not self.topics.away:
            self.reachable, self._away_since = True, None
            return False
        self.reachable = False
        self._away_since = now if self._away_since is None else self._away_since
        if now - self._away_since > self.topics.give_up_s:
            raise BrokerAway(f"the script's broker has not answered for {now - self._away_since:g} s")
        return True

    @property
    def ended(self) -> Collection[Partition]:
        return frozenset(self._ended)

    def position(self) -> Positions:
        return {partition: SourcePosition(offset) for partition, offset in self._next.items()}

    def at_end(self, partition: Partition, max_age_s: float = 0.25) -> bool:
        now = self.topics.clock()
        if now - self._asked_at >= max_age_s and not self._away():
            self._asked_at = now
            self._ends_known = {p: len(script) for p, script in self.topics.scripts.items()}
        return self.reachable and self._next[partition] >= self._ends_known[partition]

    def behind(self) -> dict[Partition, int]:
        scripts = self.topics.scripts
        return {p: len(scripts[p]) - self._next[p] for p in self.partitions if p not in self._ended}

    def commit_for_display(self, positions: Positions) -> None:
        self.shown = dict(positions)
