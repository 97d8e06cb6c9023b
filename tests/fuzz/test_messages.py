"""Whatever bytes come in: every row is taken or is one dead letter that says why and whence, and nothing is harmed.

Each drawn message goes through codec, validation, merge and settlement, between two good ones.
"""

from __future__ import annotations

import json
import resource
import time
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

from streaming.intake.merge import Merge
from streaming.messages.codecs import Codec, Decoded, decoded_schema, make_codec
from streaming.messages.dead_letters import (
    DEAD_LETTER_SCHEMA,
    DeadLetter,
    Kind,
    letters_from_batch,
    letters_to_batch,
    letters_to_json,
)
from streaming.messages.ipc import write_ipc
from streaming.messages.message import RawMessage
from streaming.position import Partition
from streaming.schema import Column, RowSchema, Task
from streaming.settlement.settlement import Settlement
from tests.support.streams.broken_inputs import SOAK, broken_bytes, broken_object, broken_table, edited, fuzzed

MAX_BYTES = 20_000
COLUMNS = (
    Column(name="age", minimum=0, maximum=120),
    Column(name="city", type="string", nullable=True),
    Column(name="price", type="float32"),
    Column(name="recent", type="list<int64>", maximum=1000),
)
TASKS = (Task(name="ctr", window_s=60), Task(name="cvr", window_s=3600, given="ctr"))
SCHEMAS = {kind: RowSchema(impression_id=kind, columns=COLUMNS, tasks=TASKS) for kind in ("int64", "string")}
ADS, CLICKS = Partition("ads", 0), Partition("clicks", 1)
_POOLS: list[pa.MemoryPool] = []  # must outlive what was taken from them


class Topic(NamedTuple):
    """One way for messages to come."""

    kind: Kind
    encoding: str
    ids: str

    @property
    def codec(self) -> Codec:
        return make_codec(self.encoding, self.kind, SCHEMAS[self.ids], max_message_bytes=MAX_BYTES)

    def good(self, count: int = 5) -> list[dict[str, Any]]:
        ids = [f"id-{n}" if self.ids == "string" else n for n in range(count)]
        if self.kind == "feedback":
            return [{"impression_id": i, "event_time_ms": 1100 + n, "task": "ctr"} for n, i in enumerate(ids)]
        rest = {"vertical": "feed", "age": 30, "city": "Ulm", "price": 1.5, "recent": [1, 2]}
        return [{"impression_id": i, "event_time_ms": 1000 + n} | rest for n, i in enumerate(ids)]

    @property
    def schema(self) -> pa.Schema:
        schema = SCHEMAS[self.ids]
        return schema.impression if self.kind == "impression" else schema.feedback

    def message(self, offset: int, value: bytes) -> RawMessage:
        partition = ADS if self.kind == "impression" else CLICKS
        return RawMessage(*partition, offset, 5000, None, value)

    def value(self) -> bytes:
        if self.encoding == "json":
            return json.dumps(self.good(1)[0]).encode()
        return write_ipc(pa.RecordBatch.from_pylist(self.good(), self.schema))


TOPICS = [Topic(k, e, i) for k in ("impression", "feedback") for e in ("arrow", "json") for i in ("int64", "string")]


@st.composite
def messages(draw: st.DrawFn) -> tuple[Topic, bytes]:
    """A message that is not as its topic's should be; now and then it is, all the same."""
    topic = draw(st.sampled_from(TOPICS))
    if draw(st.booleans()):
        return topic, edited(topic.value(), draw(broken_bytes()))
    if topic.encoding == "json":
        value = draw(broken_object(topic.good(1)[0]))
    else:
        value = draw(broken_table(pa.Table.from_pylist(topic.good(), topic.schema)))
    if draw(st.integers(0, 3)) == 0:
        value = edited(value, draw(broken_bytes()))
    if draw(st.integers(0, 50)) == 0:
        value += b" " * MAX_BYTES
    return topic, value


def rows_of(topic: Topic, value: bytes, decoded: Decoded) -> int:
    """How many rows a message stands for, by other means than the codec's."""
    whole = [letter for letter in decoded.dead if letter.reason in ("undecodable", "oversized", "tombstone")]
    if whole or topic.encoding == "json":
        return 1
    with pa.ipc.open_stream(value) as reader:
        return reader.read_all().num_rows


def assert_letters_say_why_and_whence(letters: list[DeadLetter], topic: Topic, offset: int) -> None:
    for letter in letters:
        assert letter.kind == topic.kind
        assert (letter.topic, letter.partition) == (ADS if topic.kind == "impression" else CLICKS)
        assert letter.offset == offset
        assert letter.reason
        assert len(letter.reason) < 200
        assert 0 < len(letter.detail) < 2000
    stored = letters_to_batch(letters)
    stored.validate(full=True)
    assert stored.schema == DEAD_LETTER_SCHEMA
    assert [letter.reason for letter in letters_from_batch(stored)] == [letter.reason for letter in letters]
    for letter, text in zip(letters, letters_to_json(stored, 10_000), strict=True):
        assert len(text) <= 10_000
        told = json.loads(text)
        assert (told["reason"], told["source_offset"], told["source_row"]) == (letter.reason, offset, letter.row)


def assert_conforms(batch: pa.RecordBatch, topic: Topic) -> None:
    """Types, bounds and finiteness of accepted rows, checked a row at a time."""
    assert batch.schema == decoded_schema(topic.schema)
    batch.validate(full=True)
    for row in batch.to_pylist():
        assert 0 <= row["event_time_ms"] <= 253_402_300_799_999
        assert row["impression_id"] is not None
        if topic.kind == "feedback":
            assert row["task"] in ("ctr", "cvr")
            continue
        assert 1 <= len(row["vertical"].encode()) <= 64
        assert 0 <= row["age"] <= 120
        assert np.isfinite(row["price"])
        assert all(item is not None and item <= 1000 for item in row["recent"])


def settle(topic: Topic, decoded: Decoded) -> dict[str, Any]:
    """On through merge and settlement, to the end of the stream; the counters at the end."""
    schema = SCHEMAS[topic.ids]
    merge = Merge(schema, {ADS: "impression", CLICKS: "feedback"}, max_future_skew_s=3600)
    merge.push(ADS if topic.kind == "impression" else CLICKS, decoded.batch, decoded.dead)
    merge.mark_ended(ADS)
    merge.mark_ended(CLICKS)
    settlement = Settlement(schema)
    told = 0
    while (chunk := merge.pop()) is not None:
        told += len(settlement.step(chunk).dead)
    told += len(settlement.finish().dead)
    counters = settlement.counters()
    assert told == sum(sum(reasons.values()) for reasons in counters["dead_letters"].values())
    return counters


def check(drawn: tuple[Topic, bytes]) -> None:
    topic, value = drawn
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    _POOLS.append(pool)
    before = pa.default_memory_pool()
    began = time.process_time()
    pa.set_memory_pool(pool)
    try:
        decoded = topic.codec.decode([topic.message(7, value)])
    finally:
        pa.set_memory_pool(before)
    assert time.process_time() - began < 10.0
    assert pool.max_memory() <= 64 * len(value) + (1 << 22), "a message takes much more memory than it has bytes"

    rows = rows_of(topic, value, decoded)
    found = decoded.batch["source_row"].to_pylist() + [letter.row for letter in decoded.dead]
    assert sorted(found) == list(range(rows))
    assert pc.all(pc.equal(decoded.batch["source_offset"], 7), min_count=0).as_py()
    assert_letters_say_why_and_whence(decoded.dead, topic, 7)
    assert_conforms(decoded.batch, topic)

    # Among others, good and bad, it fares as it does alone, and they as if it were not there.
    good = topic.value()
    values = {5: b"{", 6: good, 7: value, 8: good}
    among = topic.codec.decode([topic.message(offset, each) for offset, each in values.items()])
    alone = among.batch.filter(pc.equal(among.batch["source_offset"], 7))
    assert str(alone.to_pylist()) == str(decoded.batch.to_pylist())
    assert [letter for letter in among.dead if letter.offset != 5] == decoded.dead
    assert among.batch.num_rows - alone.num_rows == 2 * topic.codec.decode([topic.message(6, good)]).batch.num_rows

    counters = settle(topic, decoded)
    if topic.kind == "impression":
        dead = sum(counters["dead_letters"]["impression"].values())
        assert counters["impressions_read"] == rows
        for group in ("ctr", "cvr"):
            ended = counters["settled"][group] + counters["not_applicable"][group] + counters["pending"][group]
            assert rows == ended + dead + counters["duplicates_dropped"]
    else:
        assert counters["feedback_read"] == rows == sum(counters["dead_letters"]["feedback"].values())


def _bounded(count: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fuzzed(count, drawn=messages())(lambda drawn: check(drawn))()
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < 300


def test_a_mutated_message_is_taken_or_told_of_row_by_row_and_harms_nobody():
    _bounded(1200)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_times_as_many_mutated_messages():
    _bounded(1200 * SOAK)
