"""Topics that forget: refused at start where that can be known, and never a silent gap."""

from __future__ import annotations

import json

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import InvalidTimestampError

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.loop.preflight import prepare
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from pipelines.live.workers.worker import Orders
from streaming.errors import BadInput, DataLost
from streaming.intake.intake import InputTopic, Intake
from streaming.kafka.reader import TopicReader
from streaming.kafka.topics import check_retention, end_offsets, ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.position import Partition
from streaming.schema import RowSchema, Task
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.topics import by_hand, ipc, send

pytestmark = pytest.mark.broker

SCHEMA = RowSchema(columns=(), tasks=(Task(name="ctr", window_s=60),))
DAY_S = 86_400


@pytest.fixture
def admin(kafka):
    client = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    yield client
    client.close()


def configure(admin, topic: str, **values: object) -> None:
    settings = {name.replace("_", "."): str(value) for name, value in values.items()}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=settings)])


# --- what is refused at start --------------------------------------------------------------------------------------


def test_a_retention_shorter_than_window_and_downtime_is_refused_with_both_numbers(kafka, admin, topic_name):
    topic = topic_name("ads")
    ensure_topics(kafka, {topic: 1}, retention_ms=DAY_S * 1000)
    assert check_retention(kafka, [topic], needed_s=DAY_S) == []
    with pytest.raises(BadInput, match=rf"`{topic}` .* 86,400 s \(retention\.ms\), and 86,401 s are needed.* 86401000"):
        check_retention(kafka, [topic], needed_s=DAY_S + 1)
    configure(admin, topic, retention_ms=-1)
    assert check_retention(kafka, [topic], needed_s=1e12) == []


def test_a_limit_of_bytes_is_a_warning_and_a_compacted_topic_a_mistake(kafka, admin, topic_name):
    topic = topic_name("ads")
    ensure_topics(kafka, {topic: 1})
    configure(admin, topic, retention_ms=-1, retention_bytes=1_000_000)
    (warning,) = check_retention(kafka, [topic], needed_s=60)
    assert "1,000,000 bytes of each partition" in warning
    configure(admin, topic, retention_ms=-1, cleanup_policy="compact")
    with pytest.raises(BadInput, match="is compacted"):
        check_retention(kafka, [topic], needed_s=60)


def test_a_topic_that_believes_its_producers_clocks_is_a_warning_where_a_skew_is_configured(kafka, admin, topic_name):
    topic = topic_name("ads")
    ensure_topics(kafka, {topic: 1})
    (warning,) = check_retention(kafka, [topic], needed_s=60, max_future_skew_s=300)
    assert "set message.timestamp.after.max.ms to 300000" in warning
    configure(admin, topic, retention_ms=-1, message_timestamp_after_max_ms=300_000)
    assert check_retention(kafka, [topic], needed_s=60, max_future_skew_s=300) == []
    # With that, a producer whose clock is a day ahead is told so by the broker, and nothing of it enters.
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    day_ahead = producer.send(topic, b"x", timestamp_ms=int(2e12) + DAY_S * 10**6)
    with pytest.raises(InvalidTimestampError):
        day_ahead.get(timeout=20)
    producer.close()
    assert end_offsets(kafka, [Partition(topic, 0)]) == {Partition(topic, 0): 0}


def test_a_run_on_somebody_elses_topics_asks(broker, tmp_path):
    config = small(broker.bootstrap_servers, source=None, kafka__downtime_s=7200)
    topics = {t.topic: t.partitions for t in (config.kafka.impressions, config.kafka.feedback)}
    ensure_topics(config.kafka, topics, retention_ms=21_600_000 + 7_200_000 - 1)
    with pytest.raises(BadInput, match=r"keeps its messages for 28,800 s .* 28,800 s are needed"):
        run(config, RunDir(tmp_path / "run"), local=True)


# --- gaps ----------------------------------------------------------------------------------------------------------


class Topics:
    """Two topics of one partition, rows a second apart, and an intake over them."""

    def __init__(self, kafka, topic_name) -> None:
        self.kafka = kafka
        self.ads, self.clicks = (Partition(topic_name(kind), 0) for kind in ("ads", "clicks"))
        ensure_topics(kafka, {self.ads.topic: 1, self.clicks.topic: 1})
        shown = [{"impression_id": n, "event_time_ms": 1000 * n, "vertical": "a"} for n in range(10)]
        clicked = [{"impression_id": n, "event_time_ms": 100_000 + n, "task": "ctr"} for n in range(5)]
        for partition, rows in ((self.ads, shown), (self.clicks, clicked)):
            with TopicWriter(kafka, partition.topic) as writer:
                writer.write(0, [json.dumps(row).encode() for row in rows])

    def open(self, position=None) -> Intake:
        kinds = [InputTopic(self.ads.topic, 1, "json", "impression")]
        kinds += [InputTopic(self.clicks.topic, 1, "json", "feedback")]
        source = TopicReader(self.kafka, [self.ads, self.clicks])
        intake = Intake(SCHEMA, source, kinds, buffer_rows=64, idle_s=None)
        intake.open(position)
        return intake

    def delete_before(self, partition: Partition, offset: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers)
        admin.delete_records({TopicPartition(*partition): offset})
        admin.close()

    def gap(self, partition: Partition, begin: int, lost: int) -> str:
        return rf"`{partition.topic}`, partition 0: offset \d+ .* before {begin}: {lost} messages are lost"


@pytest.fixture
def topics(kafka, topic_name):
    return Topics(kafka, topic_name)


def pop(intake: Intake, reads: int = 10) -> list[int]:
    chunks = [intake.next_batch(0.2) for _ in range(reads)]
    return [n for chunk in chunks if chunk is not None for n in chunk.impressions["impression_id"].to_pylist()]


def test_a_gap_made_before_anything_was_popped_is_an_error_after_a_restart(topics):
    intake = topics.open()
    position = intake.position()
    intake.close()
    topics.delete_before(topics.ads, 3)
    with pytest.raises(DataLost, match=topics.gap(topics.ads, 3, 3)):
        topics.open(position)


def test_a_gap_in_a_partition_of_which_nothing_was_ever_popped_is_an_error(topics):
    intake = topics.open()
    assert pop(intake) == list(range(9))  # clicks are a hundred seconds on, and none of them was popped
    position = intake.position()
    intake.close()
    topics.delete_before(topics.clicks, 1)
    with pytest.raises(DataLost, match=topics.gap(topics.clicks, 1, 1)):
        topics.open(position)


def test_a_gap_made_while_nobody_reads_is_an_error(topics):
    intake = topics.open()
    assert pop(intake) == list(range(9))
    position = intake.position()
    intake.close()
    topics.delete_before(topics.ads, 10)
    with pytest.raises(DataLost, match=topics.gap(topics.ads, 10, 1)):
        topics.open(position)


def test_a_gap_made_while_reading_is_an_error(topics):
    intake = topics.open()
    topics.delete_before(topics.ads, 4)
    with pytest.raises(DataLost, match=topics.gap(topics.ads, 4, 4)):
        pop(intake)
    intake.close()


def test_augmentation_remembers_where_the_topics_began_before_it_has_read_a_row(broker, tmp_path):
    config, run_dir = small(broker.bootstrap_servers, source=None), RunDir(tmp_path)
    shown, _ = by_hand(config, 300)
    inputs = (config.kafka.impressions, config.kafka.feedback)
    ensure_topics(config.kafka, {t.topic: t.partitions for t in inputs} | dict.fromkeys(outputs(config), 1))
    ads = config.kafka.impressions.topic
    messages = [(ads, n % 2, ipc(shown[n : n + 50], config.rows.impression)) for n in range(0, 300, 50)]
    send(broker.bootstrap_servers, messages)
    prepare(config, run_dir)
    first = AugmentationWorker(config, run_dir, until_end=False)
    first.open()  # and nothing more: it is killed here
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.delete_records({TopicPartition(ads, 0): 2})
    admin.close()
    with pytest.raises(DataLost, match=rf"`{ads}`, partition 0: offset 0 .* 2 messages are lost"):
        AugmentationWorker(config, run_dir, until_end=False).open()
    with pytest.raises(DataLost):  # the one that runs meets the gap as well
        first.advance(20.0, Orders())
    first.close()


def outputs(config) -> list[str]:
    return [config.kafka.examples.topic, config.kafka.dead_letters.topic]
