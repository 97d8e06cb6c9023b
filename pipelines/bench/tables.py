"""Embedding tables by themselves: looked up, and moved by a gradient."""

from __future__ import annotations

import torch

from exfm.embeddings.fused import FusedTables
from pipelines.bench.benchmark import Benchmark, Demand
from pipelines.bench.figures import Work
from pipelines.bench.shape import BATCH, FEATURES, ROWS, SEED, TABLES, WIDTH, batches, table_bytes
from pipelines.bench.sketches import TablesSketch


def embedding_step() -> Benchmark:
    each = batches(BATCH)
    tables, sketch = FusedTables.drawn(FEATURES, WIDTH, SEED, lr=0.1, eps=1e-8), TablesSketch()
    gradient = torch.full((BATCH, TABLES * WIDTH), 1e-3)

    def call() -> None:
        for batch in each:
            tables.learn(tables(batch.sparse), gradient)

    def reference() -> None:
        for batch in each:
            ids, _ = sketch.look_up(batch)
            sketch.learn(ids, gradient)

    return Benchmark(
        "embedding-step",
        "rows / CPU s",
        Work(call, ROWS),
        target=0.5,
        reference=Work(reference, ROWS),
        reference_is="bare torch",
        demand=Demand(bytes=table_bytes(learned=True)),
        against="limit",
    )
