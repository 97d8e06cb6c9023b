"""A broker's data folder begins as Kafka's tool would have it, without that tool."""

from __future__ import annotations

from uuid import UUID

import pytest

from streaming.broker import formatting
from streaming.broker.broker import LocalBroker
from streaming.broker.formatting import FEATURES, IDS, format_as_kept, is_formatted, keep
from streaming.broker.jars import cache_folder
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import end_offsets, ensure_topics
from streaming.position import Partition


def test_no_identity_is_one_that_kafkas_tool_takes_for_an_option(monkeypatch):
    drawn = [UUID(bytes=bytes([first] * 16)) for first in (0xFB, 0xF8, 0x10)]
    monkeypatch.setattr(formatting.uuid, "uuid4", lambda: drawn.pop(0))
    assert formatting.random_id() == "EBAQEBAQEBAQEBAQEBAQEA"


def ids_of(data):
    return dict(line.split("=") for line in (data / IDS).read_text().splitlines() if not line.startswith("#"))


def test_what_is_kept_is_copied_with_ids_of_its_own(tmp_path):
    tools, one, two, jars = (tmp_path / name for name in ("tools", "one", "two", "jars"))
    for folder in (tools, jars):
        folder.mkdir()
    assert not format_as_kept(one, jars)
    assert not is_formatted(one)
    (tools / FEATURES).write_bytes(b"features")
    keep(tools, jars)
    assert format_as_kept(one, jars)
    assert format_as_kept(two, jars)
    assert is_formatted(one)
    assert (one / FEATURES).read_bytes() == b"features"
    assert len({ids_of(folder)[name] for folder in (one, two) for name in ("cluster.id", "directory.id")}) == 4
    assert [path.name for path in jars.iterdir()] == [FEATURES]


def test_a_folder_that_takes_no_file_keeps_nothing(tmp_path):
    (tmp_path / FEATURES).write_bytes(b"features")
    (tmp_path / "none").touch()
    keep(tmp_path, tmp_path / "none")
    assert {path.name for path in tmp_path.iterdir()} == {FEATURES, "none"}


@pytest.mark.broker
def test_kafkas_tool_writes_the_same_ids_and_a_broker_begins_in_a_copy(tmp_path, monkeypatch):
    tools, copied = LocalBroker(tmp_path / "tools", heap_mb=128), LocalBroker(tmp_path / "copied", heap_mb=128)
    try:
        with monkeypatch.context() as without:
            without.setattr("streaming.broker.broker.format_as_kept", lambda *_: False)
            tools.start()
        assert (tmp_path / "tools" / "broker.out").stat().st_size  # what the tool says
        running = copied.start()
        assert not (tmp_path / "copied" / "broker.out").stat().st_size
        by_tool, by_us = (ids_of(tmp_path / name / "data") for name in ("tools", "copied"))
        same, each = ("node.id", "version"), ("cluster.id", "directory.id")
        assert by_tool.keys() == by_us.keys()
        assert all(by_tool[name] == by_us[name] for name in same)
        assert all(by_tool[name] != by_us[name] and len(by_tool[name]) == len(by_us[name]) for name in each)
        assert (tmp_path / "copied" / "data" / FEATURES).read_bytes() == (cache_folder() / FEATURES).read_bytes()
        settings = KafkaSettings(bootstrap_servers=running.bootstrap_servers)
        ensure_topics(settings, {"new": 1})
        assert end_offsets(settings, [Partition("new", 0)]) == {Partition("new", 0): 0}
    finally:
        tools.stop()
        copied.stop()
