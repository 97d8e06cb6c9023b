"""Crashes at a place of one's choice: of a worker in this process, which cleans nothing up."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from streaming.kafka.writer import TopicWriter


class Crash(Exception):
    """A process that is gone: it cleans nothing up."""


class Point(NamedTuple):
    """Where to crash: once `owner.method` has returned for the `nth` time, of the calls that `when` picks."""

    owner: type | ModuleType
    method: str
    nth: int
    when: Callable[..., bool] = lambda *args, **kwargs: True


def crash_at(monkeypatch: pytest.MonkeyPatch, point: Point, crashed: list[Point]) -> None:
    original = getattr(point.owner, point.method)
    calls = 0

    def crashing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        picked = point.when(*args, **kwargs)
        result = original(*args, **kwargs)
        calls += bool(picked)
        if picked and calls == point.nth:
            if point.owner is TopicWriter:
                args[0].flush()  # this message is out, those to come are not
            crashed.append(point)
            raise Crash(f"{point.owner.__name__}.{point.method}")
        return result

    monkeypatch.setattr(point.owner, point.method, crashing)
