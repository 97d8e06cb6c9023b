"""Kafka topics of impressions and feedback: a sample of each, as files that `exfm init` looks at."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from streaming.errors import BadInput
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import beginning_offsets, end_offsets, require_topics
from streaming.messages.ipc import read_ipc
from streaming.messages.message import (
    BOM,
    Envelope,
    RawMessage,
    envelope_in,
    is_end_marker,
    unwrapped,
    whole_keys,
    with_id_of_key,
)
from streaming.messages.source import EndOfStream
from streaming.position import Partition, SourcePosition
from streaming.schema import UNKNOWN

SCHEME = "kafka://"
IMPRESSION, FEEDBACK = ("impression_id", "event_time_ms", "vertical"), ("impression_id", "event_time_ms", "task")
"""Names that messages have in every stream."""

DISTINCT = 0.9
"""Keys of impressions are ids where this share of them is different: a few may have been sent twice."""


class AskedTopics(NamedTuple):
    """Which topics, and how much of each is read at most."""

    servers: str
    impressions: str
    feedback: str
    rows: int = 200_000
    seconds: float = 30.0

    @classmethod
    def of(cls, address: str, feedback: str | None, rows: int, seconds: float) -> AskedTopics:
        """From `kafka://HOST:PORT[,HOST:PORT]/TOPIC`. Raises BadInput where a part is missing.

        >>> AskedTopics.of("kafka://localhost:9092/ads", "clicks", 1000, 5.0)[:3]
        ('localhost:9092', 'ads', 'clicks')
        """
        servers, _, topic = address.removeprefix(SCHEME).partition("/")
        if not servers or not topic or "/" in topic or not all(":" in server for server in servers.split(",")):
            raise BadInput(
                f"{address} names no topic; write kafka://HOST:PORT/TOPIC, with commas between several hosts"
            )
        if feedback is None:
            raise BadInput(
                f"labels of a live stream come on a topic of their own: name it with --feedback-topic TOPIC (messages "
                f"of {', '.join(FEEDBACK)}); `{topic}` has the impressions"
            )
        return cls(servers, topic, feedback, rows, seconds)


@dataclass
class Sampled:
    """Files of what was read, the config's `kafka` section, and what to know of it. `messages`: in the topic."""

    impressions: Path
    feedback: Path
    kafka: dict[str, Any]
    rows: int
    said: list[str] = field(default_factory=list)


def sample(asked: AskedTopics, folder: Path) -> Sampled:
    """Read both topics, the newest rows first where there are more than asked for, and write them to `folder`.

    No group is joined and nothing is committed. Raises BadInput where a topic is absent or empty, holds neither JSON
    nor Arrow, or lacks a column that every stream has; BrokerAway.
    """
    settings = KafkaSettings.of_servers(asked.servers)
    counts = require_topics(settings, [asked.impressions, asked.feedback])
    shown = _Topic(settings, asked.impressions, counts[asked.impressions])
    told = _Topic(settings, asked.feedback, counts[asked.feedback])
    found = Sampled(folder / "impressions.parquet", folder / "feedback.parquet", {}, 0)
    rows = shown.read(asked.rows, asked.seconds)
    shown.require(IMPRESSION, rows)
    _in_ms(asked.impressions, rows)
    kept = [name for name in rows.column_names if not pa.types.is_struct(rows[name].type)]
    if records := [name for name in rows.column_names if name not in kept]:
        found.said.append(f"records inside messages are read by no model, and left out: {', '.join(records)}")
    if shown.mixed:
        found.said.append(f"left out, for their values are of several types: {', '.join(sorted(shown.mixed))}")
    found.said += shown.said
    pq.write_table(rows.select(kept), found.impressions)
    told.text_ids = pa.types.is_string(rows["impression_id"].type)
    events = told.read(asked.rows, asked.seconds)
    found.said += told.said
    told.require(FEEDBACK, events)
    _in_ms(asked.feedback, events)
    tasks = events["task"].to_pylist()
    known = [not str(task).startswith(UNKNOWN) for task in tasks]
    pq.write_table(events.select(list(FEEDBACK)).filter(pa.array(known)), found.feedback)
    found.rows = round(rows.num_rows * max(1.0, shown.messages / max(1, shown.read_messages)))
    found.said.insert(0, f"the newest {rows.num_rows:,} of about {found.rows:,} impressions were looked at")
    found.kafka = {
        "bootstrap_servers": asked.servers,
        "impressions": shown.setting,
        "feedback": told.setting,
        "examples": {"topic": f"{asked.impressions}-examples"},
        "dead_letters": {"topic": f"{asked.impressions}-dead-letters", "codec": "json"},
    }
    return found


def _in_ms(topic: str, rows: pa.Table) -> None:
    """Numbers of another unit would be taken as milliseconds: every label would come too late, or at once."""
    column = rows["event_time_ms"]
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return
    newest = max(value for value in column.to_pylist() if value is not None)
    if not 10**11 <= newest < 10**14:
        raise BadInput(
            f"topic `{topic}`: event_time_ms is {newest:,}; messages need milliseconds since 1970, which have 13 "
            "digits these days, or ISO 8601 text"
        )


class _Topic:
    """One topic, read once."""

    def __init__(self, settings: KafkaSettings, name: str, partitions: int) -> None:
        self._settings, self._name = settings, name
        self._partitions = [Partition(name, number) for number in range(partitions)]
        self.codec = "json"
        self.unwrap: Envelope | None = None
        self.id_of_key, self.distinct_keys = False, 0
        self.text_ids: bool | None = None  # of feedback: as the impressions' are
        self.messages = self.read_messages = 0
        self.mixed: set[str] = set()

    @property
    def setting(self) -> dict[str, Any]:
        codec = self.codec if self.unwrap is None else {"unwrap": self.unwrap}
        of_key = {"impression_id": {"from": "key"}} if self.id_of_key else {}
        return {"topic": self._name, "partitions": len(self._partitions), "codec": codec, **of_key}

    @property
    def said(self) -> list[str]:
        """What is done to messages before they are rows."""
        words = []
        if self.unwrap is not None:
            words.append(f"messages of `{self._name}` are in an envelope of {self.unwrap}, which is taken off")
        if self.id_of_key:
            words.append(f"messages of `{self._name}` have no `impression_id`, and their keys are taken for it")
        return words

    def read(self, rows: int, seconds: float) -> pa.Table:
        """The newest messages, with about `rows` rows, in the order of their offsets."""
        begins, ends = (of(self._settings, self._partitions) for of in (beginning_offsets, end_offsets))
        self.messages = sum(ends[p] - begins[p] for p in self._partitions)
        if not self.messages:
            raise BadInput(f"topic `{self._name}` is empty; send some messages first, a few thousand rows at least")
        deadline = time.monotonic() + seconds
        middle = {p: (begins[p] + ends[p]) // 2 for p in self._partitions}
        first = next((m for starts in (middle, begins) for m in self._from(starts, ends, deadline)), None)
        nothing = f"topic `{self._name}`: nothing came within {seconds:g} s; ask for more with --sample-seconds"
        if first is None:
            raise BadInput(nothing)
        self.codec = self._codec_of(first)
        a_message = self._table(first).num_rows if self.codec == "arrow" else 1
        each = max(2, rows // len(self._partitions) // a_message)  # the last one may be an end marker
        starts = {p: max(begins[p], ends[p] - each) for p in self._partitions}
        if not (found := list(self._from(starts, ends, deadline))):
            raise BadInput(nothing)
        self.read_messages = len(found)
        if self.codec == "json":
            return self._of_json(found)
        tables = [self._table(message) for message in found]
        return pa.concat_tables(tables, promote_options="permissive")

    def _from(self, starts: dict[Partition, int], ends: dict[Partition, int], deadline: float) -> Iterator[RawMessage]:
        with TopicReader(self._settings, self._partitions, ends=ends, markers_end=False) as reader:
            reader.open({p: SourcePosition(at) for p, at in starts.items()})
            while time.monotonic() < deadline:
                try:
                    messages = reader.next_batch(0.5, max_messages=2000) or []
                except EndOfStream:
                    return
                yield from (m for m in messages if m.value and not is_end_marker(m))

    def _codec_of(self, message: RawMessage) -> str:
        found = envelope_in(message.value)
        if message.value.removeprefix(BOM).lstrip()[:1] == b"{" or found is not None:
            self.unwrap = found
            return "json"
        if message.value[:4] == b"\xff\xff\xff\xff":
            return "arrow"
        avro = " It begins as Confluent's wire format with Avro;" if message.value[:1] == b"\0" else ""
        raise BadInput(
            f"topic `{self._name}`: message {message.offset} of partition {message.partition} is neither a JSON object "
            f"nor an Arrow IPC stream.{avro} a stream reads `codec: json` and `codec: arrow`"
        )

    def _table(self, message: RawMessage) -> pa.Table:
        try:
            return read_ipc(message.value)
        except ValueError as error:
            raise BadInput(f"topic `{self._name}`: message {message.offset} cannot be read: {error}") from None

    def _of_json(self, messages: Sequence[RawMessage]) -> pa.Table:
        """A column for every key; what is no JSON object is for the stream to refuse."""
        records, keys = [], []
        for message in messages:
            value = message.value.removeprefix(BOM)
            try:
                record = json.loads(value if self.unwrap is None else unwrapped(value, self.unwrap))
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                records.append(record)
                keys.append(message.key)
        if records and not any("impression_id" in record for record in records):
            records = self._with_ids(records, keys)
        columns = {}
        for name in dict.fromkeys(key for record in records for key in record):
            try:
                columns[name] = pa.array([record.get(name) for record in records])
            except (pa.ArrowException, OverflowError):
                self.mixed.add(name)
        return pa.table(columns)

    def _with_ids(self, records: list[dict[str, Any]], keys: list[bytes | None]) -> list[dict[str, Any]]:
        """The records with the keys of their messages as ids, where these can be that."""
        self.distinct_keys = len(set(keys) - {None})
        whole = whole_keys(keys)
        text = not whole if self.text_ids is None else self.text_ids
        new = self.text_ids is None  # of impressions: each has another
        if whole is None or not (whole or text) or (new and self.distinct_keys < DISTINCT * len(keys)):
            return records
        self.id_of_key = True
        ids = [json.loads(with_id_of_key(b"{}", key, text=text)) for key in keys]
        return [id_ | record for id_, record in zip(ids, records, strict=True)]

    def require(self, names: Sequence[str], rows: pa.Table) -> None:
        if missing := [name for name in names if name not in rows.column_names]:
            keys = ""
            if missing[0] == "impression_id" and self.distinct_keys:
                keys = f" (nor are their keys ids: {self.distinct_keys:,} different ones in {rows.num_rows:,} messages)"
            raise BadInput(
                f"topic `{self._name}`: its messages have no {', '.join(f'`{name}`' for name in missing)}{keys}; they "
                f"have {', '.join(rows.column_names) or 'nothing'}. Every stream's have {', '.join(names)}, by these "
                "names"
            )
