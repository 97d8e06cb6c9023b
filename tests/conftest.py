"""A real broker for the tests that ask for one."""

import itertools

import pytest

from streaming.broker import Broker
from streaming.kafka_settings import KafkaSettings

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A running embedded broker, one for all tests of the session (`Running`: bootstrap_servers, pid, port)."""
    embedded = Broker(tmp_path_factory.mktemp("broker"), heap_mb=256)
    yield embedded.start(wait_s=120)
    embedded.stop()


@pytest.fixture
def kafka(broker):
    """Settings of the running broker, quick to give up."""
    return KafkaSettings(bootstrap_servers=broker.bootstrap_servers, connect_timeout_s=20, request_timeout_s=20)


@pytest.fixture
def topic_name():
    """Names that no other test uses."""
    return lambda stem="topic": f"{stem}-{next(_numbers)}"
