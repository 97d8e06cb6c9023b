"""The topics that a run reads stay those that it began with: their cluster, their ids, their partitions."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from kafka import KafkaAdminClient

from pipelines.cli.tools.dead_letters import DeadLetters
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.loop.preflight import prepare
from pipelines.live.loop.provision import make_topics
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from pipelines.live.workers.worker import Orders
from streaming.errors import BadInput, DataLost, StreamingError
from streaming.kafka.identity import SourceWatch
from streaming.kafka.topics import ensure_topics, require_topics
from streaming.lake.side_tables import DEAD_LETTERS, SideTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from streaming.position import Partition
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.topics import by_hand, grow, ipc, make_inputs, send
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker


@pytest.fixture
def admin(kafka):
    client = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def topic(kafka, topic_name):
    """A new topic of two partitions."""
    name = topic_name()
    ensure_topics(kafka, {name: 2})
    return name


def gone(admin, topic) -> None:
    """Have the topic deleted, and wait until the broker says so."""
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics(), look_s=0.05)


def stored(kafka, topic) -> dict:
    return SourceWatch(kafka, {topic: 2}).state()


def test_the_same_topic_is_found_again(kafka, topic):
    SourceWatch(kafka, {topic: 2}).open(stored(kafka, topic))
    SourceWatch(kafka, {topic: 2}).open(None)


@pytest.mark.parametrize(
    ("configured", "words"),
    [(1, "has 2 partitions, and 1 are configured, so that 1 of them would not be read"), (3, "has 2 .* 3 are conf")],
)
def test_other_numbers_of_partitions_than_configured_are_refused(kafka, topic, configured, words):
    with pytest.raises(BadInput, match=words):
        SourceWatch(kafka, {topic: configured})


def test_another_cluster_with_the_same_topics_is_refused(kafka, topic):
    with pytest.raises(BadInput, match="and this run reads cluster elsewhere"):
        SourceWatch(kafka, {topic: 2}).open(stored(kafka, topic) | {"cluster_id": "elsewhere"})


def test_another_cluster_without_the_topics_is_named_before_a_topic_would_be_made_there(kafka, monkeypatch, tmp_path):
    before = {"cluster_id": "elsewhere", "topics": {"not-here": ["t-1", 2]}}
    monkeypatch.setattr("pipelines.live.loop.provision.committed_meta", lambda run_dir: {"sources": before})
    servers = str(kafka.bootstrap_servers)
    for source in ({"source": None}, {}):  # others' topics, and those of a source of ours
        config = small(servers, kafka__impressions__topic="not-here", **source)
        with pytest.raises(BadInput, match="and this run reads cluster elsewhere"):
            make_topics(config, RunDir(tmp_path), servers, until_end=False, say=print)
        with pytest.raises(BadInput, match="no topic `not-here`"):
            require_topics(kafka, ["not-here"])


def test_a_topic_created_anew_is_found_out_at_the_next_start_and_within_a_minute(kafka, topic, admin):
    now = [0.0]
    before, running = stored(kafka, topic), SourceWatch(kafka, {topic: 2}, clock=lambda: now[0])
    gone(admin, topic)
    ensure_topics(kafka, {topic: 2})
    with pytest.raises(DataLost, match=f"`{topic}` was deleted and created anew"):
        SourceWatch(kafka, {topic: 2}).open(before)
    running.look()
    now[0] += 61
    with pytest.raises(DataLost, match=f"`{topic}` was deleted and created anew"):
        running.look()


def test_partitions_that_were_added_are_found_out_at_the_next_start_and_within_a_minute(kafka, topic, admin):
    now = [0.0]
    before, running = stored(kafka, topic), SourceWatch(kafka, {topic: 2}, clock=lambda: now[0])
    grow(admin, {topic: 4})
    now[0] += 61
    with pytest.raises(BadInput, match=r"has 4 partitions, and had 2 when this run began: .* resumed with --evolve"):
        running.look()
    with pytest.raises(BadInput, match=r"has 4 partitions, and 2 are configured.* resumed with --evolve"):
        SourceWatch(kafka, {topic: 2})
    assert SourceWatch(kafka, {topic: 4}).open(before) == [Partition(topic, 2), Partition(topic, 3)]


def test_a_topic_with_fewer_partitions_than_it_had_is_refused(kafka, topic):
    had = {"cluster_id": None, "topics": {topic: [None, 5]}}
    with pytest.raises(BadInput, match=r"has 2 partitions, and had 5 when this run began: .* start a new run"):
        SourceWatch(kafka, {topic: 2}).open(had)


def test_a_topic_that_is_gone_is_looked_for_twice(kafka, topic, admin):
    now = [0.0]
    running = SourceWatch(kafka, {topic: 2}, clock=lambda: now[0])
    gone(admin, topic)
    now[0] += 61
    running.look()
    now[0] += 6
    with pytest.raises(DataLost, match=f"`{topic}` is no longer at"):
        running.look()


@pytest.mark.parametrize("error", [StreamingError("it answered, and refused"), BadInput("no right to Describe")])
def test_a_broker_that_does_not_say_which_topics_it_has_proves_nothing(kafka, topic, monkeypatch, error):
    now = [0.0]
    running = SourceWatch(kafka, {topic: 2}, clock=lambda: now[0])

    def refuse(*_):
        raise error

    with monkeypatch.context() as silent:
        silent.setattr("streaming.kafka.identity.cluster_and_topics", refuse)
        for _ in range(3):
            now[0] += 61
            running.look()
    now[0] += 61
    running.look()


def test_a_topic_without_a_leader_is_not_one_that_is_gone(kafka, topic, monkeypatch):
    now = [0.0]
    running = SourceWatch(kafka, {topic: 2}, clock=lambda: now[0])

    class Electing:
        def describe_cluster(self):
            return {"cluster_id": None}

        def describe_topics(self, names):
            return [{"name": name, "error_code": 5, "topic_id": None, "partitions": []} for name in names]

    monkeypatch.setattr("streaming.kafka.topics._admin", lambda settings: nullcontext(Electing()))
    for _ in range(3):
        now[0] += 61
        running.look()


def test_a_run_on_topics_with_more_partitions_than_configured_is_refused_before_it_reads(broker, tmp_path):
    config = small(broker.bootstrap_servers, source=None)
    ensure_topics(config.kafka, {t.topic: 4 for t in (config.kafka.impressions, config.kafka.feedback)})
    with pytest.raises(BadInput, match=r"has 4 partitions, and 2 are configured"):
        run(config, RunDir(tmp_path / "run"), local=True)
    assert not (tmp_path / "run").exists()


def test_augmentation_reads_no_other_topic_than_that_it_began_with(broker, tmp_path, admin):
    config, run_dir = small(broker.bootstrap_servers, source=None), RunDir(tmp_path)
    make_inputs(config)
    kafka = config.kafka
    ensure_topics(kafka, {kafka.examples.topic: 1, kafka.dead_letters.topic: 1})
    shown, _ = by_hand(config, 300)
    prepare(config, run_dir)
    first = AugmentationWorker(config, run_dir, until_end=False)
    first.open()
    first.advance(1.0, Orders())
    first.close()
    gone(admin, kafka.impressions.topic)
    make_inputs(config)
    messages = [(kafka.impressions.topic, n % 2, ipc([row], config.rows.impression)) for n, row in enumerate(shown)]
    send(broker.bootstrap_servers, messages)
    again = AugmentationWorker(config, run_dir, until_end=False)
    with pytest.raises(DataLost, match="was deleted and created anew"):
        again.open()
    again.abandon()
    SideTable(run_dir.side_tables, DEAD_LETTERS, DEAD_LETTER_SCHEMA).append(
        letters_to_batch([DeadLetter("impression", "null:age", kafka.impressions.topic, 0, 0, 0, "", b"{}")]), number=9
    )
    with pytest.raises(DataLost, match="was deleted and created anew"):
        DeadLetters(tmp_path).replay(None, dry_run=False, say=print)
    assert not (run_dir.side_tables / "replayed").exists()
