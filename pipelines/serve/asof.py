"""As-of features of a request's rows: taken from the request, else looked up in the newest state of the run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.prediction_request import PredictionRequest
from pipelines.served_rows import checked_columns
from streaming.errors import StreamingError
from streaming.messages.validation import Refusals, RowRules
from streaming.schema import RowSchema
from streaming.settlement.saved.follower import AsOfFollower
from streaming.store.working_copy import brought_up, copy_of

LOOK_EVERY_S, ASKED_EVERY_S = 0.1, 5.0
"""How often is looked for a newer state, in a folder and at a store."""
TIME = "event_time_ms"

log = logging.getLogger(__name__)


class AsOfSource:
    """The as-of state of a run, as its last commit left it; `follow` has a thread look for newer ones."""

    def __init__(self, run_dir: RunDir) -> None:
        self._follower = AsOfFollower(run_dir.leader.checkpoints("augmentation"))
        self._every_s = 0.0 if copy_of(self._follower.root) is None else ASKED_EVERY_S
        self._look_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._trouble = ""

    def refresh(self) -> None:
        """Take the newest state; where it cannot be read, the one before goes on answering, and the log says why."""
        if time.monotonic() < self._look_at:
            return
        self._look_at, trouble = time.monotonic() + self._every_s, ""
        try:
            brought_up(self._follower.root)
            self._follower.refresh()
        except StreamingError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            log.error("as-of features stay as they were: %s", trouble)
        self._trouble = trouble

    def follow(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._looking, name="as-of", daemon=True)
            self._thread.start()

    def _looking(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self.refresh()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def there(self) -> bool:
        return self._follower.state is not None

    @property
    def written_s(self) -> float | None:
        """When the state that answers was written, in seconds since 1970."""
        return None if self._follower.state is None else self._follower.state.written_s

    @property
    def until_ms(self) -> int | None:
        """Event time of the last event that the state knows."""
        return None if self._follower.state is None else self._follower.state.until_ms

    def look(self, rows: pa.RecordBatch, time_ms: np.ndarray) -> dict[str, pa.Array]:
        return self._follower.look(rows, time_ms)


class AsOfInputs:
    """The as-of features that a model reads, `columns`; `keys`: the columns that they are looked up by."""

    def __init__(self, schema: RowSchema, reads: tuple[str, ...], source: AsOfSource | None) -> None:
        self.columns = tuple(column.name for column in schema.asof.columns if column.name in reads)
        self.source = source if self.columns else None
        self.keys: tuple[str, ...] = ()
        if self.source is not None:
            self.keys = tuple(dict.fromkeys([TIME, *(name for feature in schema.asof.features for name in feature.by)]))
            self._rules = RowRules("impression", schema, only=self.keys, optional=self.keys)

    def inputs(self, reads: pa.Schema) -> pa.Schema:
        """The columns of a request for a model that reads `reads`; those that are looked up may be left out."""
        if self.source is None:
            return reads
        return pa.schema([field.with_nullable(True) if field.name in self.columns else field for field in reads])

    def assumed(self, names: Collection[str]) -> str:
        """Describe where as-of features of rows with the columns `names` are taken from; empty where none is read."""
        absent = [name for name in self.columns if name not in names]
        given = [name for name in self.columns if name in names]
        parts = [f"{', '.join(given)} as the rows have them"] if given else []
        if absent and self.source is not None and self.source.there:
            until = datetime.fromtimestamp((self.source.until_ms or 0) / 1000, UTC)
            state = f"the run's newest state, of {until:%Y-%m-%d %H:%M:%S} UTC"
            parts.append(f"{', '.join(absent)} from {state}: rows of earlier times are answered as if shown then")
        elif absent:
            parts.append(f"{', '.join(absent)} missing, and no state of a run to look them up in: rows are refused")
        return "; ".join(parts)

    def completed(self, asked: PredictionRequest, now_ms: int) -> PredictionRequest:
        """The request with what it does not give, as of its rows' event times. A key that is missing, null or no key is
        as one that was never shown."""
        absent = [name for name in self.columns if name not in asked.columns and name not in asked.context]
        if not absent or self.source is None or not self.source.there:
            return asked
        rows, _ = checked_columns(asked.columns, asked.context, asked.size, self._rules)
        time_ms = rows.column(TIME).fill_null(now_ms).to_numpy(zero_copy_only=False)
        found = self.source.look(rows, time_ms)
        return asked.with_columns({name: found[name] for name in absent if name in found})

    def explained(self, refusals: Refusals) -> Refusals:
        """Refusals whose words say what as-of columns are that could not be looked up."""
        missing = {f"missing_column:{name}" for name in self.columns}
        where = "is no run beside this model" if self.source is None else "was no commit of its run yet"
        words = f", an as-of feature; there {where} to look it up in, so send its value"
        return {
            row: why._replace(detail=why.detail + words) if why.reason in missing else why
            for row, why in refusals.items()
        }
