"""`exfm check` of topics that others feed: read from begin and end, as augmentation would."""

from __future__ import annotations

import json
import socket

import pyarrow as pa
import pytest
from kafka import KafkaProducer

from pipelines.data.checks.check import check_config
from pipelines.data.findings import Severity
from streaming.kafka.topics import ensure_topics
from streaming.partitioner import Partitioner
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.topics import make_inputs, send

pytestmark = pytest.mark.broker

DAY_MS = 1_700_000_000_000


def fed_by_hand(broker, *, delay_s: int = 60, **changes):
    """A config, and its topics with 400 impressions and 40 clicks as JSON."""
    json_topics = {f"kafka__{topic}__codec": "json" for topic in ("impressions", "feedback")}
    config = small(broker.bootstrap_servers, source=None, **(json_topics | changes))
    make_inputs(config)
    shown = [
        {"impression_id": n, "event_time_ms": DAY_MS + n * 1000, "vertical": "feed", "user_id": n, "ad_id": n % 9}
        | {"bid": 0.5, "interest_0": n % 5}
        for n in range(400)
    ]
    clicks = [
        {"impression_id": n, "event_time_ms": DAY_MS + (n + delay_s) * 1000, "task": "ctr"} for n in range(0, 400, 10)
    ]
    by_topic = ((config.kafka.impressions.topic, shown), (config.kafka.feedback.topic, clicks))
    messages = [(topic, row["impression_id"] % 2, json.dumps(row).encode()) for topic, rows in by_topic for row in rows]
    send(broker.bootstrap_servers, messages)
    return config


def said(report) -> str:
    return " | ".join(f"{f.severity} {f.where}: {f.seen}; {f.remedy}" for f in report.findings)


def test_topics_are_looked_at_and_left_as_they_were(broker):
    report = check_config(fed_by_hand(broker))
    assert report.profile.looked_at == 400
    assert report.profile.labels["ctr"].positives == 40
    assert not report.stops, said(report)
    some = check_config(fed_by_hand(broker), rows=100)
    assert 90 <= some.profile.looked_at <= 110
    assert not some.profile.whole


@pytest.mark.parametrize("rows", [100_000, 50], ids=["all", "a sample"])
def test_partitions_whose_rows_belong_to_others_are_named_where_each_is_settled_by_itself(broker, rows):
    """By hand, ids go to the partition of their last bit, which is neither partitioner's."""
    config = fed_by_hand(broker, settlement__by="partition")
    report = check_config(config, rows=rows)
    topic = config.kafka.impressions.topic
    named = [finding for finding in report.findings if finding.id == "rows.elsewhere"]
    assert [(finding.where, finding.seen.split(":")[0]) for finding in named] == [
        (f"topic {name}", f"partition {number}")
        for name, number in ((config.kafka.feedback.topic, 0), (topic, 0), (topic, 1))
    ]  # feedback is of every tenth id, and in partition 0 alone
    assert "% of the rows looked at (16 of 40) lie in another partition than their ids'" in said(report)
    assert "have the producers of both topics choose the partition by the impression's id" in said(report).lower()
    assert "exfm ingest FILE --config CONFIG" in said(report)
    stream = check_config(config.model_copy(update={"settlement": type(config.settlement)()}), rows=rows)
    assert "another partition" not in said(stream)


@pytest.mark.parametrize("by", ["exfm", "kafka"])
def test_topics_keyed_by_another_partitioner_are_told_which(broker, by):
    config = fed_by_hand(broker, settlement__by="partition", settlement__partitioner=by)
    kafka, other = config.kafka, {"exfm": "kafka", "kafka": "exfm"}[by]
    for name in (by, other):
        topics = {
            kind: topic.model_copy(update={"topic": f"{topic.topic}-{name}"})
            for kind, topic in (("impressions", kafka.impressions), ("feedback", kafka.feedback))
        }
        keyed = config.model_copy(update={"kafka": kafka.model_copy(update=topics)})
        make_inputs(keyed)
        partition = Partitioner(name, 2)(pa.array(range(400))).tolist()
        shown = {"event_time_ms": DAY_MS, "vertical": "feed", "user_id": 1, "ad_id": 1, "bid": 0.5, "interest_0": 1}
        kinds = (
            (topics["impressions"].topic, shown),
            (topics["feedback"].topic, {"event_time_ms": DAY_MS, "task": "ctr"}),
        )
        messages = [
            (topic, partition[n], json.dumps({"impression_id": n} | row).encode())
            for topic, row in kinds
            for n in range(400)
        ]
        send(broker.bootstrap_servers, messages)
        report = check_config(keyed)
        assert ("rows.elsewhere" in {finding.id for finding in report.findings}) == (name != by)
        assert (f"set settlement.partitioner to {other}" in said(report)) == (name != by)


def test_clicks_later_than_their_window_stop_a_run(broker):
    report = check_config(fed_by_hand(broker, delay_s=7200))
    assert "100 % of the ctr feedback (40 of 40) comes later than its window of 3,600 s" in said(report)
    assert report.stops


def test_a_topic_read_with_another_codec_is_named(broker):
    config = fed_by_hand(broker)
    wrong = config.kafka.impressions.model_copy(update={"codec": "arrow"})
    config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"impressions": wrong})})
    assert "set kafka.impressions.codec to json" in said(check_config(config))


def test_other_partition_counts_absent_topics_and_an_absent_broker_are_named(broker):
    config = small(broker.bootstrap_servers, source=None)
    assert f"no topic `{config.kafka.impressions.topic}`" in said(check_config(config))
    ensure_topics(config.kafka, {config.kafka.impressions.topic: 3, config.kafka.feedback.topic: 2})
    assert "has 3 partitions, and 2 would be read" in said(check_config(config))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = small(f"127.0.0.1:{unused.getsockname()[1]}", source=None, kafka__connect_timeout_s=1)
        report = check_config(away)
    assert "no Kafka broker answers" in said(report)
    assert report.findings[0].severity is Severity.STOP


def test_tombstones_and_a_producer_in_microseconds_are_named_with_their_partition(broker):
    config = fed_by_hand(broker)
    topic = config.kafka.impressions.topic
    row = {"impression_id": 1000, "event_time_ms": DAY_MS * 1000, "vertical": "feed", "user_id": 1, "ad_id": 1}
    wrong = json.dumps(row | {"bid": 0.5, "interest_0": 1}).encode()
    send(broker.bootstrap_servers, [(topic, 1, wrong)] * 200 + [(topic, 0, None)] * 200)
    report = check_config(config)
    assert "note rows: 200 messages have no value (tombstones)" in said(report)
    assert "(200 of 600) would become dead letters: bad_event_time" in said(report)
    assert f"{topic}/1 offset 200: `event_time_ms` is {DAY_MS}000; milliseconds since 1970 needed: micro" in said(
        report
    )


def test_clicks_before_their_impression_are_named_with_the_tolerance_that_takes_them(broker):
    assert "settlement.early_ms: 1000 takes 99 % of it" in said(check_config(fed_by_hand(broker, delay_s=-1)))
    taken = check_config(fed_by_hand(broker, delay_s=-1, settlement__early_ms=1000))
    assert "early_ms" not in said(taken)


def wrapped(config, *, id_in_key: bool):
    """Topics of 100 impressions and 10 clicks, each in an envelope of Kafka Connect."""
    make_inputs(config)
    kinds = {
        config.kafka.impressions.topic: {"vertical": "feed", "user_id": 1, "ad_id": 2, "bid": 0.5, "interest_0": 1}
    }
    kinds[config.kafka.feedback.topic] = {"task": "ctr"}
    producer = KafkaProducer(bootstrap_servers=config.kafka.bootstrap_servers)
    for (topic, columns), step in zip(kinds.items(), (1, 10), strict=True):
        for n in range(0, 100, step):
            row = columns | {"event_time_ms": DAY_MS + n * 1000}
            row |= {} if id_in_key else {"impression_id": n}
            value = json.dumps({"schema": {"type": "struct"}, "payload": row}).encode()
            producer.send(topic, value, str(n).encode() if id_in_key else None, partition=n % 2)
    producer.flush()
    producer.close()


def with_settings(config, **changes):
    kafka = config.kafka
    topics = {
        name: type(topic).model_validate(topic.model_dump() | changes)
        for name, topic in (("impressions", kafka.impressions), ("feedback", kafka.feedback))
    }
    return config.model_copy(update={"kafka": kafka.model_copy(update=topics)})


@pytest.mark.parametrize("codec", ["json", "arrow", {"unwrap": "debezium"}])
def test_an_envelope_and_ids_in_keys_are_named_with_their_settings_until_nothing_is_lost(broker, codec):
    config = small(broker.bootstrap_servers, source=None)
    wrapped(config, id_in_key=True)
    first = said(check_config(with_settings(config, codec=codec)))
    for topic in ("impressions", "feedback"):
        assert f"stop kafka.{topic}.codec: messages of topic" in first
        assert f"are in an envelope of connect; set kafka.{topic}.codec to {{unwrap: connect}}" in first
    then = said(check_config(with_settings(config, codec={"unwrap": "connect"})))
    for topic, distinct in (("impressions", 100), ("feedback", 10)):
        assert f"have no `impression_id`, and keys ({distinct} different ones of {distinct})" in then
        assert f"set kafka.{topic}.impression_id to {{from: key}}" in then
    report = check_config(with_settings(config, codec={"unwrap": "connect"}, impression_id={"from": "key"}))
    assert not report.stops, said(report)
    assert (report.profile.looked_at, report.profile.labels["ctr"].positives) == (100, 10)


def test_rows_in_no_envelope_are_named_where_one_is_to_be_taken_off(broker):
    config = with_settings(fed_by_hand(broker), codec={"unwrap": "connect"})
    assert "are in no envelope of connect; set kafka.impressions.codec to json" in said(check_config(config))


def test_texts_of_a_zone_are_read_in_it_and_the_hour_that_clocks_had_twice_is_named(broker):
    config = small(
        broker.bootstrap_servers, source=None, kafka__impressions__codec="json", rows__event_time_zone="Europe/Berlin"
    )
    make_inputs(config)
    row = {"vertical": "feed", "user_id": 1, "ad_id": 1, "bid": 0.5, "interest_0": 1}
    rows = [{"impression_id": n, "event_time_ms": f"2024-10-27 02:{n // 60:02}:{n % 60:02}"} | row for n in range(400)]
    topic = config.kafka.impressions.topic
    send(broker.bootstrap_servers, [(topic, n % 2, json.dumps(row).encode()) for n, row in enumerate(rows)])
    report = check_config(config)
    assert report.profile.time.lowest_ms == 1_729_987_200_000  # midnight in UTC
    assert "without an offset, 400 times lie in an hour that clocks in Europe/Berlin had twice" in said(report)
