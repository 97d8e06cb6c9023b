"""Messages that a broker lost after they were read, while no process was reading: leader epochs tell a restart."""

from __future__ import annotations

import shutil

import pytest

from streaming.broker.broker import LocalBroker
from streaming.errors import DataLost
from streaming.intake.intake import LeaderEpochs
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import delete_records, ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.messages.source import EndOfStream
from streaming.position import Partition, SourcePosition

pytestmark = pytest.mark.broker

ADS = Partition("ads", 0)


def settings_of(own_broker: LocalBroker) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=own_broker.start().bootstrap_servers)


def write(settings: KafkaSettings, *values: bytes) -> None:
    with TopicWriter(settings, ADS.topic) as writer:
        writer.write(0, values)


def read_on(settings: KafkaSettings, offset: int, epochs: dict[Partition, int], count: int) -> tuple[list[bytes], int]:
    """The next messages, waited for, and the epoch of the last. With `count` 0: what comes within two seconds."""
    found, newest = [], LeaderEpochs()
    with TopicReader(settings, [ADS]) as reader:
        reader.expect(epochs)
        reader.open({ADS: SourcePosition(offset)} if offset else None)
        for _ in range(100 if count else 10):
            if count and len(found) >= count:
                break
            try:
                messages = reader.next_batch(0.2) or []
            except EndOfStream:
                break
            if messages:
                newest.read(ADS, messages)
                found += [message.value for message in messages]
    return found, newest.newest.get(ADS, -1)


def test_what_was_read_is_missed_after_a_restart_only_where_it_is_gone(own_broker):
    settings = settings_of(own_broker)
    ensure_topics(settings, {ADS.topic: 1})
    write(settings, b"0", b"1", b"2", b"3", b"4")
    values, epoch = read_on(settings, 0, {}, 5)
    assert values == [b"0", b"1", b"2", b"3", b"4"]
    assert epoch >= 0

    own_broker.stop(wait_s=0)  # with another leader epoch, nothing is lost
    settings = settings_of(own_broker)
    write(settings, b"5", b"6")
    values, later = read_on(settings, 5, {ADS: epoch}, 2)
    assert values == [b"5", b"6"]
    assert later > epoch

    delete_records(settings, {ADS: 7})  # retention has deleted all that was read
    assert read_on(settings, 7, {ADS: later}, 0)[0] == []
    write(settings, b"7")
    assert read_on(settings, 7, {ADS: later}, 1)[0] == [b"7"]

    own_broker.stop(wait_s=0)
    (partition,) = own_broker.directory.rglob("ads-0")
    for file in partition.iterdir():  # the disk forgets all messages; as another replica would that never had them
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    settings = settings_of(own_broker)
    write(settings, *(b"other %d" % n for n in range(20)))
    lost = r"lost messages that were already read: ads/0 from offset 0 on\. A leader took"
    with pytest.raises(DataLost, match=lost):
        read_on(settings, 8, {ADS: later}, 1)
    with TopicReader(settings, [ADS], ends={ADS: 8}) as reader:
        reader.expect({ADS: later})
        with pytest.raises(DataLost, match=lost):
            reader.open({ADS: SourcePosition(8)})  # at its end, so that nothing is left to read
    assert read_on(settings, 8, {}, 12)[0][0] == b"other 8"  # which is what happened before epochs were stored
