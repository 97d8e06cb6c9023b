"""The identity of a broker's storage."""

from __future__ import annotations

from uuid import UUID

from streaming.broker import broker


def test_no_identity_is_one_that_kafkas_tool_takes_for_an_option(monkeypatch):
    drawn = [UUID(bytes=bytes([first] * 16)) for first in (0xFB, 0xF8, 0x10)]
    monkeypatch.setattr(broker.uuid, "uuid4", lambda: drawn.pop(0))
    assert broker.cluster_id() == "EBAQEBAQEBAQEBAQEBAQEA"
