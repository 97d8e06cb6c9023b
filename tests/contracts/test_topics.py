"""Topics are made once, counted, and named where they are absent."""

import pytest

from streaming.errors import BadInput
from streaming.kafka.reader import TopicReader
from streaming.kafka.topics import ensure_topics, require_topics, topic_config
from streaming.kafka.writer import TopicWriter
from streaming.position import Partition

pytestmark = pytest.mark.broker


def test_topics_are_made_once_and_keep_everything(kafka, topic_name):
    name = topic_name()
    assert ensure_topics(kafka, {name: 3}) == {name}
    assert ensure_topics(kafka, {name: 3}) == set()
    assert require_topics(kafka, [name]) == {name: 3}
    config = topic_config(kafka, name)
    assert (config["retention.ms"], config["max.message.bytes"]) == ("-1", str(kafka.max_message_bytes))


def test_other_numbers_of_partitions_are_the_callers_mistake(kafka, topic):
    with pytest.raises(BadInput, match="has 2 partitions, 3 are configured"):
        ensure_topics(kafka, {topic: 3})


def test_an_absent_topic_is_named_with_those_that_exist(kafka, topic):
    with pytest.raises(BadInput, match=f"no topic `nothing`.*{topic}"):
        require_topics(kafka, ["nothing", topic])
    with pytest.raises(BadInput, match="no topic `nothing`"):
        TopicWriter(kafka, "nothing")
    with pytest.raises(BadInput, match="only 0 to 1"):
        TopicReader(kafka, [Partition(topic, 2)])
