"""Fixtures from outside: the broker of a test run, and real streams where somebody brought them."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from streaming.broker.broker import LocalBroker
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics
from streaming.store.s3 import client_of
from tests.support.moto_server import MotoServer
from tests.support.places import NUMBERS, ROOT, TEST_RUN, run_folder
from tests.support.s3_server import S3Server

# How long an example takes, to draw and to try, depends on who has the cores.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts, and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


WATCH = """
import os, shutil, sys, time
import psutil
owner, folder = psutil.Process(int(sys.argv[1])), sys.argv[2]
while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
    time.sleep(0.5)
from pathlib import Path
from streaming.broker.broker import LocalBroker
for state in Path(folder).glob("broker*/broker.json"):
    LocalBroker(state.parent).stop(wait_s=0)
shutil.rmtree(folder, ignore_errors=True)
"""


def pytest_configure():
    """Make the folder that all processes of a test run share, and a process that ends its brokers and removes it behind
    the process that pytest was called in, which may be killed."""
    if TEST_RUN not in os.environ:
        os.environ[TEST_RUN] = tempfile.mkdtemp(prefix="exfm-tests-")
        words = [sys.executable, "-c", WATCH, str(os.getpid()), os.environ[TEST_RUN]]
        detached = ["sh", "-c", 'exec >/dev/null 2>&1 </dev/null; "$@" &', "sh", *words]  # nobody's child
        subprocess.run(detached, check=True, start_new_session=True, cwd=ROOT)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests without the garbage collector, and keep what was imported out of its later passes: every process of
    a test run imports everything, which frees nothing, and spent a tenth to a quarter of that time looking."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def broker():
    """A running embedded broker, one for all processes of a test run (`RunningBroker`: bootstrap_servers, pid, port).

    Topics' names keep tests apart. Who kills or configures a broker starts one of its own."""
    return LocalBroker(run_folder() / "broker", heap_mb=512).start(wait_s=120)


@pytest.fixture(scope="session")
def s3_server():
    """A server of S3's protocol, one for all tests of a process (`S3Server`), where boto3 and delta-rs find it; what
    they put lies in `s3://bucket`."""
    before = dict(os.environ)
    with S3Server() as server:
        os.environ.update(server.environment)
        yield server
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def _moto():
    with MotoServer() as server:
        yield server


@pytest.fixture
def moto_server(_moto, monkeypatch):
    """moto's server in the place of `s3_server`, for a test."""
    for name, value in _moto.environment.items():
        monkeypatch.setenv(name, value)
    client_of.cache_clear()
    yield _moto
    client_of.cache_clear()


@pytest.fixture(scope="session")
def _own_broker():
    own = LocalBroker(run_folder() / f"broker-{os.getpid()}", heap_mb=256)
    yield own
    own.stop()


@pytest.fixture
def own_broker(_own_broker):
    """A `LocalBroker`, running, of this process: a test may stop it, kill it and lose its files."""
    _own_broker.start(wait_s=120)
    return _own_broker


@pytest.fixture
def own_kafka(own_broker):
    """Settings of a broker that tests stop."""
    servers = own_broker.start().bootstrap_servers
    return KafkaSettings(bootstrap_servers=servers, connect_timeout_s=20, request_timeout_s=20)


@pytest.fixture
def kafka(broker):
    """Settings of the running broker, quick to give up."""
    return KafkaSettings(bootstrap_servers=broker.bootstrap_servers, connect_timeout_s=20, request_timeout_s=20)


@pytest.fixture
def topic_name():
    """Names that no other test uses."""
    return lambda stem="topic": f"{stem}-{next(NUMBERS)}"


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
