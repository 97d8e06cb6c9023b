"""Embedding tables by themselves: looked up, and moved by a gradient."""

from __future__ import annotations

import torch

from exfm.features.batch import Batch
from tests.benchmarks.suite.limits import COPY
from tests.benchmarks.suite.measuring import Benchmark, Demand, Work
from tests.benchmarks.suite.shape import BATCH, FEATURES, SEED, TABLES, WIDTH, learned_bytes, new_batches
from tests.benchmarks.suite.sketches import TablesSketch
from tests.support.models.collections import fused


def embedding_step() -> Benchmark:
    tables, sketch = fused(FEATURES, WIDTH, SEED), TablesSketch()
    gradient, new = torch.full((BATCH, TABLES * WIDTH), 1e-3), new_batches(BATCH)

    def learn(batch: Batch) -> None:
        tables.learn(tables.lookup(tables.rows(batch.sparse)), gradient.clone())

    def learn_by_sketch(batch: Batch) -> None:
        ids, _ = sketch.look_up(batch)
        sketch.learn(ids, gradient)

    return Benchmark(
        "embedding-step",
        "rows / CPU s",
        Work(learn, BATCH, new),
        target=0.5,
        reference=Work(learn_by_sketch, BATCH, new),
        reference_is="bare torch",
        demand=Demand(COPY, learned_bytes()),
        against="limit",
    )
