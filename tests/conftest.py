"""What tests ask for from outside: a real broker, and real streams where somebody brought them."""

import itertools
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from streaming.broker.broker import LocalBroker
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics

_numbers = itertools.count()

# How long an example takes, to draw and to try, depends on who has the cores.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts, and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A running embedded broker, one for all tests of the session (`Running`: bootstrap_servers, pid, port)."""
    embedded = LocalBroker(tmp_path_factory.mktemp("broker"), heap_mb=256)
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


@pytest.fixture
def topic(kafka, topic_name):
    """A new topic of two partitions."""
    name = topic_name()
    ensure_topics(kafka, {name: 2})
    return name


@pytest.fixture
def real_stream():
    """The path of a real stream by its file's name, where somebody brought it."""

    def path_of(name: str) -> Path:
        folder = os.environ.get("EXFM_DATA", Path(__file__).parents[2] / "shared" / "data")
        path = Path(folder) / name
        if not path.exists():
            pytest.skip(f"needs {name} in the folder that EXFM_DATA names, or in ../shared/data; it is in neither")
        return path

    return path_of
