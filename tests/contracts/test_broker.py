"""The embedded broker starts, is found again, survives a kill with its data, and says what is wrong."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from streaming.broker.broker import LocalBroker
from streaming.broker.jars import fetch_jars
from streaming.errors import BadInput, DiskFull, StreamingError
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.ports import free_port
from streaming.position import Partition

pytestmark = pytest.mark.broker


@pytest.fixture
def own_broker(tmp_path):
    """A broker that one test may treat badly."""
    broker = LocalBroker(tmp_path / "broker", heap_mb=256)
    yield broker
    broker.stop()


def settings_of(running):
    return KafkaSettings(bootstrap_servers=running.bootstrap_servers)


def read_all(reader):
    found = []
    with reader:
        while not reader.at_end(reader.partitions[0]):
            found += reader.next_batch(1.0) or []
    return [message.value for message in found]


def test_a_broker_killed_with_data_comes_back_with_them_on_the_same_port(own_broker):
    first = own_broker.start(wait_s=120)
    settings = settings_of(first)
    ensure_topics(settings, {"kept": 1})
    with TopicWriter(settings, "kept") as writer:
        writer.write(0, [b"one", b"two"])
        writer.flush()
        reader = TopicReader(settings, [Partition("kept", 0)])
        reader.open({})
        os.kill(first.pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(first.pid)] if psutil.pid_exists(first.pid) else [], timeout=5)
        assert own_broker.status() is None
        again = own_broker.start(wait_s=120)
        assert again.port == first.port
        assert again.pid != first.pid
        writer.write(0, [b"three"])
        writer.flush()
    assert read_all(reader) == [b"one", b"two", b"three"]


def test_a_broker_outlives_whoever_started_it_and_a_second_start_finds_it(tmp_path):
    directory = tmp_path / "odd, näme"
    start = f"LocalBroker({str(directory)!r}, heap_mb=256).start(120)"
    script = f"from streaming.broker.broker import LocalBroker; print({start}.pid)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=150)
    broker = LocalBroker(directory)
    try:
        running = broker.status()
        assert running is not None
        assert running.pid == int(done.stdout)
        assert broker.start() == running
    finally:
        assert broker.stop()
    assert broker.status() is None
    assert not broker.stop()


def test_a_broker_that_was_started_but_not_written_down_is_ended_by_the_next_start(tmp_path):
    """Whoever starts it may be killed in between; two brokers of one directory would tear its topics."""
    broker = LocalBroker(tmp_path, heap_mb=128)
    try:
        lost = broker.start()
        (tmp_path / "broker.json").unlink()
        assert broker.start().pid != lost.pid
        assert not psutil.pid_exists(lost.pid) or psutil.Process(lost.pid).status() == psutil.STATUS_ZOMBIE
    finally:
        broker.stop()


def test_a_port_of_its_own_is_none_that_outgoing_connections_are_given():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest < 32_768:
        pytest.skip("this machine hands out other ports than is usual")
    assert all(free_port() < lowest for _ in range(20))


def test_the_controller_does_not_take_the_port_that_the_broker_is_about_to_take(tmp_path):
    port = free_port()
    (tmp_path / "broker.json").write_text(json.dumps({"port": port, "controller_port": port}))
    broker = LocalBroker(tmp_path, port=port, heap_mb=256)
    try:
        assert broker.start().port == port
    finally:
        broker.stop()


def test_an_occupied_port_is_the_callers_mistake_and_names_the_occupant(tmp_path):
    with socket.socket() as occupant:
        occupant.bind(("127.0.0.1", 0))
        occupant.listen()
        port = occupant.getsockname()[1]
        with pytest.raises(BadInput, match=rf"port {port} .*process {os.getpid()}.*free one"):
            LocalBroker(tmp_path, port=port).start()
    assert LocalBroker(tmp_path).status() is None


def test_a_broker_that_dies_while_starting_shows_its_last_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "streaming.broker.broker.server_properties", lambda *_: "process.roles=broker,controller\nnode.id=x\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").touch()
    with pytest.raises(StreamingError, match=r"(?s)ended while starting.*Invalid value x for configuration broker\.id"):
        LocalBroker(tmp_path).start(wait_s=60)


def test_a_pid_that_somebody_else_has_now_is_not_taken_for_the_broker(tmp_path):
    (tmp_path / "broker.json").write_text(f'{{"pid": {os.getpid()}, "created": 1.0, "port": 1}}')
    assert LocalBroker(tmp_path).status() is None
    assert not LocalBroker(tmp_path).stop()


def test_a_directory_that_cannot_be_written_is_the_callers_mistake(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be written"):
        LocalBroker(tmp_path / "file" / "broker").start()


def test_a_full_disk_is_told_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("streaming.broker.broker.shutil.disk_usage", lambda _: type("Usage", (), {"free": 20 * 2**20}))
    with pytest.raises(DiskFull, match="20 MiB free, the broker needs at least 512 MiB"):
        LocalBroker(tmp_path).start()


def test_without_network_the_way_out_is_named(monkeypatch, tmp_path):
    def no_network(*_, **__):
        raise ConnectionError("name resolution failed")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("jgo.env.EnvironmentBuilder.from_endpoint", no_network)
    with pytest.raises(StreamingError, match=r"name resolution failed.*bootstrap_servers"):
        fetch_jars()
