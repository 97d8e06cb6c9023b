"""Lake rows by their event time."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from streaming.lake.reader import LakeReader

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def length_ms(text: str) -> int | None:
    """Parse a duration to milliseconds; None if it is not one.

    >>> length_ms("7d"), length_ms("1.5h"), length_ms("90s"), length_ms("soon")
    (604800000, 5400000, 90000, None)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    return None if match is None else round(float(match[1]) * _UNITS_MS[match[2]])


def newest_time_ms(lake: LakeReader) -> int | None:
    """Largest event time of all rows; None for an empty lake."""
    return max((int(times.max()) for _, times in _times(lake)), default=None)


def first_row_at(lake: LakeReader, time_ms: int) -> int:
    """The `lake_seq` of the first row at or after this event time; the one after the last row if there is none. Rows
    of slow labels, which come late and are old, do not count."""
    for seqs, times in _times(lake):
        if (at := np.flatnonzero(times >= time_ms)).size:
            return int(seqs[at[0]])
    return lake.last_lake_seq + 1


def _times(lake: LakeReader) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`lake_seq` and event time of all rows, a chunk at a time."""
    after = lake.first_lake_seq - 1
    while after < lake.last_lake_seq:
        read = lake.read(after, limit_rows=lake.chunk_rows, columns=["lake_seq", "event_time_ms"])
        after = read.complete_upto
        if read.table.num_rows:
            yield read.table["lake_seq"].to_numpy(), read.table["event_time_ms"].to_numpy()
