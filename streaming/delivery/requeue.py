"""Requeueing of dead letters onto their original topic, each once.

A letter is known by its place: topic, partition, offset and row. Of a message that was refused whole, the whole is put
back; of another of many rows, the letter's row. What was put back is kept in a table beside the lake, `replayed`.
Letters go in groups; for each group

    1  the letters and the ends of their topics are written to `replayed.json`
    2  the records are written, each with the header `exfm-replay` that names its letter
    3  the letters are committed to the table under the group's number
    4  `replayed.json` is deleted

A command that is killed between 1 and 3 leaves the file. The next one looks behind the ends that it names for the
headers, writes what is missing, and goes on with 3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streaming.errors import BadInput
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import end_offsets, lookup
from streaming.kafka.writer import TopicWriter
from streaming.lake.delta.handle import open_table
from streaming.lake.side_tables import DEAD_LETTERS, SideTable, side_rows
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, TOMBSTONE
from streaming.messages.ipc import read_ipc, write_ipc
from streaming.messages.message import RawMessage
from streaming.position import Partition, SourcePosition
from streaming.schema import POSITION_FIELDS
from streaming.store.files import read_json, write_json
from streaming.store.lock import file_lock

REPLAYED = "replayed"
HEADER = "exfm-replay"
GROUP = 500
"""Letters that are put back before the table says so."""

HELD_BYTES = 64 * 2**20
"""So much of messages is held at a time, each counted as the largest that there may be; one at least."""

WHOLE = ("oversized", "undecodable", TOMBSTONE)
"""Reasons for which a message is refused whole; its letter names row 0."""

SCHEMA = pa.schema(POSITION_FIELDS)
PLACES = SCHEMA.names


class Place(NamedTuple):
    """Origin of a dead letter, its identity.

    >>> str(Place("ads", 0, 17, 3)), Place.parse("ads:0:17")
    ('ads:0:17:3', Place(topic='ads', partition=0, offset=17, row=0))
    """

    topic: str
    partition: int
    offset: int
    row: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}:{self.row}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Parse from text; raises BadInput."""
        parts = text.split(":")
        if len(parts) not in (3, 4) or not all(part.isdigit() for part in parts[1:]):
            raise BadInput(
                f"`{text}` is no place of a record; write TOPIC:PARTITION:OFFSET, or …:ROW for a row of many"
            )
        return cls(parts[0], *(int(part) for part in (*parts[1:], "0")[:3]))


class OriginalRecord(NamedTuple):
    """The original record of a dead letter. `value` is the message, or of a message of many rows the letter's row
    alone."""

    value: bytes
    key: bytes | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes], ...]


class Letters:
    """The dead letters below `folder` (`<run>/lake`), and the set of those already requeued.

    settings  of the run, its `max_message_bytes` with them: what the run can read, this must read, too
    arrow     topics of Arrow messages: a letter's own copy of a row is JSON, and is not put onto these
    refused   why letters were not put back although their record is there, by place
    """

    def __init__(self, folder: Path, settings: KafkaSettings, *, arrow: Collection[str] = ()) -> None:
        """Raises BadInput where there is no table of dead letters."""
        self._folder, self._settings, self._arrow = folder, settings, frozenset(arrow)
        self.refused: dict[Place, str] = {}
        if open_table(folder / DEAD_LETTERS, DEAD_LETTER_SCHEMA) is None:
            raise BadInput(f"no dead letters in {folder}: the run has not begun, or --run-dir is another folder's")
        self._intent = folder / f"{REPLAYED}.json"

    def rows(self, reason: str | None = None) -> pa.Table:
        """Letters (optionally of one reason) without their payloads, in order of their origins."""
        names = [name for name in DEAD_LETTER_SCHEMA.names if name != "payload"]
        rows = self._letters(names, None if reason is None else pc.field("reason") == reason)
        return rows.sort_by([(name, "ascending") for name in PLACES])

    def examples(self, kind: str, reason: str, limit_rows: int) -> pa.Table:
        """Some letters of a kind and a reason, with their payloads; no more of the table is read than they take."""
        chosen = (pc.field("kind") == kind) & (pc.field("reason") == reason)
        return side_rows(self._folder, DEAD_LETTERS, DEAD_LETTER_SCHEMA, limit_rows=limit_rows, filter=chosen)

    def payload(self, place: Place) -> tuple[bytes, int]:
        """The payload stored in the letter, and the original length of the record."""
        at = [pc.field(name) == value for name, value in zip(PLACES, place, strict=True)]
        letter = side_rows(
            self._folder, DEAD_LETTERS, DEAD_LETTER_SCHEMA, limit_rows=1, filter=at[0] & at[1] & at[2] & at[3]
        )
        if not letter.num_rows:
            raise BadInput(f"no dead letter came from {place}")
        return letter["payload"][0].as_py(), letter["payload_bytes"][0].as_py()

    def replayed(self) -> set[Place]:
        """Letters requeued by completed commands."""
        return set(places_of(side_rows(self._folder, REPLAYED, SCHEMA)))

    def originals(self, places: Sequence[Place]) -> Iterator[tuple[Place, OriginalRecord]]:
        """Original records of letters, in order of origin, read from their topics; if a topic no longer has one, the
        letter's own copy, provided it is complete and the whole message. What can be found in neither is left out,
        and so is what is `refused`: a row of a message that cannot be read here. A bounded part of them is held at a
        time."""
        if not places:
            return
        whole = self._whole()
        with lookup(self._settings, {place.topic for place in places}) as look:
            for part in parts_of(places, max(1, HELD_BYTES // self._settings.max_message_bytes)):
                topic, number, *_ = part[0]
                messages = look.messages(Partition(topic, number), [place.offset for place in part])
                copies = self._copies([place for place in part if place.offset not in messages])
                for place in part:
                    message = messages.get(place.offset)
                    try:
                        record = copies.get(place) if message is None else self._record(message, place, whole)
                    except _Refused as refusal:
                        self.refused[place] = str(refusal)
                        continue
                    if record is not None and (message is not None or self._fits(place, whole)):
                        yield place, record

    def _whole(self) -> set[Place]:
        """The letters that stand for a whole message."""
        return set(places_of(self._letters(PLACES, pc.field("reason").isin(list(WHOLE)))))

    def _letters(self, columns: Sequence[str], filter: pc.Expression | None) -> pa.Table:
        return side_rows(self._folder, DEAD_LETTERS, DEAD_LETTER_SCHEMA, columns=columns, filter=filter)

    def _copies(self, places: Sequence[Place]) -> dict[Place, OriginalRecord]:
        """The whole copies in JSON that letters of one partition hold themselves, in one look at the table."""
        if not places:
            return {}
        offsets = sorted({place.offset for place in places})
        names = [*PLACES, "payload", "payload_bytes"]
        topic, number, *_ = places[0]
        chosen = (pc.field(PLACES[0]) == topic) & (pc.field(PLACES[1]) == number) & pc.field(PLACES[2]).isin(offsets)
        rows = self._letters(names, chosen)
        held = zip(places_of(rows), rows["payload"].to_pylist(), rows["payload_bytes"].to_pylist(), strict=True)
        return {
            place: OriginalRecord(payload, None, None, ())
            for place, payload, length in held
            if len(payload) >= length and payload.lstrip().startswith(b"{")
        }

    def _fits(self, place: Place, whole: Collection[Place]) -> bool:
        """True if a copy in JSON may go onto its topic."""
        return place.topic not in self._arrow or place in whole

    def _record(self, message: RawMessage, place: Place, whole: Collection[Place]) -> OriginalRecord:
        """Record to put back: the one row of a readable message of many rows, unless it was refused whole; any other
        message as it is. Raises _Refused."""
        if message.refused is not None:
            raise _Refused(f"{message.refused}: give a higher kafka.max_message_bytes with --set")
        value = message.value
        if place not in whole and not value.lstrip().startswith(b"{"):
            value = self._row(value, place)
        headers = tuple((name, content) for name, content in message.headers if name != HEADER)
        return OriginalRecord(value, message.key, message.timestamp_ms, headers)

    def _row(self, value: bytes, place: Place) -> bytes:
        """An Arrow message as it is where it has one row, else with the row alone that `place` names."""
        limit = self._settings.max_message_bytes
        try:
            rows = read_ipc(value, limit)
        except ValueError as error:
            raise _Refused(
                f"row {place.row} of a message of {len(value):,} bytes cannot be cut out: {error}. The limit is that "
                f"of kafka.max_message_bytes, {limit:,}: give a higher one with --set"
            ) from error
        if place.row >= rows.num_rows:
            raise _Refused(f"the message has {rows.num_rows:,} rows, and none of number {place.row}")
        if rows.num_rows == 1:
            return value
        (batch,) = rows.slice(place.row, 1).combine_chunks().to_batches()
        return write_ipc(batch)

    def replay(self, places: Sequence[Place]) -> Iterator[dict[Place, bool]]:
        """Requeue letters that were not yet, a group at a time; False for a letter whose record is gone or that
        `refused` explains. A group that an earlier command began comes first, whatever `places` are.

        Raises BadInput where another process does so, BrokerAway, and StreamingError where a topic refuses."""
        with file_lock(self._folder / f"{REPLAYED}.lock") as alone:
            if not alone:
                raise BadInput(f"another process replays dead letters of {self._folder}; wait for its end")
            table = SideTable(self._folder, REPLAYED, SCHEMA)
            begun = read_json(self._intent)
            if begun is not None and begun["number"] > table.position:
                yield self._complete(table, begun, _written_behind(self._settings, begun["ends"]))
            done = self.replayed()
            waiting = [place for place in places if place not in done]
            for start in range(0, len(waiting), GROUP):
                group = waiting[start : start + GROUP]
                partitions = {Partition(place.topic, place.partition) for place in group}
                ends = end_offsets(self._settings, sorted(partitions))
                intent = {
                    "number": table.position + 1,
                    "letters": [list(place) for place in group],
                    "ends": [[*partition, end] for partition, end in ends.items()],
                }
                write_json(self._intent, intent)
                yield self._complete(table, intent, set())

    def _complete(self, table: SideTable, intent: Mapping[str, Any], written: set[Place]) -> dict[Place, bool]:
        group = [Place(*values) for values in intent["letters"]]
        written = set(written)
        missing = [place for place in group if place not in written]
        for topic, originals in groupby(self.originals(missing), key=lambda each: each[0].topic):
            with TopicWriter(self._settings, topic) as writer:
                for place, record in originals:
                    headers = [*record.headers, (HEADER, str(place).encode())]
                    if (words := writer.too_large([record.value], headers, record.key)) is not None:
                        self.refused[place] = words
                        continue
                    writer.write(
                        place.partition,
                        [record.value],
                        headers=headers,
                        timestamp_ms=record.timestamp_ms,
                        key=record.key,
                    )
                    written.add(place)
        back = [place for place in group if place in written]
        if back:
            rows = pa.Table.from_pylist([dict(zip(PLACES, place, strict=True)) for place in back], SCHEMA)
            table.append(rows, number=intent["number"])
        self._intent.unlink(missing_ok=True)
        return {place: place in written for place in group}


class _Refused(Exception):
    """Reason why a letter cannot be put back, in words."""


def _written_behind(settings: KafkaSettings, ends: Sequence[Sequence[Any]]) -> set[Place]:
    """The letters whose records stand behind these ends of partitions."""
    begins = {Partition(topic, number): SourcePosition(end) for topic, number, end in ends}
    places: set[Place] = set()
    reader = TopicReader(settings, sorted(begins), markers_end=False)  # others may have written an end meanwhile
    try:
        reader.open(begins)
        now = reader.end_offsets()
        while any(reader.position()[partition].offset < now[partition] for partition in begins):
            for message in reader.next_batch(1.0) or ():
                places |= {Place.parse(value.decode()) for name, value in message.headers if name == HEADER}
    finally:
        reader.close()
    return places


def parts_of(places: Sequence[Place], messages: int) -> Iterator[list[Place]]:
    """Split origins, in order, at partition ends and so that a part has at most `messages` messages and `GROUP`
    letters.

    >>> places = [Place("a", 0, offset, row) for offset in (1, 2, 3) for row in (0, 1)]
    >>> [[(place.offset, place.row) for place in part] for part in parts_of(places, messages=2)]
    [[(1, 0), (1, 1), (2, 0), (2, 1)], [(3, 0), (3, 1)]]
    """
    part: list[Place] = []
    offsets: set[int] = set()
    for place in sorted(places):
        more = {*offsets, place.offset}
        if part and (part[0][:2] != place[:2] or len(more) > messages or len(part) == GROUP):
            yield part
            part, more = [], {place.offset}
        part.append(place)
        offsets = more
    if part:
        yield part


def places_of(rows: pa.Table) -> list[Place]:
    return [Place(*values) for values in zip(*(rows[name].to_pylist() for name in PLACES), strict=True)]
