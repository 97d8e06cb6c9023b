"""A broker is reached with its address and its security, or it is named with what to do."""

import logging
import socket

import pytest

from streaming.errors import BadInput, BrokerAway, StreamingError
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import require_topics
from streaming.ports import free_port

pytestmark = pytest.mark.broker


def test_no_broker_is_named_with_what_to_do():
    nobody = f"127.0.0.1:{free_port()}"
    settings = KafkaSettings(bootstrap_servers=nobody, connect_timeout_s=0.3)
    with pytest.raises(
        BrokerAway,
        match=rf"no Kafka broker answers at {nobody} \(tried 0\.3 s\); start it, set `kafka.bootstrap_servers`",
    ):
        require_topics(settings, ["any"])


def test_a_port_that_is_not_kafka_is_told(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{other.getsockname()[1]}", connect_timeout_s=1)
        with pytest.raises(StreamingError, match="no Kafka client gets through"):
            require_topics(settings, ["any"])


def test_no_address_at_all_is_the_callers_mistake():
    with pytest.raises(BadInput, match="exfm broker start"):
        require_topics(KafkaSettings(), ["any"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"security": {"ssl_cafille": "x"}}, "unknown: ssl_cafille; known: .*ssl_cafile"),
        ({"bootstrap_servers": "localhost"}, "`localhost` is not HOST:PORT"),
        ({"servers": "x:1"}, "Extra inputs"),
    ],
)
def test_settings_refuse_what_they_do_not_know(changes, message):
    with pytest.raises(ValueError, match=message):
        KafkaSettings(**changes)


def test_the_client_knows_every_security_setting_that_we_let_through():
    from kafka import KafkaConsumer

    from streaming.kafka.settings import SECURITY_KEYS
    from streaming.kafka.tokens import OAUTH_TOKEN

    assert set(KafkaConsumer.DEFAULT_CONFIG) >= SECURITY_KEYS - {OAUTH_TOKEN} | {"sasl_oauth_token_provider"}


@pytest.mark.parametrize(
    "security",
    [
        {"security_protocol": "SSL"},
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "me",
            "sasl_plain_password": "x",
        },
    ],
)
def test_security_that_the_broker_does_not_speak_is_told(kafka, security):
    settings = kafka.model_copy(update={"security": security, "connect_timeout_s": 2})
    with pytest.raises(StreamingError, match="what it asks for"):
        require_topics(settings, ["any"])


@pytest.mark.parametrize("arguments", [(), ("no error",), ({"a": 1},)])
def test_the_client_may_log_of_a_connection_whatever_it_likes(arguments):
    logging.getLogger("kafka.net.connection").error("closed" + " %s" * len(arguments), *arguments)
