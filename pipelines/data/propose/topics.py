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

from pipelines.data.profile.messages import messages_at, newest, offsets_of
from streaming.errors import BadInput
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import require_topics
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
from streaming.position import Partition
from streaming.schema import UNKNOWN

SCHEME = "kafka://"
IMPRESSION, FEEDBACK = ("impression_id", "event_time_ms", "vertical"), ("impression_id", "event_time_ms", "task")
"""Names that messages have in every stream."""

DISTINCT = 0.9
"""Keys of impressions are ids where this share of them is different: a few may have been sent twice."""


class TopicRequest(NamedTuple):
    """Topics to sample, and the amount to read."""

    servers: str
    impressions: str
    feedback: str
    rows: int = 200_000
    seconds: float = 30.0

    @classmethod
    def of(cls, address: str, feedback: str | None, rows: int, seconds: float) -> TopicRequest:
        """Parse `kafka://HOST:PORT[,HOST:PORT]/TOPIC`. Raises BadInput where a part is missing.

        >>> TopicRequest.of("kafka://localhost:9092/ads", "clicks", 1000, 5.0)[:3]
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
    """Sampled files, the config's `kafka` section, and remarks. `messages`: in the topic."""

    impressions: Path
    feedback: Path
    kafka: dict[str, Any]
    rows: int
    said: list[str] = field(default_factory=list)


def sample(request: TopicRequest, folder: Path) -> Sampled:
    """Sample both topics, the newest rows first if there are too many, and write them to `folder`.

    No group is joined and nothing is committed. Raises BadInput where a topic is absent or empty, holds neither JSON
    nor Arrow, or lacks a column that every stream has; BrokerAway.
    """
    settings = KafkaSettings.of_servers(request.servers)
    counts = require_topics(settings, [request.impressions, request.feedback])
    shown = _Topic(settings, request.impressions, counts[request.impressions])
    events = _Topic(settings, request.feedback, counts[request.feedback])
    impressions = shown.read(request.rows, request.seconds, IMPRESSION)
    records = [name for name in impressions.column_names if pa.types.is_struct(impressions[name].type)]
    events.text_ids = pa.types.is_string(impressions["impression_id"].type)
    feedback = events.read(request.rows, request.seconds, FEEDBACK)
    known = [not str(task).startswith(UNKNOWN) for task in feedback["task"].to_pylist()]
    rows = round(impressions.num_rows * max(1.0, shown.messages / max(1, shown.read_messages)))
    said = [f"the newest {impressions.num_rows:,} of about {rows:,} impressions were looked at"]
    if records:
        said.append(f"records inside messages are read by no model, and left out: {', '.join(records)}")
    if shown.mixed:
        said.append(f"left out, for their values are of several types: {', '.join(sorted(shown.mixed))}")
    paths = folder / "impressions.parquet", folder / "feedback.parquet"
    pq.write_table(impressions.drop_columns(records), paths[0])
    pq.write_table(feedback.select(list(FEEDBACK)).filter(pa.array(known)), paths[1])
    kafka = {
        "bootstrap_servers": request.servers,
        "impressions": shown.setting,
        "feedback": events.setting,
        "examples": {"topic": f"{request.impressions}-examples"},
        "dead_letters": {"topic": f"{request.impressions}-dead-letters", "codec": "json"},
    }
    return Sampled(*paths, kafka, rows, [*said, *shown.said, *events.said])


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
        self._settings, self._name, self._partitions = settings, name, partitions
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
        return {"topic": self._name, "partitions": self._partitions, "codec": codec, **of_key}

    @property
    def said(self) -> list[str]:
        """Steps that make rows of the messages, in words."""
        words = []
        if self.unwrap is not None:
            words.append(f"messages of `{self._name}` are in an envelope of {self.unwrap}, which is taken off")
        if self.id_of_key:
            words.append(f"messages of `{self._name}` have no `impression_id`, and their keys are taken for it")
        return words

    def read(self, rows: int, seconds: float, names: Sequence[str]) -> pa.Table:
        """The newest messages, with about `rows` rows, in the order of their offsets. `names`: columns of every
        stream."""
        offsets = offsets_of(self._settings, self._name, self._partitions)
        self.messages = sum(map(len, offsets.values()))
        if not self.messages:
            raise BadInput(f"topic `{self._name}` is empty; send some messages first, a few thousand rows at least")
        deadline = time.monotonic() + seconds
        middle = {partition: of[len(of) // 2 :] for partition, of in offsets.items()}
        first = next((m for some in (middle, offsets) for m in self._messages(some, deadline)), None)
        nothing = f"topic `{self._name}`: nothing came within {seconds:g} s; ask for more with --sample-seconds"
        if first is None:
            raise BadInput(nothing)
        self.codec = self._codec_of(first)
        a_message = self._table(first).num_rows if self.codec == "arrow" else 1
        each = max(2, rows // self._partitions // a_message)  # the last one may be an end marker
        messages = list(self._messages(newest(offsets, each), deadline))
        if not messages:
            raise BadInput(nothing)
        self.read_messages = len(messages)
        if self.codec == "json":
            table = self._of_json(messages)
        else:
            table = pa.concat_tables(map(self._table, messages), promote_options="permissive")
        self._require(names, table)
        _in_ms(self._name, table)
        return table

    def _messages(self, offsets: dict[Partition, range], deadline: float) -> Iterator[RawMessage]:
        for messages in messages_at(self._settings, offsets, deadline):
            yield from (message for message in messages if message.value and not is_end_marker(message))

    def _codec_of(self, message: RawMessage) -> str:
        envelope = envelope_in(message.value)
        if message.value.removeprefix(BOM).lstrip()[:1] == b"{" or envelope is not None:
            self.unwrap = envelope
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

    def _require(self, names: Sequence[str], rows: pa.Table) -> None:
        if missing := [name for name in names if name not in rows.column_names]:
            keys = ""
            if missing[0] == "impression_id" and self.distinct_keys:
                keys = f" (nor are their keys ids: {self.distinct_keys:,} different ones in {rows.num_rows:,} messages)"
            raise BadInput(
                f"topic `{self._name}`: its messages have no {', '.join(f'`{name}`' for name in missing)}{keys}; they "
                f"have {', '.join(rows.column_names) or 'nothing'}. Every stream's have {', '.join(names)}, by these "
                "names"
            )
