"""Positions mapped onto copies of topics, on the broker of the simulation: found by what was read last, or named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from kafka import TopicPartition

import streaming.kafka.reader as reader_module
import streaming.kafka.topics as topics_module
from streaming.errors import BadInput
from streaming.intake.account import OffsetAccounts
from streaming.intake.merge import NO_TIME
from streaming.intake.moving import MappedPartition, MappedTopic, map_topic, moved, recorded_partitions
from streaming.kafka.settings import KafkaSettings
from streaming.messages.codecs import make_codec
from streaming.messages.fingerprint import TRAIL, digest_of
from streaming.messages.message import RawMessage
from streaming.position import Partition, SourcePosition
from streaming.schema import RowSchema, Task
from tests.simulation.broker import Broker
from tests.simulation.log import Log, Record
from tests.simulation.scheduler import Scheduler

SETTINGS = KafkaSettings(bootstrap_servers="simulated:1")
SCHEMA = RowSchema(columns=[], tasks=[Task(name="ctr", window_s=60)])
SECOND = 1000
MARGIN_MS = 5 * SECOND
OLD_OFFSET = 5000


def value(number: int) -> bytes:
    return b'{"impression_id": %d, "event_time_ms": %d, "vertical": "a"}' % (number, number * SECOND)


def read_up_to(*counts: int, row: int = 0) -> dict[str, Any]:
    """The position of an intake that has read so many messages of each partition of `ads`, whose offsets began with
    5,000: message n of partition p is row 1000 p + n, at n seconds. `row`: that many rows of the next message too."""
    places = {Partition("ads", number): count for number, count in enumerate(counts)}
    accounts = OffsetAccounts(dict.fromkeys(places, "impression"))
    accounts.open(None, dict.fromkeys(places, SourcePosition(OLD_OFFSET)))
    codec = make_codec("json", "impression", SCHEMA)
    for place, count in places.items():
        messages = [
            RawMessage(*place, OLD_OFFSET + n, n * SECOND, None, value(1000 * place.partition + n))
            for n in range(count + (row > 0))
        ]
        accounts.read(place, messages, codec.decode(messages))
    at = {place: SourcePosition(OLD_OFFSET + count, row) for place, count in places.items()}
    accounts.move_to(at)
    return {
        "watermark_ms": max(counts) * SECOND,
        "next_order": sum(counts),
        "partitions": [[*place, *at[place], counts[place.partition] * SECOND] for place in places],
        "accounts": accounts.state(),
        "epochs": [["ads", 0, 7]],
    }


@pytest.fixture
def topic(monkeypatch):
    """Makes the topic `ads` of messages (number, seconds) for each partition, or (bytes, seconds)."""
    broker = Broker(Scheduler(0), {})
    broker.patient = True
    for module in (reader_module, topics_module):
        monkeypatch.setattr(module, "connect", broker.connect)

    def make(*partitions: Sequence[tuple[int | bytes, int]], begin: int = 0) -> None:
        broker.topics["ads"] = len(partitions)
        for number, messages in enumerate(partitions):
            log = broker.logs[TopicPartition("ads", number)] = Log()
            for content, second in messages:
                log.append(Record(content if isinstance(content, bytes) else value(content), timestamp=second * SECOND))
            log.begin = begin

    return make


def copy(start: int, stop: int, partition: int = 0) -> list[tuple[int | bytes, int]]:
    return [(1000 * partition + n, n) for n in range(start, stop)]


def mapped(state: dict[str, Any], partitions: int = 1, oldest_ms: int = NO_TIME) -> Any:
    into = [Partition("ads", number) for number in range(partitions)]
    return map_topic(SETTINGS, state, "ads", into, margin_ms=MARGIN_MS, oldest_ms=oldest_ms)


def positions(state: dict[str, Any], partitions: int = 1) -> list[SourcePosition]:
    return [each.position for each in mapped(state, partitions).partitions]


def test_a_position_lies_behind_the_last_message_read_whatever_its_offset(topic):
    topic(copy(40, 200), copy(0, 90, 1))
    assert positions(read_up_to(100, 80), 2) == [SourcePosition(60), SourcePosition(80)]


def test_a_partition_of_which_nothing_was_read_is_read_from_its_beginning(topic):
    topic(copy(0, 50), copy(0, 5, 1), begin=2)
    assert positions(read_up_to(40, 0), 2) == [SourcePosition(40), SourcePosition(2)]


def test_of_repeated_messages_the_first_copies_count(topic):
    topic([*copy(0, 95), *copy(85, 100), *copy(90, 130)])
    state = read_up_to(100)
    (partition,) = mapped(state).partitions
    assert partition.position == SourcePosition(110)
    assert [each.offset for each in partition.trail] == [*range(68, 95), *range(105, 110)]
    assert not partition.again


def test_a_message_that_was_never_read_is_not_passed_over(topic):
    topic([*copy(0, 90), (7777, 90), *copy(90, 130)])
    (partition,) = mapped(read_up_to(100)).partitions
    assert (partition.position, partition.again) == (SourcePosition(90), True)
    assert {each.offset for each in partition.trail} == set(range(68, 90))


def test_a_message_that_was_never_read_is_not_passed_over_where_others_are_repeated(topic):
    topic([*copy(0, 90), (7777, 90), *copy(60, 130)])
    assert positions(read_up_to(100)) == [SourcePosition(90)]


def test_a_message_that_was_read_in_part_goes_on_inside(topic):
    topic(copy(50, 130))
    assert positions(read_up_to(100, row=3)) == [SourcePosition(50, 3)]


def test_a_topic_may_begin_among_the_messages_read_last(topic):
    topic(copy(90, 130))
    assert positions(read_up_to(100)) == [SourcePosition(10)]


def test_equal_messages_are_told_apart_by_their_order(topic):
    topic([(b"beat", second) for second in range(4)])
    state, digest = read_up_to(3), digest_of(RawMessage("ads", 0, 0, 0, None, b"beat"))
    for trail in state["accounts"]["trails"]:
        trail[2] = [[offset, time_ms, digest] for offset, time_ms, _ in trail[2]]
    assert positions(state) == [SourcePosition(3)]


def test_timestamps_that_the_new_topic_gave_do_not_hide_a_message(topic):
    topic([(number, 10_000 + number) for number in range(130)])
    assert positions(read_up_to(100)) == [SourcePosition(100)]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (copy(0, 90), r"ads/0 \(read up to offset 5,100, .*\): the mirror is behind: .* the last 10 are not .* 10.0 s"),
        (copy(0, 10), "none of the last 32 messages read is there"),
        ([], "none of the last 32 messages read is there"),
        (copy(101, 130), "none of the last 32 messages read is there"),
        ([*copy(0, 80), *copy(81, 130)], "the message that had offset 5,080 is not there, and later ones are"),
        ([*copy(0, 80), (b"altered", 80), *copy(81, 130)], "the message that had offset 5,080 is not there, and later"),
        ([*copy(0, 80), (81, 81), (80, 80), *copy(82, 130)], "is not there, and later ones are"),
    ],
    ids=["late", "very late", "empty", "begun after", "lost", "altered", "reordered"],
)
def test_what_cannot_be_mapped_is_named(topic, messages, words):
    topic(messages)
    with pytest.raises(BadInput, match=words):
        mapped(read_up_to(100))


def test_every_partition_that_cannot_be_mapped_is_named(topic):
    topic(copy(0, 90), copy(0, 100, 1), copy(0, 60, 2))
    with pytest.raises(BadInput, match=r"ads/0 .*\nads/2 ") as error:
        mapped(read_up_to(100, 90, 80), 3)
    assert "ads/1" not in str(error.value)


def test_a_commit_without_fingerprints_is_refused(topic):
    topic(copy(0, 130))
    state = read_up_to(100)
    del state["accounts"]["trails"]
    with pytest.raises(BadInput, match="which messages were read last of ads/0 is not on record"):
        mapped(state)


# --- other numbers of partitions -----------------------------------------------------------------------------------


def cut_anew(partitions: int, *parts: list[tuple[int | bytes, int]]) -> list[list[tuple[int | bytes, int]]]:
    """Messages of several partitions, by time, each where its number says."""
    together = sorted((m for part in parts for m in part), key=lambda message: message[1])
    return [[m for m in together if int(m[0]) % partitions == number] for number in range(partitions)]


@pytest.mark.parametrize("partitions", [1, 3, 5])
def test_every_unread_message_lies_behind_the_positions_of_topics_cut_anew(topic, partitions):
    anew = cut_anew(partitions, copy(0, 130), copy(0, 130, 1))
    topic(*anew)
    found = mapped(read_up_to(100, 97), partitions)
    unread = {n for n in range(100, 130)} | {1000 + n for n in range(97, 130)}
    behind = [m for each in found.partitions for m in anew[each.partition.partition][each.position.offset :]]
    assert unread <= {number for number, _ in behind}
    oldest = 97 - TRAIL - MARGIN_MS // SECOND
    assert min(second for _, second in behind) == oldest


def test_what_would_be_too_old_is_not_read_again(topic):
    topic(*cut_anew(3, copy(0, 130), copy(0, 130, 1)))
    found = mapped(read_up_to(100, 0), 3, oldest_ms=60 * SECOND)
    assert [each.position.offset for each in found.partitions] == [37, 37, 36]


def test_messages_read_last_that_are_nowhere_in_a_topic_cut_anew_are_named(topic):
    topic(*cut_anew(3, copy(0, 99), copy(0, 130, 1)))
    with pytest.raises(BadInput, match=r"ads/0 .* 1 are in none of the 3 partitions, first .* had offset 5,099"):
        mapped(read_up_to(100, 97), 3)


# --- the state that is recorded --------------------------------------------------------------------------------------


def test_partitions_keep_event_time_counts_and_what_was_read_last(topic):
    topic(copy(40, 200), copy(0, 90, 1))
    state = read_up_to(100, 80)
    after = moved(state, [mapped(state, 2)])
    assert after["partitions"] == [["ads", 0, 60, 0, 100 * SECOND], ["ads", 1, 80, 0, 80 * SECOND]]
    assert after["epochs"] == []
    assert (after["watermark_ms"], after["next_order"]) == (state["watermark_ms"], state["next_order"])
    accounts = OffsetAccounts({Partition("ads", number): "impression" for number in range(2)})
    accounts.open(after["accounts"], {})
    assert accounts.counts("impression")["rows"] == 180
    assert positions(after, 2) == [SourcePosition(60), SourcePosition(80)]  # once more, from there to there


@pytest.mark.parametrize("partitions", [1, 3])
def test_partitions_cut_anew_have_the_counts_and_no_event_time(topic, partitions):
    topic(*cut_anew(partitions, copy(0, 130), copy(0, 130, 1)))
    state = read_up_to(100, 97)
    after = moved(state, [mapped(state, partitions)])
    assert [[*each[:2], each[4]] for each in after["partitions"]] == [["ads", n, NO_TIME] for n in range(partitions)]
    accounts = OffsetAccounts({Partition("ads", number): "impression" for number in range(partitions)})
    accounts.open(after["accounts"], {})
    assert accounts.counts("impression")["rows"] == 197


def test_a_topic_of_another_name_takes_the_place_of_the_one_before(topic):
    topic([*copy(0, 90), (7777, 90), *copy(90, 130)], copy(0, 90, 1))
    state = read_up_to(100, 80)
    state = json.loads(json.dumps(state).replace('"ads"', '"old-ads"'))
    into = [Partition("ads", number) for number in range(2)]
    after = moved(state, [map_topic(SETTINGS, state, "old-ads", into, margin_ms=MARGIN_MS, oldest_ms=NO_TIME)])
    assert after["partitions"] == [["ads", 0, 90, 0, 100 * SECOND], ["ads", 1, 80, 0, 80 * SECOND]]
    assert "old-ads" not in json.dumps(after)


def test_a_topic_takes_the_name_that_another_one_had_before():
    state, other = read_up_to(100), json.loads(json.dumps(read_up_to(70)).replace('"ads"', '"clicks"'))
    for part in ("partitions", "epochs"):
        state[part] += other[part]
    for part in ("partitions", "trails"):
        state["accounts"][part] += other["accounts"][part]
    after = moved(state, [renamed(state, "ads", "clicks", 60), renamed(state, "clicks", "views", 40)])
    assert after["partitions"] == [["clicks", 0, 60, 0, 100 * SECOND], ["views", 0, 40, 0, 70 * SECOND]]
    counted = {each[0]: each[5] for each in after["accounts"]["partitions"]}
    assert counted == {"clicks": 100, "views": 70}
    assert [each[0] for each in after["accounts"]["trails"]] == ["clicks", "views"]
    assert after["epochs"] == []


def renamed(state: dict[str, Any], name: str, to: str, offset: int) -> MappedTopic:
    into = MappedPartition(Partition(to, 0), SourcePosition(offset))
    return MappedTopic(recorded_partitions(state, name), [into], 0)


def test_another_topic_stays_as_it_is(topic):
    topic(copy(40, 200))
    state = read_up_to(100)
    state["partitions"].append(["clicks", 0, 9, 0, 70])
    state["accounts"]["partitions"].append(["clicks", 0, 9, 0, 9, 9, 9, 0, 0, 0])
    state["epochs"].append(["clicks", 0, 4])
    after = moved(state, [mapped(state)])
    assert ["clicks", 0, 9, 0, 70] in after["partitions"]
    assert after["epochs"] == [["clicks", 0, 4]]
