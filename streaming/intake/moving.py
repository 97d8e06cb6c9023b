"""Positions of an intake mapped onto other topics with the same messages: of a mirror, or created anew.

A position is found by the messages that were read last before it (its *trail*, see `account`). All of them must be in
the new topic, with the same key and value.

    as many partitions   each partition by itself: the new position lies behind the last message of its trail. Offsets
                         may differ; messages that are there twice are passed over; where another message lies among
                         them, which was never read, reading goes on there
    another number       keys have moved: every new partition is read from the first message whose timestamp is not
                         older than the trails of all old ones, less a margin

What is read again after that is dropped as every duplicate is (settlement). What cannot be mapped is named, and nothing
is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from streaming.errors import BadInput
from streaming.intake.merge import NO_TIME
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import lookup
from streaming.messages.fingerprint import Fingerprint, digest_of
from streaming.messages.message import RawMessage
from streaming.position import Partition, SourcePosition, names_of

READ_WAIT_S = 1.0


@dataclass(frozen=True)
class RecordedPartition:
    """A partition as the last commit left it. `messages`: how many were read; `trail`: the last of them, and the one in
    which the position lies."""

    partition: Partition
    position: SourcePosition
    messages: int
    trail: Sequence[Fingerprint]


@dataclass(frozen=True)
class MappedPartition:
    """A partition that is read on at `position`. `trail`: what is known of the messages before it; `again`: messages
    that were read already lie behind it."""

    partition: Partition
    position: SourcePosition
    trail: Sequence[Fingerprint] = ()
    again: bool = False


class MappedTopic(NamedTuple):
    """The recorded partitions of a topic, and those that are read from now on; `found`: messages compared."""

    recorded: Sequence[RecordedPartition]
    partitions: Sequence[MappedPartition]
    found: int


@dataclass
class TrailSearch:
    """Search for a trail among the messages of one partition, which are added in order.

    Of messages that are there more than once the first copies count.

    >>> trail = [Fingerprint(offset, 0, digest) for offset, digest in enumerate([7, 8, 9])]
    >>> search = TrailSearch(trail)
    >>> for offset, digest in enumerate([5, 7, 8, 7, 8, 9, 6], start=100):
    ...     search.add(offset, digest)
    >>> search.complete, search.places, search.foreign
    (True, [101, 102, 105], None)
    """

    trail: Sequence[Fingerprint]
    places: list[int] = field(default_factory=list)
    """Offsets here of the messages found."""
    foreign: int | None = None
    """Offset of the first message among them that is none of the trail's."""
    _digests: set[int] = field(default_factory=set)

    def add(self, offset: int, digest: int) -> None:
        if self.complete:
            return
        self._digests.add(digest)
        if digest == self.trail[self.found].digest:
            self.places.append(offset)
        elif self.places and self.foreign is None and all(digest != each.digest for each in self.trail):
            self.foreign = offset

    @property
    def found(self) -> int:
        """Messages of the trail found in its order so far."""
        return len(self.places)

    @property
    def complete(self) -> bool:
        return self.found == len(self.trail)

    @property
    def lost(self) -> bool:
        """True if a message of the trail is missing while a later one is there: it was not only mirrored late."""
        earlier = {each.digest for each in self.trail[: self.found + 1]}
        later = {each.digest for each in self.trail[self.found + 1 :]} - earlier
        return not later.isdisjoint(self._digests)


def recorded_partitions(state: Mapping[str, Any], topic: str) -> list[RecordedPartition]:
    """The partitions of a topic in an intake's position (`Intake.position`)."""
    accounts = {Partition(*each[:2]): each[5:] for each in state["accounts"]["partitions"]}
    trails = {Partition(*each[:2]): [Fingerprint(*f) for f in each[2]] for each in state["accounts"].get("trails", [])}
    recorded = []
    for name, number, offset, row, _ in state["partitions"]:
        if name == topic:
            messages, _, without_rows, markers, _ = accounts[Partition(name, number)]
            read = messages + without_rows + markers + (row > 0)
            place = Partition(name, number)
            recorded.append(RecordedPartition(place, SourcePosition(offset, row), read, trails.get(place, [])))
    return recorded


def map_topic(
    settings: KafkaSettings,
    state: Mapping[str, Any],
    topic: str,
    into: Sequence[Partition],
    *,
    margin_ms: int,
    oldest_ms: int,
) -> MappedTopic:
    """Map the recorded positions of a topic onto the partitions of one that `settings` lead to.

    oldest_ms: an older event time is refused by the run anyway; where the number of partitions differs, nothing of
    before is read.

    Raises BadInput with a line for each partition that cannot be mapped, BrokerAway, and DataLost for a hole.
    """
    recorded = recorded_partitions(state, topic)
    if unknown := [each.partition for each in recorded if each.messages and not each.trail]:
        raise BadInput(
            f"which messages were read last of {names_of(unknown)} is not on record: an older ExFM made the last "
            "commit. Resume the run once where it reads now, stop it, then move it"
        )
    if len(into) == len(recorded):
        return _map_each(settings, recorded, into, margin_ms)
    return _map_together(settings, recorded, into, margin_ms, oldest_ms)


def _map_each(
    settings: KafkaSettings, recorded: Sequence[RecordedPartition], into: Sequence[Partition], margin_ms: int
) -> MappedTopic:
    recorded = sorted(recorded, key=lambda each: each.partition)
    trails = {place: each.trail for place, each in zip(sorted(into), recorded, strict=True) if each.trail}
    with lookup(settings, {place.topic for place in into}) as look:
        begins = look.begins(into)
        times = {place: _earliest(trail) for place, trail in trails.items()}
        starts = begins | look.at_times({p: time_ms - margin_ms for p, time_ms in times.items() if time_ms >= 0})
    searches = _searched(settings, trails, begins, starts)
    pairs = list(zip(recorded, sorted(into), strict=True))
    if problems := [_problem(e, searches[p]) for e, p in pairs if e.trail and not searches[p].complete]:
        raise BadInput("\n".join(problems))
    mapped = [_mapped(each, place, searches.get(place), begins[place]) for each, place in pairs]
    return MappedTopic(recorded, mapped, sum(search.found for search in searches.values()))


def _searched(
    settings: KafkaSettings,
    trails: Mapping[Partition, Sequence[Fingerprint]],
    begins: Mapping[Partition, int],
    starts: Mapping[Partition, int],
) -> dict[Partition, TrailSearch]:
    """The search for each trail, over. A mirrored topic may begin with a message inside the trail."""
    searches: dict[Partition, TrailSearch] = {}

    def over(partition: Partition) -> bool:
        return partition in searches and searches[partition].complete

    for message in _messages(settings, {p: starts[p] for p in trails}, over):
        place, digest = Partition(message.topic, message.partition), digest_of(message)
        if place not in searches:
            whole = starts[place] > begins[place]
            searches[place] = TrailSearch(trails[place] if whole else _there(trails[place], digest))
        searches[place].add(message.offset, digest)
    return {p: searches.get(p, TrailSearch(trail)) for p, trail in trails.items()}


def _there(trail: Sequence[Fingerprint], first: int) -> Sequence[Fingerprint]:
    """The part of a trail that a topic can hold whose first message has the digest `first`."""
    return next((trail[at:] for at, each in enumerate(trail) if each.digest == first), trail)


def _earliest(trail: Sequence[Fingerprint]) -> int:
    return min(each.timestamp_ms for each in trail)


def _messages(
    settings: KafkaSettings, starts: Mapping[Partition, int], done: Callable[[Partition], bool]
) -> Iterator[RawMessage]:
    """Messages of partitions from these offsets up to their present ends; no more of one that is `done`."""
    if not starts:
        return
    reader = TopicReader(settings, sorted(starts), markers_end=False)
    try:
        reader.open({partition: SourcePosition(offset) for partition, offset in starts.items()})
        ends = reader.end_offsets()
        while wanted := [p for p in starts if not done(p) and reader.position()[p].offset < ends[p]]:
            yield from reader.next_batch(READ_WAIT_S, only=wanted) or ()
    finally:
        reader.close()


def _problem(each: RecordedPartition, search: TrailSearch) -> str:
    """Reason why a partition cannot be mapped."""
    last, missing = each.trail[-1], len(each.trail) - search.found
    where = f"{names_of([each.partition])} (read up to offset {each.position.offset:,}, {_time(last.timestamp_ms)})"
    if search.lost:
        gone = each.trail[search.found]
        return (
            f"{where}: the message that had offset {gone.offset:,} is not there, and later ones are: this is no copy "
            "of the topic, or messages of it were lost or changed"
        )
    if not search.found:
        return (
            f"{where}: none of the last {len(each.trail)} messages read is there: the mirror is behind by more than "
            f"{missing} messages, or its topic begins after them, or this is another topic"
        )
    there = each.trail[search.found - 1]
    behind_s = max(0, last.timestamp_ms - there.timestamp_ms) / 1000
    return (
        f"{where}: the mirror is behind: of the last {len(each.trail)} messages read the last {missing} are not there, "
        f"{behind_s:,.1f} s; wait for it, then give the same command"
    )


def _mapped(each: RecordedPartition, place: Partition, search: TrailSearch | None, begin: int) -> MappedPartition:
    if search is None:  # nothing was read
        return MappedPartition(place, SourcePosition(begin))
    places, foreign = search.places, search.foreign
    trail = [f._replace(offset=offset) for f, offset in zip(search.trail, places, strict=True)]
    position = SourcePosition(places[-1], each.position.row) if each.position.row else SourcePosition(places[-1] + 1)
    if foreign is None:
        return MappedPartition(place, position, trail)
    return MappedPartition(place, SourcePosition(foreign), [f for f in trail if f.offset < foreign], again=True)


def _map_together(
    settings: KafkaSettings,
    recorded: Sequence[RecordedPartition],
    into: Sequence[Partition],
    margin_ms: int,
    oldest_ms: int,
) -> MappedTopic:
    unread = any(not each.trail for each in recorded)
    time_ms = oldest_ms if unread else max(oldest_ms, min(_earliest(each.trail) for each in recorded))
    with lookup(settings, {place.topic for place in into}) as look:
        begins = look.begins(into)
        starts = begins if time_ms <= 0 else look.at_times(dict.fromkeys(into, time_ms - margin_ms))
    trails = {each.partition: [f for f in each.trail if f.digest >> 32] for each in recorded}  # markers hold no row
    awaited = Counter(f.digest for trail in trails.values() for f in trail)
    for message in _messages(settings, starts, lambda partition: not awaited):
        if (digest := digest_of(message)) in awaited:
            awaited[digest] -= 1
            if not awaited[digest]:
                del awaited[digest]
    problems = []
    for each in recorded:
        missing = [f for f in trails[each.partition] if awaited[f.digest]]
        if missing:
            problems.append(
                f"{names_of([each.partition])} (read up to offset {each.position.offset:,}, "
                f"{_time(each.trail[-1].timestamp_ms)}): of the last {len(each.trail)} messages read {len(missing)} "
                f"are in none of the {len(into)} partitions, first the one that had offset {missing[0].offset:,}: "
                "they are not copied yet, or were lost or changed"
            )
    if problems:
        raise BadInput("\n".join(problems))
    mapped = [MappedPartition(place, SourcePosition(starts[place]), again=True) for place in into]
    return MappedTopic(recorded, mapped, sum(map(len, trails.values())))


def moved(state: Mapping[str, Any], topics: Sequence[MappedTopic]) -> dict[str, Any]:
    """An intake's position with the partitions of these topics in place of those recorded.

    Partitions keep their event time and their counts where their number stays. Else the new ones have none yet: event
    time stands where it is, and waits for all of them; the counts of all are the first one's.
    """
    accounts = state["accounts"]
    merge, counted, trails, epochs = (
        state["partitions"],
        accounts["partitions"],
        accounts.get("trails", []),
        state["epochs"],
    )
    before = {topic.recorded[0].partition.topic for topic in topics}
    merge, counted, trails, epochs = (_without(part, before) for part in (merge, counted, trails, epochs))
    for topic in topics:
        name = topic.recorded[0].partition.topic
        same = len(topic.recorded) == len(topic.partitions)
        times = {number: time for of, number, _, _, time in state["partitions"] if of == name}
        counts = {number: each for of, number, _, _, *each in accounts["partitions"] if of == name}
        if not same:
            times = {}
            counts = {0: [sum(each) for each in zip(*counts.values(), strict=True)]}
        nothing = [0] * len(next(iter(counts.values())))
        for place, position, trail in ((m.partition, m.position, m.trail) for m in topic.partitions):
            merge.append([*place, *position, times.get(place.partition, NO_TIME)])
            counted.append([*place, *position, *counts.get(place.partition, nothing)])
            trails.append([*place, [list(each) for each in trail]])
    return {
        **state,
        "partitions": merge,
        "accounts": {**accounts, "partitions": counted, "trails": trails},
        "epochs": epochs,
    }


def _without(part: Sequence[Any], topics: Collection[str]) -> list[Any]:
    return [each for each in part if each[0] not in topics]


def _time(time_ms: int) -> str:
    """A record's timestamp in words.

    >>> _time(1_700_000_000_000), _time(-1)
    ('2023-11-14 22:13:20', 'without a timestamp')
    """
    if not 0 <= time_ms < 253_402_300_800_000:
        return "without a timestamp"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
