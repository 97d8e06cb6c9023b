"""Addresses of a broker as people write them, and listeners that send clients nowhere, on a real broker."""

from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from streaming.errors import BadInput, BrokerAway
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics, require_topics
from streaming.kafka.writer import TopicWriter
from streaming.position import Partition
from tests.support.pipelines.odd_listeners import UNKNOWN, odd_listeners

pytestmark = pytest.mark.check


@pytest.fixture(scope="module")
def listeners(tmp_path_factory):
    with odd_listeners(tmp_path_factory.mktemp("odd")) as found:
        ensure_topics(KafkaSettings(bootstrap_servers=found.plain), {"ads": 1})
        yield found


def settings(servers, **others):
    return KafkaSettings(bootstrap_servers=servers, connect_timeout_s=5, request_timeout_s=5, **others)


@pytest.mark.parametrize("written", ["{six}", "PLAINTEXT://{six}", "PLAINTEXT://{plain}", "plaintext://{plain},{six}"])
def test_an_address_of_ipv6_or_with_its_protocol_is_written_to_and_read_from(listeners, written):
    at = settings(written.format(**listeners._asdict()))
    with TopicWriter(at, "ads") as writer:
        writer.write(0, [b"here"])
    reader = TopicReader(at, [Partition("ads", 0)])
    reader.open()
    give_up = time.monotonic() + 20
    while not (messages := reader.next_batch(0.5)):
        assert time.monotonic() < give_up
    reader.close()
    assert messages[0].value == b"here"


@pytest.mark.parametrize(
    "use",
    [
        lambda at: require_topics(at, ["ads"]),
        lambda at: TopicReader(at, [Partition("ads", 0)]).open(),
        lambda at: TopicWriter(at, "ads"),
    ],
)
def test_a_listener_that_sends_clients_to_a_name_that_does_not_resolve_is_named(listeners, use):
    began = time.monotonic()
    with pytest.raises(BrokerAway) as raised:
        use(settings(listeners.nowhere))
    said = str(raised.value)
    assert f"answers at {listeners.nowhere} and sends its clients on to {UNKNOWN}" in said
    assert "advertised.listeners" in said
    assert "\n" not in said
    assert time.monotonic() - began < 15


def test_an_address_whose_own_name_does_not_resolve_is_said_so():
    with pytest.raises(BrokerAway, match=r"no Kafka broker answers at nowhere.invalid:9092 \(nowhere.invalid: no such"):
        require_topics(KafkaSettings(bootstrap_servers="nowhere.invalid:9092", connect_timeout_s=0.1), ["ads"])


@pytest.mark.parametrize(
    ("servers", "security", "said"),
    [
        ("::1:9092", {}, r"`::1:9092` is not HOST:PORT, nor \[IPV6\]:PORT such as \[::1\]:9092"),
        ("kafka", {}, "`kafka` is not HOST:PORT"),
        ("http://kafka:9092", {}, "in front of it may stand PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL and ://"),
        ("kafka:99999", {}, "has port 99999, and ports are 1 to 65535"),
        ("SSL://kafka:9092", {}, "names SSL:// and security.security_protocol is PLAINTEXT; leave SSL:// out, or set"),
        ("PLAINTEXT://kafka:1", {"security_protocol": "SSL"}, "security.security_protocol is SSL"),
    ],
)
def test_what_is_no_address_is_refused_with_what_is(servers, security, said):
    with pytest.raises(ValidationError, match=said):
        KafkaSettings(bootstrap_servers=servers, security=security)
    if not security:
        with pytest.raises(BadInput, match="--bootstrap-servers"):
            KafkaSettings.of_servers(servers)
