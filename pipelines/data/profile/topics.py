"""The profile of Kafka topics that others feed: messages from their begin and end, decoded as augmentation does."""

from __future__ import annotations

import time
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Kafka, Topic
from pipelines.data.findings import Finding, Rules
from pipelines.data.profile.messages import Offsets, messages_at, newest, offsets_of
from pipelines.data.profile.profile import (
    PlacedRows,
    Profile,
    RefusedRows,
    Times,
    count_refused,
    count_verticals,
    match_feedback,
)
from streaming.errors import BadInput, BrokerAway, StreamingError
from streaming.kafka.topics import require_topics
from streaming.messages.codecs import make_codec
from streaming.messages.dead_letters import TOMBSTONE, Kind
from streaming.messages.message import RawMessage, envelope_in, framed, whole_keys
from streaming.messages.times import ClockChanges, ahead_ms, believed, in_seconds, unit_hint
from streaming.partitioner import Partitioner, PartitionerName
from streaming.position import Partition

RULES = Rules("""
stop  topic.broker  kafka.bootstrap_servers
    {problem}
stop  topic.settings  kafka
    {problem}
warn  topic.unreadable  kafka
    the topics could not be looked at: {problem}
stop  topic.partitions  {setting}.partitions
    topic `{topic}` has {there} partitions, and {partitions} would be read
    -> set {setting}.partitions to {there}
warn  topic.empty  topic {topic}
    it holds no messages yet: nothing to check
stop  topic.codec  {setting}.codec
    messages of topic `{topic}` {seen}
    -> set {setting}.codec to {wanted}
stop  topic.id  {setting}.impression_id
    messages of topic `{topic}` have no `impression_id`, and keys ({distinct:,} different ones of {rows:,})
    -> set {setting}.impression_id to {{from: key}}
note  topic.zone  rows.event_time_zone
    without an offset, {said}
warn  topic.timestamps  record timestamps
    {rows:,} of {of:,} records at {place} have timestamps that cannot be right: {recorded} ms since 1970 beside event
    time {event}. They count as none
    -> have the producer or mirror set them in milliseconds, or the broker (message.timestamp.type=LogAppendTime)
""")

CONNECT_S = 5.0
PLACE = ("source_topic", "source_partition", "source_offset")

MISSING = tuple(f"missing_column:{name}" for name in ("impression_id", "event_time_ms", "vertical", "task"))
"""Reasons of objects that have something else at their outermost level."""


def profile_topics(config: Config, wanted: int) -> tuple[Profile | None, list[Finding]]:
    """The profile of at most about `wanted` messages of each input topic, and what kept them from being read."""
    kafka = config.kafka.model_copy(update={"connect_timeout_s": min(CONNECT_S, config.kafka.connect_timeout_s)})
    reader = _Reader(config, kafka)
    try:
        return reader.read(wanted), reader.findings
    except BrokerAway as error:
        return None, [*reader.findings, RULES("topic.broker", problem=error)]
    except BadInput as error:
        return None, [*reader.findings, RULES("topic.settings", problem=error)]
    except StreamingError as error:
        return None, [*reader.findings, RULES("topic.unreadable", problem=error)]


class _Reader:
    def __init__(self, config: Config, kafka: Kafka) -> None:
        self._config, self._kafka = config, kafka
        self.findings: list[Finding] = []

    def read(self, wanted: int) -> Profile | None:
        kafka, schema = self._kafka, self._config.rows
        topics: list[tuple[Topic, Kind]] = [(kafka.impressions, "impression"), (kafka.feedback, "feedback")]
        counts = require_topics(kafka, [topic.topic for topic, _ in topics])
        self.findings += [
            RULES(
                "topic.partitions", setting=_setting(kind), topic=topic.topic, there=there, partitions=topic.partitions
            )
            for topic, kind in topics
            if (there := counts[topic.topic]) != topic.partitions
        ]
        if self.findings:
            return None
        names = f"topics {kafka.impressions.topic} and {kafka.feedback.topic} at {kafka.bootstrap_servers}"
        profile = Profile(names, None, 0, False, schema.impression.empty_table())
        whole, rows = self._rows(kafka.impressions, "impression", wanted, profile.refused, profile.placed)
        profile.batch = rows.select(schema.impression.names)
        profile.looked_at = rows.num_rows + sum(refused.rows for refused in profile.refused.values())
        whole_feedback, feedback = self._rows(
            kafka.feedback, "feedback", wanted, profile.feedback_refused, profile.placed
        )
        profile.feedback_looked_at = feedback.num_rows + sum(r.rows for r in profile.feedback_refused.values())
        for (topic, _), looked_at in zip(topics, (profile.looked_at, profile.feedback_looked_at), strict=True):
            if not looked_at:
                self.findings.append(RULES("topic.empty", topic=topic.topic))
        profile.whole = whole and whole_feedback
        profile.rows = profile.looked_at if profile.whole else None
        profile.labels = match_feedback(profile, schema, feedback.select(schema.feedback.names).to_batches())
        if rows.num_rows:
            profile.look_at_columns(profile.batch)
            times = profile.batch["event_time_ms"].to_numpy()
            profile.time = Times(int(times.min()), int(times.max()), "ms")
            self._look_at_zone(times)
            count_verticals(profile.verticals, profile.batch["vertical"])
        return profile

    def _look_at_zone(self, times: np.ndarray) -> None:
        """Name times in an hour that clocks had twice."""
        if (zone := self._config.rows.event_time_zone) is not None:
            changes = ClockChanges(zone)
            changes.add(pc.local_timestamp(pa.array(times).cast(pa.timestamp("ms", zone))))
            self.findings += [RULES("topic.zone", said=text) for text in changes.words]

    def _rows(
        self,
        topic: Topic,
        kind: Kind,
        wanted: int,
        refused: dict[str, RefusedRows],
        placed: dict[Partition, PlacedRows],
    ) -> tuple[bool, pa.Table]:
        """Good rows, and whether those are all; the others are counted, and where a partition is settled by itself,
        rows that lie in another partition than their id's."""
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
        offsets = offsets_of(self._kafka, topic.topic, topic.partitions)
        whole, pieces = self._pieces(offsets, wanted)
        batches = []
        for piece in pieces:
            left = wanted // len(pieces) or 1
            for messages in messages_at(self._kafka, piece):
                batch, dead = codec.decode(messages)
                batches.append(self._in_time(batch, refused))
                self._look_at_places(batch, placed)
                count_refused(
                    refused, ((d.reason, f"{d.topic}/{d.partition} offset {d.offset}: {d.detail}") for d in dead)
                )
                self._look_at_codec(topic, kind, messages, [letter.reason for letter in dead])
                left -= batch.num_rows + len(dead)
                if left <= 0:
                    whole = (
                        whole and len(pieces) == 1 and messages[-1].offset + 1 >= max(of.stop for of in piece.values())
                    )
                    break
        unseen = {partition: of[-1:] for partition, of in offsets.items() if of and partition not in placed}
        if self._config.settlement.by == "partition" and unseen:
            for messages in messages_at(self._kafka, unseen):
                self._look_at_places(codec.decode(messages)[0], placed)
        return whole, pa.Table.from_batches(batches, codec.schema)

    def _look_at_places(self, batch: pa.RecordBatch, placed: dict[Partition, PlacedRows]) -> None:
        """Count the rows of each partition whose ids belong to another one."""
        settlement = self._config.settlement
        if settlement.by != "partition" or not batch.num_rows:
            return
        partitions = self._kafka.impressions.partitions
        here, offset = (batch[name].to_numpy() for name in PLACE[1:])
        ids = batch["impression_id"]
        owners = {name: Partitioner(name, partitions)(ids) for name in get_args(PartitionerName)}
        owner = owners.pop(settlement.partitioner)
        (other,) = owners.values()
        for number in np.unique(here).tolist():
            partition, mine = Partition(batch["source_topic"][0].as_py(), number), here == number
            seen = placed.setdefault(partition, PlacedRows())
            wrong = np.flatnonzero(mine & (owner != number))
            if len(wrong) and not seen.example:
                row = wrong[0]
                seen.example = f"id {ids[int(row)]} at offset {offset[row]} belongs to partition {owner[row]}"
            seen.rows += int(mine.sum())
            seen.elsewhere += len(wrong)
            seen.by_the_other += int((mine & (other != number)).sum())

    def _in_time(self, batch: pa.RecordBatch, refused: dict[str, RefusedRows]) -> pa.RecordBatch:
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
            if len(doubtful) and not any(finding.id == "topic.timestamps" for finding in self.findings):
                row = doubtful[0]
                values = {"place": place[row], "recorded": recorded[row], "event": event[row]}
                self.findings.append(RULES("topic.timestamps", rows=len(doubtful), of=len(event), **values))
            count_refused(
                refused,
                (("in_the_future", f"{place[n]}: {ahead[n]} ms ahead of the clock") for n in np.flatnonzero(future)),
            )
        hints = ((n, unit_hint(int(event[n]))) for n in np.flatnonzero(seconds))
        count_refused(refused, (("bad_event_time", f"{place[n]}: event time is {event[n]}{hint}") for n, hint in hints))
        return batch.filter(pa.array(~(seconds | future)))

    def _pieces(self, offsets: Offsets, wanted: int) -> tuple[bool, list[Offsets]]:
        """The whole topic, or its begin and its end."""
        if sum(map(len, offsets.values())) <= wanted:
            return True, [offsets]
        each = max(1, wanted // 2 // len(offsets))
        return False, [{partition: of[:each] for partition, of in offsets.items()}, newest(offsets, each)]

    def _look_at_codec(self, topic: Topic, kind: Kind, messages: list[RawMessage], reasons: list[str]) -> None:
        """Name what the messages of a topic are, where none of them can be read as the config has it."""
        setting, rows = _setting(kind), [message for message in messages if message.value]
        reasons = [reason for reason in reasons if reason != TOMBSTONE]
        if not rows or len(reasons) < len(rows) or any(f.where.startswith(setting) for f in self.findings):
            return
        envelope, refused, is_json = envelope_in(rows[0].value), set(reasons), rows[0].value.lstrip()[:1] == b"{"
        unlike = envelope != topic.unwrap and (envelope is not None or is_json)
        about: dict[str, object] = {"setting": setting, "topic": topic.topic}
        if unlike and topic.codec != "avro" and refused <= {"undecodable", *MISSING}:
            seen, wanted = f"are in an envelope of {envelope}", f"{{unwrap: {envelope}}}"
            if envelope is None:
                seen, wanted = f"are in no envelope of {topic.unwrap}", "json"
            self.findings.append(RULES("topic.codec", **about, seen=seen, wanted=wanted))
        elif refused == {"missing_column:impression_id"} and whole_keys([message.key for message in rows]) is not None:
            distinct = len({message.key for message in rows})
            self.findings.append(RULES("topic.id", **about, distinct=distinct, rows=len(rows)))
        elif refused == {"undecodable"} and topic.unwrap is None and topic.impression_id == "value":
            other = "json" if topic.codec == "arrow" else "arrow"
            if not framed(rows[0].value) and is_json == (other == "json"):
                self.findings.append(RULES("topic.codec", **about, seen=f"are not {topic.codec}", wanted=other))


def _setting(kind: Kind) -> str:
    return f"kafka.{kind}{'s' * (kind == 'impression')}"
