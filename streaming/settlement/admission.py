"""Admission of impressions: rejects those too old, or of a vertical beyond the limit. Others become dead letters.

The lake has files of its own for each vertical, and no commit bears thousands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.intake.merge import REFUSED_SCHEMA
from streaming.messages.dead_letters import refuse_rows
from streaming.messages.times import YEAR_MS

RAN_AWAY = ", more than a year: was it moved by a record from the future?"
"""Of a row that is so far behind. Event time can be set back (`exfm mend watermark`)."""


class Verticals:
    """Verticals of a run: the declared ones, then others in merged order, up to `most` in total.

    `known` is part of the committed state, so that a restart knows what the process before it knew. One that is known
    stays so, also where `most` is lowered; None: no bound, and nothing is kept.

    >>> verticals = Verticals(["feed"], most=2)
    >>> verticals.refuse(pa.array(["shop", "feed", "video", "shop"])).tolist(), verticals.known
    ([False, False, True, False], ['feed', 'shop'])
    """

    def __init__(self, declared: Iterable[str] = (), most: int | None = None) -> None:
        self.most = most
        self._declared = tuple(dict.fromkeys(declared))
        self._known = dict.fromkeys(self._declared)

    @property
    def known(self) -> list[str]:
        """Names in order of arrival."""
        return list(self._known)

    def declare(self, names: Collection[str]) -> None:
        """Add names, regardless of the limit."""
        self._known |= dict.fromkeys(names)

    def restore(self, known: Iterable[str]) -> None:
        """Restore an earlier process's names, and add those declared now."""
        self._known = dict.fromkeys([*known, *self._declared])

    def refuse(self, verticals: pa.Array) -> np.ndarray:
        """Register the verticals of rows, in merged order; returns a mask (N,) bool of rows beyond the limit."""
        refused = []
        if self.most is not None:
            for name in verticals.unique().to_pylist():
                if name in self._known:
                    continue
                if len(self._known) < self.most:
                    self._known[name] = None
                else:
                    refused.append(name)
        if not refused:
            return np.zeros(len(verticals), bool)
        mask: np.ndarray = pc.is_in(verticals, value_set=pa.array(refused)).to_numpy(zero_copy_only=False)
        return mask


def refuse_too_old(impressions: pa.RecordBatch, which: np.ndarray, horizon_ms: int) -> Iterator[pa.RecordBatch]:
    """Dead letters of the impressions older than the horizon; `which` (N,) bool."""
    if which.any():
        rows = impressions.filter(pa.array(which))
        behind_ms = rows["key_time_ms"].to_numpy() - rows["event_time_ms"].to_numpy()
        yield _refused(
            rows,
            "too_old",
            [
                f"event time is {ms} ms behind the watermark{RAN_AWAY * (ms > YEAR_MS)}; dedup_horizon: {horizon_ms}"
                for ms in behind_ms.tolist()
            ],
        )


def refuse_surplus(impressions: pa.RecordBatch, which: np.ndarray, most: int | None) -> Iterator[pa.RecordBatch]:
    """Dead letters of impressions whose vertical is beyond the `most` of a run; `which` (N,) bool."""
    if which.any():
        rows = impressions.filter(pa.array(which))
        words = f"is a further vertical; this run takes {most} (lake.max_verticals)"
        yield _refused(rows, "too_many_verticals", [f"`{name}` {words}" for name in rows["vertical"].to_pylist()])


def _refused(impressions: pa.RecordBatch, reason: str, details: list[str]) -> pa.RecordBatch:
    *names, key, order = impressions.schema.names
    letters = refuse_rows(impressions.select(names), "impression", reason, details)
    return placed(letters, impressions[key].to_numpy(), impressions[order].to_numpy())


def placed(letters: pa.RecordBatch, key_time: np.ndarray, order: np.ndarray) -> pa.RecordBatch:
    """Letters in `REFUSED_SCHEMA`."""
    return pa.RecordBatch.from_arrays([*letters.columns, pa.array(key_time), pa.array(order)], schema=REFUSED_SCHEMA)
