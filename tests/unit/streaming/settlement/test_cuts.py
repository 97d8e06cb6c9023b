"""Where a chunk is cut, against the rule applied row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from streaming.settlement.id_index import cuts


def row_by_row(times: list[int], ids: list[int], span: int) -> list[int]:
    found, start = [], 0
    for row, (time, identity) in enumerate(zip(times, ids, strict=True)):
        earlier = [times[other] for other in range(start, row) if ids[other] == identity]
        if earlier and time - min(earlier) > span:
            found.append(row)
            start = times.index(time)
    return found


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=60), st.integers(0, 40))
def test_cut_at_the_first_row_whose_id_recurs_beyond_the_span(rows, span):
    times, ids = sorted(time for time, _ in rows), [identity for _, identity in rows]
    assert list(cuts(np.array(times, np.int64), pa.array(ids, pa.int64()), span)) == row_by_row(times, ids, span)


def test_months_of_distinct_ids_are_one_piece():
    times = np.arange(100_000) * 60_000
    assert list(cuts(times, pa.array(np.arange(100_000)), span=1000)) == []
