"""A probe, in a process of its own, that torch, torchrec and fbgemm load together, and of what threads cost.

Run as `python -m pipelines.data.doctor.embedding_probe`; prints one JSON object. A mismatched build can end the
process without a traceback, so `exfm doctor` keeps it outside its own.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

TABLES, ROWS, WIDTH, BATCH = 26, 20_000, 32, 2048
BUDGET_S = 3.0  # per measurement: contended threads can take seconds for one step


def milliseconds_per_step(step: Any) -> float:
    """The median of 20 steps, or of as many as fit into `BUDGET_S`."""
    steps: list[float] = []
    while len(steps) < 20 and sum(steps) < BUDGET_S:
        before = time.perf_counter()
        step()
        steps.append(time.perf_counter() - before)
    return statistics.median(steps) * 1000


def probe() -> dict[str, Any]:
    """Import the stack, take fused row-wise AdaGrad steps with the threads as set, then with one.

    Returns the versions, whether the rows' weights moved, threads and milliseconds per step of both settings.
    """
    import torch
    import torchrec
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU)] * TABLES,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.1,
    )
    tables.init_embedding_weights_uniform(-0.1, 0.1)
    ids = torch.randint(0, ROWS, (TABLES * BATCH,), generator=torch.Generator().manual_seed(1))
    offsets = torch.arange(TABLES * BATCH + 1)

    def step() -> None:
        tables(ids, offsets).sum().backward()

    before = tables.split_embedding_weights()[0][ids[0]].clone()
    step()
    moved = not torch.equal(before, tables.split_embedding_weights()[0][ids[0]])
    threads = torch.get_num_threads()
    as_set_ms = milliseconds_per_step(step)
    torch.set_num_threads(1)
    one_ms = milliseconds_per_step(step) if threads > 1 else as_set_ms
    return {
        "torch": torch.__version__,
        "torchrec": torchrec.__version__,
        "cuda": torch.cuda.is_available(),
        "moved": moved,
        "threads": threads,
        "as_set_ms": round(as_set_ms, 2),
        "one_ms": round(one_ms, 2),
    }


if __name__ == "__main__":
    print(json.dumps(probe()))
