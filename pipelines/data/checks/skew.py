"""Train/serve skew: features recorded at serving differently from their rebuilt training values.

Recorded values are columns `served_<feature>` of the same rows, or columns of the same names in another table, whose
rows are found by their id.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.findings import Finding, Rules, Severity, percent
from pipelines.data.profile.codes import LABEL, LOGIT, NOT_FEATURES, SERVED

RULES = Rules("""
note|warn|stop  skew.differ  skew: {feature}
    recorded and rebuilt values of `{feature}` differ in {share} of {rows:,} rows; {first} {served} was served,
    {rebuilt} is rebuilt
    -> train on what was recorded, or mend what rebuilds it: a model learns one feature and is served another
warn  skew.unmatched  skew
    only {share} of the rows ({matched:,} of {rows:,}) were recorded as served
""")

STOPS, WARNS = 0.05, 0.001
"""Shares of rows that differ."""

CLOSE = 1e-5
"""Numbers that differ by less, in proportion, are the same."""

FEW_MATCHED = 0.5


def skews(rows: pa.Table, recorded: pa.Table | None = None) -> Iterator[Finding]:
    """Features that differ, those that differ in most rows first.

    >>> rows = pa.table({"impression_id": [1, 2, 3], "bid": [0.5, 0.6, 0.7], "served_bid": [0.5, 0.6, 7.0]})
    >>> (bid,) = skews(rows)
    >>> print(bid.seen)
    recorded and rebuilt values of `bid` differ in 33 % of 3 rows; first impression 3: 7.0 was served, 0.7 is rebuilt
    """
    ids = rows["impression_id"] if "impression_id" in rows.schema.names else None
    pairs = [
        (name, rows[SERVED + name], rows[name], ids) for name in rows.schema.names if SERVED + name in rows.schema.names
    ]
    if recorded is not None:
        place = pc.index_in(rows["impression_id"].combine_chunks(), recorded["impression_id"].combine_chunks())
        known = place.is_valid()
        matched = int(pc.sum(known).as_py() or 0)
        if matched < FEW_MATCHED * rows.num_rows:
            share = percent(matched / max(1, rows.num_rows))
            yield RULES("skew.unmatched", share=share, matched=matched, rows=rows.num_rows)
        mine, theirs = rows.filter(known), recorded.take(place.drop_null())
        names = [n for n in rows.schema.names if n in recorded.schema.names and n not in NOT_FEATURES]
        its = mine["impression_id"]
        pairs += [(n, theirs[n], mine[n], its) for n in names if not n.startswith((LABEL, LOGIT))]
    compared = [(rows_apart(a, b), name, a, b, of) for name, a, b, of in pairs if len(a)]
    for differ, name, served, rebuilt, of in sorted(compared, key=lambda one: -float(one[0].mean())):
        if apart := float(differ.mean()):
            severity = Severity.STOP if apart >= STOPS else Severity.WARN if apart >= WARNS else Severity.NOTE
            at = int(np.argmax(differ))
            first = "for example" if of is None else f"first impression {of[at].as_py()}:"
            values = {"served": served[at].as_py(), "rebuilt": rebuilt[at].as_py()}
            about = {"feature": name, "share": percent(apart), "rows": len(differ), "first": first}
            yield RULES("skew.differ", severity, **about, **values)


def rows_apart(served: pa.ChunkedArray | pa.Array, rebuilt: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Mask (N,) bool of rows whose values differ; two nulls are the same."""
    a, b = (each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in (served, rebuilt))
    absent_a, absent_b = (column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False) for column in (a, b))
    if pa.types.is_floating(a.type) or pa.types.is_floating(b.type):
        x, y = (column.cast(pa.float64()).to_numpy(zero_copy_only=False) for column in (a, b))
        apart = ~np.isclose(x, y, rtol=CLOSE, atol=1e-12, equal_nan=True)
    else:
        if a.type != b.type or pa.types.is_list(a.type):
            a, b = (pa.array([str(value) for value in column.to_pylist()]) for column in (a, b))
        apart = pc.not_equal(a, b).fill_null(False).to_numpy(zero_copy_only=False)
    return np.asarray((apart & ~absent_a & ~absent_b) | (absent_a != absent_b))
