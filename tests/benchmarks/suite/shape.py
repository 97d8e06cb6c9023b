"""The rows that are measured: 26 tables of 100,000 × 16, 13 floats, one task, batches of 2,048.

It is the shape of the Criteo rows, as other projects measure theirs. Ids are uniform: nearly every one of a batch is
another row of its table, which no cache holds. Streams of ads repeat ids, and are faster.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import pyarrow as pa

from exfm.features.batch import Batch, BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature

TABLES, TABLE_ROWS, WIDTH, FLOATS, BATCH = 26, 100_000, 16, 13, 2048
TASKS = ("ctr",)
SEED = 1

FEATURES = FeatureSet(
    sparse=tuple(SparseFeature(name=f"id_{n}", rows=TABLE_ROWS) for n in range(TABLES)),
    dense=tuple(DenseFeature(name=f"float_{n}") for n in range(FLOATS)),
)


def table(rows: int, seed: int = SEED) -> pa.Table:
    """Settled and scored rows."""
    drawn = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {f"id_{n}": drawn.integers(0, 2**40, rows) for n in range(TABLES)}
    columns |= {f"float_{n}": drawn.normal(size=rows).astype(np.float32) for n in range(FLOATS)}
    columns["label_ctr"] = (drawn.random(rows) < 0.1).astype(np.int8)
    columns["teacher_logit_ctr"] = drawn.normal(-2, 1, rows).astype(np.float32)
    return pa.table(columns)


def new_batches(size: int) -> Callable[[], Batch]:
    """A function that gives another batch at each call: what a batch's ids map to is remembered with the batch, so
    that one which was learned before is learned faster."""
    build, seeds = BatchBuilder(FEATURES, TASKS), count(SEED)
    return lambda: build(table(size, next(seeds)))


def learned_bytes() -> int:
    """Bytes that a row's embeddings move when they are learned: weights and gradients read, weights and accumulators
    read and written once more."""
    weights, accumulator = 4 * WIDTH, 4
    return TABLES * (4 * weights + 2 * accumulator)
