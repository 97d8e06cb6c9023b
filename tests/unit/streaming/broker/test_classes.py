"""Java's classes, kept for the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming.broker.broker import LocalBroker
from streaming.broker.classes import keep_classes
from streaming.broker.config import BrokerSettings, classes_file, java
from streaming.broker.jars import fetch_jars


@pytest.mark.parametrize("kept", [True, False])
def test_java_is_given_the_file_where_there_is_one(monkeypatch, tmp_path, kept):
    monkeypatch.setattr("streaming.broker.config.fetch_jars", lambda: tmp_path)
    if kept:
        classes_file(tmp_path).touch()
    given = [
        word for word in java(BrokerSettings(java_options=["-Dx=y"]), "Main") if str(classes_file(tmp_path)) in word
    ]
    assert given == [f"-XX:SharedArchiveFile={classes_file(tmp_path)}"] * kept


@pytest.mark.broker
def test_a_broker_maps_the_file_and_a_torn_one_is_done_without(monkeypatch, tmp_path):
    whole = keep_classes()
    assert whole == classes_file(fetch_jars())
    for content, mapped in ((None, True), (whole.read_bytes()[: whole.stat().st_size // 2], False)):
        if content is not None:
            (tmp_path / "torn").write_bytes(content)
            monkeypatch.setattr("streaming.broker.config.classes_file", lambda jars: tmp_path / "torn")
        broker = LocalBroker(tmp_path / f"broker-{mapped}", heap_mb=128)
        try:
            maps = Path(f"/proc/{broker.start().pid}/maps").read_text()
        finally:
            broker.stop()
        assert (str(whole if mapped else tmp_path / "torn") in maps) is mapped
