"""Kafka topics that others feed as a sample: messages from their begin and end, decoded as augmentation does.

No group is joined and nothing is committed: other readers do not notice."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Kafka, Topic
from pipelines.data.checks.sample import (
    Refused,
    Sample,
    TimeSeen,
    count_refused,
    count_verticals,
    match_feedback,
)
from pipelines.data.profile.column_seen import ColumnSeen
from pipelines.data.profile.finding import Finding, note, stop, warn
from streaming.errors import BadInput, BrokerAway, StreamingError
from streaming.kafka.reader import TopicReader
from streaming.kafka.topics import beginning_offsets, end_offsets, require_topics
from streaming.messages.codecs import make_codec
from streaming.messages.dead_letters import TOMBSTONE, Kind
from streaming.messages.message import RawMessage, envelope_in, framed, whole_keys
from streaming.messages.source import EndOfStream
from streaming.messages.times import ClockChanges, ahead_ms, believed, in_seconds, unit_hint
from streaming.position import Partition, SourcePosition

CONNECT_S = 5.0
PATIENCE_S = 30.0
"""A topic is read for no longer."""

PLACE = ("source_topic", "source_partition", "source_offset")

MISSING = tuple(f"missing_column:{name}" for name in ("impression_id", "event_time_ms", "vertical", "task"))
"""Reasons of objects that have something else at their outermost level."""

Piece = dict[Partition, tuple[int, int]]
"""Of each partition the offsets to read, the second one exclusive."""


def sample_topics(config: Config, wanted: int) -> tuple[Sample | None, list[Finding]]:
    """A sample of at most about `wanted` messages of each input topic, and what kept them from being read."""
    kafka = config.kafka.model_copy(update={"connect_timeout_s": min(CONNECT_S, config.kafka.connect_timeout_s)})
    reader = _Reader(config, kafka)
    try:
        return reader.read(wanted), reader.findings
    except BrokerAway as error:
        return None, [*reader.findings, stop("kafka.bootstrap_servers", str(error))]
    except BadInput as error:
        return None, [*reader.findings, stop("kafka", str(error))]
    except StreamingError as error:
        return None, [*reader.findings, warn("kafka", f"the topics could not be looked at: {error}")]


class _Reader:
    def __init__(self, config: Config, kafka: Kafka) -> None:
        self._config, self._kafka = config, kafka
        self.findings: list[Finding] = []

    def read(self, wanted: int) -> Sample | None:
        kafka, schema = self._kafka, self._config.rows
        topics: list[tuple[Topic, Kind]] = [(kafka.impressions, "impression"), (kafka.feedback, "feedback")]
        counts = require_topics(kafka, [topic.topic for topic, _ in topics])
        for topic, kind in topics:
            if counts[topic.topic] != topic.partitions:
                setting = f"kafka.{kind}{'s' * (kind == 'impression')}.partitions"
                self.findings.append(
                    stop(
                        setting,
                        f"topic `{topic.topic}` has {counts[topic.topic]} partitions, and {topic.partitions} would be "
                        "read",
                        f"set {setting} to {counts[topic.topic]}",
                    )
                )
        if self.findings:
            return None
        names = f"topics {kafka.impressions.topic} and {kafka.feedback.topic} at {kafka.bootstrap_servers}"
        sample = Sample(names, None, 0, False, schema.impression.empty_table())
        whole, rows = self._rows(kafka.impressions, "impression", wanted, sample.refused)
        sample.batch = rows.select(schema.impression.names)
        sample.looked_at = rows.num_rows + sum(refused.rows for refused in sample.refused.values())
        whole_feedback, feedback = self._rows(kafka.feedback, "feedback", wanted, sample.feedback_refused)
        sample.feedback_looked_at = feedback.num_rows + sum(r.rows for r in sample.feedback_refused.values())
        for (topic, _), looked_at in zip(topics, (sample.looked_at, sample.feedback_looked_at), strict=True):
            if not looked_at:
                self.findings.append(warn(f"topic {topic.topic}", "it holds no messages yet: nothing to check"))
        sample.whole = whole and whole_feedback
        sample.rows = sample.looked_at if sample.whole else None
        sample.labels = match_feedback(sample, schema, feedback.select(schema.feedback.names).to_batches())
        if rows.num_rows:
            sample.columns = [ColumnSeen.of(name, sample.batch[name]) for name in sample.batch.column_names]
            sample.count_refused_values()
            times = sample.batch["event_time_ms"].to_numpy()
            sample.time = TimeSeen(int(times.min()), int(times.max()), "ms")
            self._look_at_zone(times)
            count_verticals(sample.verticals, sample.batch["vertical"])
        return sample

    def _look_at_zone(self, times: np.ndarray) -> None:
        """Name times in an hour that clocks had twice."""
        if (zone := self._config.rows.event_time_zone) is not None:
            changes = ClockChanges(zone)
            changes.add(pc.local_timestamp(pa.array(times).cast(pa.timestamp("ms", zone))))
            self.findings += [note("rows.event_time_zone", f"without an offset, {text}") for text in changes.words]

    def _rows(self, topic: Topic, kind: Kind, wanted: int, refused: dict[str, Refused]) -> tuple[bool, pa.Table]:
        """Whether those are all, and the good rows; the others are counted."""
        most, limits = self._kafka.max_message_bytes, self._config.limits
        codec = make_codec(
            topic.codec,
            kind,
            self._config.rows,
            max_message_bytes=most,
            limits=limits,
            avro_schemas=topic.avro_schemas,
            unwrap=topic.unwrap,
            id_of_key=topic.impression_id == "key",
        )
        whole, pieces = self._pieces(topic, wanted)
        batches = []
        for piece in pieces:
            left = wanted // len(pieces) or 1
            for messages in self._messages(piece):
                batch, dead = codec.decode(messages)
                batches.append(self._in_time(batch, refused))
                count_refused(
                    refused, ((d.reason, f"{d.topic}/{d.partition} offset {d.offset}: {d.detail}") for d in dead)
                )
                self._look_at_codec(topic, kind, messages, [letter.reason for letter in dead])
                left -= batch.num_rows + len(dead)
                if left <= 0:
                    whole = whole and len(pieces) == 1 and messages[-1].offset + 1 >= max(e for _, e in piece.values())
                    break
        return whole, pa.Table.from_batches(batches, codec.schema)

    def _in_time(self, batch: pa.RecordBatch, refused: dict[str, Refused]) -> pa.RecordBatch:
        """The rows whose event times a run would take (`Merge`); the others are counted, and the first timestamp of a
        record that cannot be right is named."""
        now_ms = time.time_ns() // 1_000_000 if self._config.reads_live else None
        event, recorded = (batch[name].to_numpy() for name in ("event_time_ms", "record_time_ms"))
        place = [f"{t}/{p} offset {o}" for t, p, o in zip(*(batch[n].to_pylist() for n in PLACE), strict=True)]
        seconds, skew_s = in_seconds(event, recorded, now_ms), self._config.max_future_skew_s
        future = np.zeros(len(event), bool)
        if skew_s is not None:
            ahead = ahead_ms(event, recorded, now_ms)
            future = (ahead > 1000 * skew_s) & ~seconds
            doubtful = np.flatnonzero(~believed(recorded, event, now_ms) & (recorded >= 0) & ~seconds & ~future)
            if len(doubtful) and not any(found.where == "record timestamps" for found in self.findings):
                row = doubtful[0]
                self.findings.append(
                    warn(
                        "record timestamps",
                        f"{len(doubtful):,} of {len(event):,} records at {place[row]} have timestamps that cannot be "
                        f"right: {recorded[row]} ms since 1970 beside event time {event[row]}. They count as none",
                        "have the producer or mirror set them in milliseconds, or the broker "
                        "(message.timestamp.type=LogAppendTime)",
                    )
                )
            count_refused(
                refused,
                (("in_the_future", f"{place[n]}: {ahead[n]} ms ahead of the clock") for n in np.flatnonzero(future)),
            )
        hints = ((n, unit_hint(int(event[n]))) for n in np.flatnonzero(seconds))
        count_refused(refused, (("bad_event_time", f"{place[n]}: event time is {event[n]}{hint}") for n, hint in hints))
        return batch.filter(pa.array(~(seconds | future)))

    def _pieces(self, topic: Topic, wanted: int) -> tuple[bool, list[Piece]]:
        """The whole topic, or its begin and its end."""
        partitions = [Partition(topic.topic, number) for number in range(topic.partitions)]
        begins, ends = beginning_offsets(self._kafka, partitions), end_offsets(self._kafka, partitions)
        if sum(ends[p] - begins[p] for p in partitions) <= wanted:
            return True, [{p: (begins[p], ends[p]) for p in partitions}]
        each = max(1, wanted // 2 // len(partitions))
        return False, [
            {p: (begins[p], min(begins[p] + each, ends[p])) for p in partitions},
            {p: (max(begins[p], ends[p] - each), ends[p]) for p in partitions},
        ]

    def _messages(self, piece: Piece) -> Iterator[list[RawMessage]]:
        deadline = time.monotonic() + PATIENCE_S
        ends = {partition: end for partition, (_, end) in piece.items()}
        with TopicReader(self._kafka, list(piece), ends=ends, markers_end=False) as reader:
            reader.open({p: SourcePosition(begin) for p, (begin, _) in piece.items()})
            while time.monotonic() < deadline:
                try:
                    messages = reader.next_batch(0.5, max_messages=2000)
                except EndOfStream:
                    return
                if messages:
                    yield messages

    def _look_at_codec(self, topic: Topic, kind: Kind, messages: list[RawMessage], reasons: list[str]) -> None:
        """What the messages of a topic are, where none of them can be read as the config has it."""
        setting = f"kafka.{kind}{'s' * (kind == 'impression')}"
        rows = [message for message in messages if message.value]
        reasons = [reason for reason in reasons if reason != TOMBSTONE]
        if not rows or len(reasons) < len(rows) or any(found.where.startswith(setting) for found in self.findings):
            return
        found, refused, is_json = envelope_in(rows[0].value), set(reasons), rows[0].value.lstrip()[:1] == b"{"
        unlike = found != topic.unwrap and (found is not None or is_json)
        if unlike and topic.codec != "avro" and refused <= {"undecodable", *MISSING}:
            if found is not None:
                seen, wanted = f"are in an envelope of {found}", f"{{unwrap: {found}}}"
            else:
                seen, wanted = f"are in no envelope of {topic.unwrap}", "json"
            self._stop(f"{setting}.codec", f"messages of topic `{topic.topic}` {seen}", wanted)
        elif refused == {"missing_column:impression_id"} and whole_keys([message.key for message in rows]) is not None:
            distinct = len({message.key for message in rows})
            seen = f"have no `impression_id`, and keys ({distinct:,} different ones of {len(rows):,})"
            self._stop(f"{setting}.impression_id", f"messages of topic `{topic.topic}` {seen}", "{from: key}")
        elif refused == {"undecodable"} and topic.unwrap is None and topic.impression_id == "value":
            other = "json" if topic.codec == "arrow" else "arrow"
            if not framed(rows[0].value) and is_json == (other == "json"):
                self._stop(f"{setting}.codec", f"messages of topic `{topic.topic}` are not {topic.codec}", other)

    def _stop(self, setting: str, seen: str, wanted: str) -> None:
        self.findings.append(stop(setting, seen, f"set {setting} to {wanted}"))
