"""Broken messages among good ones, through a real broker and a whole run.

Every good row is in the lake; every bad one is told of on the dead-letter topic and in the table beside the lake, with
its reason and its origin.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st
from kafka import KafkaProducer

from pipelines.core.config.settings import Config
from streaming.kafka.topics import ensure_topics
from streaming.messages.codecs import make_codec
from streaming.messages.message import RawMessage
from tests.support.pipelines.small_runs import assert_learned_the_lake, origin, small, to_the_end
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import by_hand, ipc
from tests.support.streams.broken_inputs import broken_bytes, broken_object, broken_table, edited, fuzzed

pytestmark = pytest.mark.broker

BROKEN = 300
ODD_VERTICALS = ("..", "a/b", "x\x00", "%2F", "__HIVE_DEFAULT_PARTITION__", " ", "a=b", "\n", "é" * 32)
LATER = {"in_the_future", "too_old", "unknown_impression"}
"""Reasons that a row is given for what others did, after it was decoded."""


class Message(NamedTuple):
    kind: str
    partition: int
    value: bytes
    time_ms: int
    good: bool


def broken_messages(config: Config, shown: list[dict[str, Any]], feedback: list[dict[str, Any]]) -> list[Message]:
    """Drawn by hypothesis, the same every time: impressions as Arrow, feedback as JSON. Ids are nobody else's."""
    ads = [row | {"impression_id": 10**12 + n} for n, row in enumerate(shown[:6])]
    click = feedback[0] | {"impression_id": 10**13}
    table, one = pa.Table.from_pylist(ads, config.rows.impression), ipc(ads, config.rows.impression)
    impressions = st.one_of(broken_table(table), broken_bytes().map(lambda edits: edited(one, edits)))
    found: list[Message] = []
    kinds = st.one_of(
        st.tuples(st.just("impression"), impressions), st.tuples(st.just("feedback"), broken_object(click))
    )

    def keep(drawn: tuple[str, bytes], partition: int) -> None:
        kind, value = drawn
        if value:  # an empty one is a matter of headers
            found.append(Message(kind, partition, value, shown[0]["event_time_ms"], good=False))

    fuzzed(BROKEN, drawn=kinds, partition=st.integers(0, 1))(lambda drawn, partition: keep(drawn, partition))()
    return found


def good_messages(config: Config, shown: list[dict[str, Any]], feedback: list[dict[str, Any]]) -> list[Message]:
    found = []
    for partition in (0, 1):
        mine = [row for row in shown if row["impression_id"] % 2 == partition]
        for start in range(0, len(mine), 20):
            part = mine[start : start + 20]
            value = ipc(part, config.rows.impression)
            found.append(Message("impression", partition, value, part[-1]["event_time_ms"], good=True))
        codec = make_codec("json", "feedback", config.rows)
        rows = [row for row in feedback if row["impression_id"] % 2 == partition]
        values = codec.encode(pa.RecordBatch.from_pylist(rows, config.rows.feedback))
        for row, value in zip(rows, values, strict=True):
            found.append(Message("feedback", partition, value, row["event_time_ms"], good=True))
    return found


def send_mixed(config: Config, good: list[Message], bad: list[Message]) -> list[tuple[Message, int]]:
    """The good ones in their order, a bad one after every few of them; with the offset that each got."""
    topics = {"impression": config.kafka.impressions.topic, "feedback": config.kafka.feedback.topic}
    every, messages, waiting = max(1, len(good) // len(bad)), [], list(bad)
    for number, message in enumerate(good):
        messages.append(message)
        if number % every == 0 and waiting:
            messages.append(waiting.pop(0))
    producer = KafkaProducer(bootstrap_servers=config.kafka.bootstrap_servers, acks="all", linger_ms=20)
    sent = [producer.send(topics[m.kind], m.value, partition=m.partition, timestamp_ms=m.time_ms) for m in messages]
    producer.flush(30)
    offsets = [future.get(timeout=30).offset for future in sent]
    producer.close()
    return list(zip(messages, offsets, strict=True))


def test_every_good_row_is_in_the_lake_and_every_bad_one_is_told_of_twice(broker, tmp_path):
    config = small(
        broker.bootstrap_servers,
        source=None,
        settlement__max_future_skew_s=60,
        kafka__max_message_bytes=1 << 20,
    )
    config = config.model_copy(
        update={
            "kafka": config.kafka.model_copy(
                update={"feedback": config.kafka.feedback.model_copy(update={"codec": "json"})}
            )
        }
    )
    topics = {"impression": config.kafka.impressions, "feedback": config.kafka.feedback}
    ensure_topics(config.kafka, {topic.topic: 2 for topic in topics.values()})
    shown, feedback = by_hand(config, 1500)
    for row, name in zip(shown, ODD_VERTICALS, strict=False):
        row["vertical"] = name
    bad = broken_messages(config, shown, feedback)
    sent = send_mixed(config, good_messages(config, shown, feedback), bad)
    assert len(bad) > 0.9 * BROKEN

    # What each bad message must come to, by itself.
    refused: Counter[tuple[Any, ...]] = Counter()
    taken: set[tuple[Any, ...]] = set()
    rows = Counter({kind: 0 for kind in topics})
    for message, offset in sent:
        topic = topics[message.kind]
        codec = make_codec(topic.codec, message.kind, config.rows, max_message_bytes=1 << 20)
        raw = RawMessage(topic.topic, message.partition, offset, message.time_ms, None, message.value)
        batch, dead = codec.decode([raw])
        rows[message.kind] += batch.num_rows + len(dead)
        assert not (message.good and dead)
        refused.update((d.topic, d.partition, d.offset, d.row, d.reason) for d in dead)
        if not message.good:
            taken |= {(topic.topic, message.partition, offset, row) for row in batch["source_row"].to_pylist()}
    assert len(refused) > BROKEN / 2

    finished = to_the_end(config, tmp_path / "run")

    for letters in (finished.side_table("dead_letters"), finished.dead_letter_messages()):
        told = Counter((*origin(letter), letter["reason"]) for letter in letters)
        assert refused - told == Counter()
        beyond = [key for key in (told - refused).elements() if key[:4] in taken]
        assert all(reason in LATER for *_, reason in beyond)
        good_ones = [key for key in (told - refused).elements() if key[:4] not in taken]
        assert {reason for *_, reason in good_ones} <= {"unknown_impression"}  # clicks beyond the horizon
        assert all(letter["detail"] and letter["kind"] in topics for letter in letters)
    clicks = finished.lake.filter(pc.equal(finished.lake["settlement"], "ctr"))
    ids = Counter(clicks["impression_id"].to_pylist())
    assert {row["impression_id"] for row in shown} <= set(ids)
    assert set(ids.values()) == {1}
    verticals = dict(zip(clicks["impression_id"].to_pylist(), clicks["vertical"].to_pylist(), strict=True))
    assert [verticals[row["impression_id"]] for row in shown] == [row["vertical"] for row in shown]
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["impressions_read"] == rows["impression"]
    assert counts["feedback_read"] == rows["feedback"]
    assert_learned_the_lake(finished)
