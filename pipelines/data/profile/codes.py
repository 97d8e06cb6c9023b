"""A table's columns as codes, (N,) from 0: a code for each value, or for each bin of a column of numbers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.schema import LABEL_PREFIXES, RESERVED_NAMES, SAMPLE_WEIGHT

LABEL, LOGIT, SERVED = "label_", "teacher_logit_", "served_"
BINS = 20
"""A column of floats with more distinct values is cut into this many bins."""

NOT_FEATURES = (RESERVED_NAMES | {SAMPLE_WEIGHT}) - {"vertical"}
DAY_MS = 86_400_000
FEWEST_DAYS = 4


def feature_names(table: pa.Table) -> list[str]:
    """Columns that a model could read: no labels, logits or origins of rows."""
    others = (*LABEL_PREFIXES, SERVED, "optimum_")
    return [n for n in table.schema.names if n not in NOT_FEATURES and not n.startswith(others)]


def codes_of(column: pa.ChunkedArray) -> np.ndarray:
    """Codes of values; lists count by their length; numbers of many values by their quantile, nulls by themselves.

    >>> codes_of(pa.chunked_array([["b", None, "b", "a"]])).tolist()
    [0, 1, 0, 2]
    """
    values = column.combine_chunks()
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values = pc.list_value_length(values)
    if pa.types.is_floating(values.type):
        x = values.to_numpy(zero_copy_only=False).astype(np.float64)
        known = np.isfinite(x)
        if len(np.unique(x[known])) > BINS:
            edges = np.unique(np.quantile(x[known], np.linspace(0, 1, BINS + 1)[1:-1]))
            return np.where(known, np.searchsorted(edges, x, side="right"), len(edges) + 1)
        return np.unique(np.where(known, x, np.inf), return_inverse=True)[1].reshape(-1)
    return codes_of_values(values)


def codes_of_values(values: pa.Array) -> np.ndarray:
    """A code for each value, nulls included, in the order in which they first come.

    >>> codes_of_values(pa.array([7, None, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def tasks_of(table: pa.Table) -> list[str]:
    return [name.removeprefix(LABEL) for name in table.schema.names if name.startswith(LABEL)]


def days_of(table: pa.Table) -> tuple[np.ndarray, list[str]]:
    """Day of each row, (N,), and the days' names. A stream shorter than `FEWEST_DAYS` is cut into sixths of its time
    instead."""
    at = table["event_time_ms"].to_numpy()
    day = at // DAY_MS
    if len(at) and int(day.max() - day.min()) + 1 >= FEWEST_DAYS:
        days, codes = np.unique(day, return_inverse=True)
        return codes.reshape(-1), [str(np.datetime64(int(d), "D")) for d in days]
    if not len(at):
        return np.zeros(0, np.int64), []
    first, span = int(at.min()), int(at.max() - at.min()) + 1
    return (at - first) * 6 // span, [f"sixth {k + 1}" for k in range(6)]
