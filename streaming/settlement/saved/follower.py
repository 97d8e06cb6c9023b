"""As-of features looked up in the newest state that a settlement has saved, which is followed while it goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streaming.asof.lookup import AsOfLookup
from streaming.errors import StreamingError
from streaming.schema import RowSchema
from streaming.settlement.state import SettlementState, partition_folder

LOOKS = 3
"""A live settlement deletes a state two saves later: how often a newer one is tried."""


class Followed(NamedTuple):
    """The state that answers: its manifest, when it was written (seconds since 1970), the time of its last event."""

    manifest: Path
    written_s: float
    until_ms: int | None


class AsOfFollower:
    """As-of features of any rows, from the settlement states in the folders of `root`, a folder for each writer; the
    state of the greatest number is the newest. One thread may `refresh` while others `look`.

    Only what differs between two states is read: their deltas, and all of a table where it was written anew.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state: Followed | None = None
        self._lock = threading.Lock()
        self._schema: dict[str, Any] | None = None
        self._lookup: AsOfLookup | None = None

    def refresh(self) -> bool:
        """Take the newest state; returns False where that is the one that answers, or there is none.

        Raises StreamingError where it cannot be read: the one before goes on answering.
        """
        for attempt in range(LOOKS):
            manifest = self._newest()
            if manifest is None:
                return False
            try:
                return self._take(manifest)
            except (StreamingError, OSError):
                if attempt == LOOKS - 1 and self._newest() == manifest:
                    raise
        return False

    def _newest(self) -> Path | None:
        found = [*self.root.glob("*/*.json"), *self.root.glob(f"*/{partition_folder(0)}/*.json")]
        numbered = [path for path in found if path.stem.isdecimal()]
        return max(numbered, key=lambda path: int(path.stem), default=None)

    def _take(self, manifest: Path) -> bool:
        written_s = manifest.stat().st_mtime
        if self.state is not None and (manifest, written_s) == self.state[:2]:
            return False
        state, _ = SettlementState.load(manifest.parent, manifest.stem)
        lookup, stored = self._lookup, state.meta["schema"]
        if lookup is None or self.state is None or stored != self._schema or manifest.parent != self.state[0].parent:
            # another writer may go on from before what the last one saved
            lookup = AsOfLookup(RowSchema.model_validate(stored))
        newer = None if state.asof is None else lookup.read(state.asof)
        with self._lock:
            if newer is not None:
                lookup.take(newer)
            self._lookup, self._schema = lookup, stored
            self.state = Followed(manifest, written_s, lookup.until_ms)
        return True

    def look(self, rows: pa.RecordBatch, event_time_ms: np.ndarray) -> dict[str, pa.Array]:
        """The as-of columns of R rows, by name, of what was known at the last tick before `event_time_ms` (R,).

        `rows` have the columns that keys are made of; where one is null, the row is of no key. Raises StreamingError
        where there is no state.
        """
        with self._lock:
            if self._lookup is None:
                raise StreamingError(f"{self.root} has no settlement state yet; the run's first commit writes one")
            return self._lookup.look(rows, event_time_ms)
