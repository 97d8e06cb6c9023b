"""What a history left behind."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.simulation.log import Record


class TakenIn(NamedTuple):
    """The state from which the service took partitions in that were added: its event time, and where it stood in those
    that it knew, (topic, partition) -> (offset, row)."""

    watermark: int
    read: dict[tuple[str, int], tuple[int, int]]


class Outcome(NamedTuple):
    """What a history left behind, as plain values, and the true contents of the topics."""

    lake: list[dict[str, Any]]
    late: list[dict[str, Any]]
    dead: list[dict[str, Any]]
    counts: dict[str, Any] | None
    letters: list[Record]
    examples: dict[int, list[tuple[dict[str, str], list[dict[str, Any]]]]]
    logs: dict[tuple[str, int], Any]
    gave_up: str | None
    """Why the service said that it cannot continue."""
    fault: str | None
    """What it did that no service may do: an error that nothing explains, or no end."""
    lost: bool
    """Whether messages were lost before, or after, the service had read them."""
    replaced: bool
    """Whether messages that it had committed were replaced by others."""
    unnoticed: bool
    """… and the service went on to the end."""
    stops: int
    points: int
    outages: list[tuple[float, float]]
    taken_in: TakenIn | None
