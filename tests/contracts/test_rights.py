"""A Kafka with access control: a right that is missing is named with the command that grants it."""

from __future__ import annotations

import time

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from streaming.errors import BadInput
from streaming.kafka.identity import SourceWatch
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics, topic_config
from streaming.kafka.writer import TopicWriter
from streaming.position import Partition, SourcePosition
from tests.support.pipelines.secured_broker import PASSWORD, USER, secured_broker
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def secured():
    return secured_broker()


@pytest.fixture
def settings(secured, monkeypatch):
    monkeypatch.setenv("EXFM_TEST_PASSWORD", PASSWORD)
    return KafkaSettings(bootstrap_servers=secured.secured, security=secured.security(), connect_timeout_s=20)


@pytest.fixture
def topic(secured, topic_name):
    """A topic with one message."""
    name = topic_name("guarded")
    plain = KafkaSettings(bootstrap_servers=secured.plain)
    ensure_topics(plain, {name: 1})
    with TopicWriter(plain, name) as writer:
        writer.write(0, [b"a"])
    return name


@pytest.fixture
def deny(secured):
    """Takes a right from the user, for as long as the test runs."""
    admin, denied = KafkaAdminClient(bootstrap_servers=secured.plain), []

    def take(kind: ResourceType, name: str, operation: ACLOperation) -> None:
        denied.append(ACL(f"User:{USER}", "*", operation, ACLPermissionType.DENY, ResourcePattern(kind, name)))
        admin.create_acls(denied[-1:])

    yield take
    for acl in denied:
        admin.delete_acls(
            [ACLFilter(acl.principal, acl.host, acl.operation, acl.permission_type, acl.resource_pattern)]
        )
    admin.close()


def refusal(action) -> str:
    """What `action` is refused with; a right that was taken is gone within moments."""

    def refused() -> str:
        try:
            action()
        except BadInput as error:
            return str(error)
        return ""

    words: str = eventually(refused, lambda: "it was allowed", look_s=0.1)
    return words


def test_settings_of_a_topic_that_may_not_be_seen(settings, topic, deny):
    deny(ResourceType.TOPIC, topic, ACLOperation.DESCRIBE_CONFIGS)
    said = refusal(lambda: topic_config(settings, topic))
    assert f"`{USER}` has no right to DescribeConfigs topic `{topic}`" in said
    assert f"--add --allow-principal User:{USER} --operation DescribeConfigs --topic {topic}" in said


def test_a_topic_that_may_not_be_seen(settings, topic, deny):
    deny(ResourceType.TOPIC, topic, ACLOperation.DESCRIBE)
    assert f"--operation Describe --topic {topic}" in refusal(lambda: SourceWatch(settings, {topic: 1}))
    assert f"--operation Describe --topic {topic}" in refusal(lambda: TopicWriter(settings, topic))


def test_a_topic_that_may_not_be_read(settings, topic, deny):
    deny(ResourceType.TOPIC, topic, ACLOperation.READ)

    def read() -> None:
        with TopicReader(settings, [Partition(topic, 0)]) as reader:
            reader.open({})
            reader.next_batch(0.5)

    assert f"--operation Read --topic {topic}" in refusal(read)


def test_a_topic_that_may_not_be_written(settings, topic, deny):
    deny(ResourceType.TOPIC, topic, ACLOperation.WRITE)

    def write() -> None:
        with TopicWriter(settings, topic) as writer:
            writer.write(0, [b"b"])
            writer.flush()

    assert f"--operation Write --topic {topic}" in refusal(write)


def test_positions_that_may_not_be_shown_stop_nothing_that_is_read(settings, topic, deny, caplog):
    deny(ResourceType.GROUP, topic, ACLOperation.READ)
    partition = Partition(topic, 0)
    with TopicReader(settings, [partition], group=topic) as reader:
        reader.open({})
        found, deadline = [], time.monotonic() + PATIENCE_S
        while f"--operation Read --group {topic}" not in caplog.text and time.monotonic() < deadline:
            reader.commit_for_display({partition: SourcePosition(1)})
            found += reader.next_batch(0.2) or []
        assert [message.value for message in found] == [b"a"]
    assert f"`{USER}` has no right to Read group `{topic}`" in caplog.text
