"""The rows and models that are measured: 26 tables of 100,000 × 16, 13 floats, one task, batches of 2,048.

It is the shape of the Criteo rows, as other projects measure theirs. Ids are uniform: nearly every one of a batch is
another row of its table, which no cache holds. Streams of ads repeat ids, and are faster.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from exfm.features.batch import Batch, BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature

TABLES, TABLE_ROWS, WIDTH, FLOATS, BATCH, ROWS = 26, 100_000, 16, 13, 2048, 8192
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


@cache
def batches(size: int) -> list[Batch]:
    """`ROWS` rows in batches of a size."""
    build, rows = BatchBuilder(FEATURES, TASKS), table(ROWS)
    return [build(rows.slice(start, size)) for start in range(0, ROWS, size)]


def table_bytes(*, learned: bool) -> int:
    """Bytes of a row's embeddings that are read, and with `learned` also those of the gradient that is read, and of
    the weights and accumulators that are read and written once more."""
    weights, accumulator = 4 * WIDTH, 4
    return TABLES * (weights + (3 * weights + 2 * accumulator if learned else 0))
