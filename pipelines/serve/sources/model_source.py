"""Interface of sources: the version of a model that is to be served now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from exfm.snapshots.increments.follower import ServedState
from streaming.schema import RowSchema

LOOK_EVERY_S = 0.5
"""So often an origin is asked that says nothing else."""


class DesiredVersion(NamedTuple):
    """A version to be served: its location, the row schema of requests, and its registry entry. `labelled(columns,
    count)`: its newest rows with labels, where there are some. `value`: the version itself, where it is in memory
    already. `refused`: a newer one that cannot be served, and why."""

    name: str
    path: Path
    schema: RowSchema
    about: dict[str, Any]
    labelled: Callable[[list[str], int], pa.Table] | None = None
    value: ServedState | None = None
    refused: tuple[str, str] | None = None


class ModelSource(Protocol):
    """Source of the versions of one model. `model` is its name to callers; every `look_every_s` it is asked."""

    model: str
    look_every_s: float

    def wanted(self) -> DesiredVersion | None:
        """The version to be served now; None while there is none. Asked again and again. Raises ModelError where
        there is one that cannot be read."""
        ...

    def close(self) -> None: ...
