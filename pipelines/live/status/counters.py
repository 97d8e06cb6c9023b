"""Counters of status.json that a restart takes back to the last checkpoint, at the most that each has been.

Of a distribution the one of the most rows counts: the number of rows never falls. Times that were taken again may come
into other buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.live.rules.states import RunState

GAUGES = ("pending", "waiting_feedback", "lake_rows")
"""Counts that go up and down: what a restart makes of them is what they are."""


class Highest:
    """The most that each counter of a status has been, over all starts of a run. `before`: the last status of the start
    before this one.

    >>> highest = Highest({"counts": {"impressions_read": 900}})
    >>> highest.ahead({"counts": None}), highest.ahead({"counts": {"impressions_read": 700}})
    ({'counts.impressions_read': 900}, {'counts.impressions_read': 900})
    >>> highest.ahead({"counts": {"impressions_read": 901}})
    {}
    """

    def __init__(self, before: Mapping[str, Any]) -> None:
        ahead = before.get("ahead")
        self._most = dict(_counters(before)) | (dict(ahead) if isinstance(ahead, Mapping) else {})

    def ahead(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Counters of the status `value` that are below the most that they have been, or not there yet: that most, by
        path. Those that have caught up, or are new, are taken up; those of workers that are no more are dropped, once
        all have been started."""
        now = dict(_counters(value))
        for path, reading in now.items():
            if _size(reading) >= _size(self._most.get(path, 0)):
                self._most[path] = reading
        if value.get("state") == RunState.RUNNING:
            there = ("counts.", *(f"workers.{name}." for name in value["workers"]))
            self._most = {path: most for path, most in self._most.items() if path.startswith(there)}
        return {path: most for path, most in self._most.items() if _size(now.get(path)) < _size(most)}


def _counters(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Path and reading of each counter: a number, or a distribution."""
    for name, worker in value.get("workers", {}).items():
        for field in ("rows", "quarantined_rows"):
            if worker.get(field) is not None:
                yield f"workers.{name}.{field}", worker[field]
        for phase, seconds in (worker.get("cpu_s") or {}).items():
            yield f"workers.{name}.cpu_s.{phase}", seconds  # of other threads: what is left over of the whole
        for what, spread in (worker.get("freshness") or {}).items():
            yield f"workers.{name}.freshness.{what}", spread
    for name, count in (value.get("counts") or {}).items():
        if name not in GAUGES:
            yield from _numbers(f"counts.{name}", count)


def _numbers(path: str, value: Any) -> Iterator[tuple[str, int]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{path}.{key}", inner)
    elif isinstance(value, int):
        yield path, value


def _size(reading: Any) -> float:
    """Rows of a distribution, or the number; -1 of what is not there."""
    size = reading.get("rows") if isinstance(reading, Mapping) else reading
    return size if isinstance(size, int | float) else -1
