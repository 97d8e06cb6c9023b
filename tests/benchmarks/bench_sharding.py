"""Every way to cut tables over ranks: ms a step, bytes moved, and whether it learns what one process learns.

    python -m tests.benchmarks.bench_sharding --ranks 2 4
    python -m tests.benchmarks.bench_sharding --ranks 1 2 --device cuda

Ranks are processes of this machine with one thread each, over gloo (NCCL with `--device cuda`, one GPU each). The same
global batches are learned by one process on CPU before and after; `ratio` is against the faster of these. Bytes are
those that all ranks together send in a step: of embeddings and their gradients, and in all. On fewer cores than ranks,
ms a step says little about a cluster.

Δ is the largest difference of any weight from one process after 20 steps. With the dense part in double it is what
sharding does. Bags hold at most two ids, so that no cut changes how they round; tables on every rank, or over the ranks
of a host, add up the gradients of a row in another order, and do. AdaGrad divides a gradient by its own size, so one
that is nothing but rounding would become a step: ε is large here.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist

from exfm.features.batch import Batch, BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.machine import set_threads
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.comms import SentBytes
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.snapshots.windows import TensorPieces, narrowed
from tests.support.ranks.local_ranks import launch, report, settings_of_this_rank

TABLES = {"user": 100_000, "ad": 20_000, "page": 20_000, "query": 100_000, "advertiser": 1_000, "hour": 24}
FEATURES = FeatureSet(sparse=[SparseFeature(name=name, rows=rows, transform="index") for name, rows in TABLES.items()])
IDS_PER_BAG = {"query": 2}
COMPARED_STEPS, TIMED_BLOCKS, COUNTED_STEPS = 20, 5, 3
START_TIMEOUT_S = 120

STRATEGIES: dict[str, dict[str, Any]] = {
    "table_wise": {},
    "row_wise": {},
    "column_wise": {"sparse_optimizer": "adagrad"},
    "table_row_wise": {"ranks_per_host": {2: 2, 4: 2}},
    "table_column_wise": {"sparse_optimizer": "adagrad", "ranks_per_host": {2: 2, 4: 2}},
    "grid_shard": {"sparse_optimizer": "adagrad", "ranks_per_host": {2: 1, 4: 2}},
    "data_parallel": {},
    "table_wise, fp16": {"comms": "fp16"},
    "row_wise, fp16": {"comms": "fp16"},
}
"""By name, whose first word is the sharding type: what else it needs. Cuts by column are exact with element-wise
AdaGrad; hosts are made believe, by the number of ranks."""


def model(strategy: str, dense_dtype: str) -> TeacherConfig:
    return TeacherConfig(width=32, sparse_optimizer=optimizer_of(strategy), dense_dtype=dense_dtype, sparse_eps=1e-4)


def optimizer_of(strategy: str) -> str:
    return STRATEGIES[strategy].get("sparse_optimizer", "row_wise_adagrad")


def sharding(strategy: str, ranks: int) -> Sharding:
    extra = STRATEGIES[strategy]
    return Sharding(
        types=(strategy.split(",")[0],),
        comms=extra.get("comms", "fp32"),
        ranks_per_host=extra.get("ranks_per_host", {}).get(ranks),
    )


def global_batch(step: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(step)
    columns: dict[str, pa.Array] = {"label_ctr": pa.array(rng.integers(0, 2, rows))}
    for name, size in TABLES.items():
        ids = (rng.zipf(1.2, rows * IDS_PER_BAG.get(name, 1)) - 1) % size
        bags = ids.reshape(rows, -1).tolist()
        columns[name] = pa.array(bags, pa.list_(pa.int64())) if name in IDS_PER_BAG else pa.array(ids)
    return pa.table(columns)


def share(step: int, args: argparse.Namespace) -> Batch:
    cuts = [args.rows * r // args.world for r in range(args.world + 1)]
    rows = global_batch(step, args.rows).slice(cuts[args.rank], cuts[args.rank + 1] - cuts[args.rank])
    return BatchBuilder(FEATURES, ["ctr"])(rows)


def start(teacher: Teacher) -> None:
    """With heads at zero the first gradients are next to nothing, and AdaGrad, which divides by their size, would make
    rounding large: start where heads have learned something."""
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in sorted(teacher.dense.items()):
            if name.startswith("heads") and not p.any():
                p.copy_(torch.empty(p.shape).normal_(0, 0.3, generator=drawn))


def measured(strategy: str, group: RankGroup, batches: list[Batch], steps: int) -> dict[str, Any]:
    _, double = learned(strategy, group, batches, "float64")
    teacher, single = learned(strategy, group, batches, "float32")
    blocks = []
    for _ in range(TIMED_BLOCKS):
        dist.barrier()
        began = time.perf_counter()
        for step in range(steps):
            teacher.train_step(batches[step % len(batches)])
        if group.device.type == "cuda":
            torch.cuda.synchronize()
        blocks.append(1000 * (time.perf_counter() - began) / steps)
    with SentBytes() as sent:
        for step in range(COUNTED_STEPS):
            teacher.train_step(batches[step])
    embeddings, total = group.sum(torch.tensor([sent.embeddings, sent.total])) // COUNTED_STEPS
    weights = {"float64": double, "float32": single}
    return {"ms": min(blocks), "embeddings": int(embeddings), "total": int(total), "weights": weights}


def learned(
    strategy: str, group: RankGroup, batches: list[Batch], dense_dtype: str
) -> tuple[Teacher, dict[str, torch.Tensor]]:
    """A teacher after these batches, and its weights, whole. A collective."""
    cfg, asked = model(strategy, dense_dtype), sharding(strategy, group.world_size)
    teacher = Teacher(cfg, FEATURES, ["ctr"], 0, group=group, sharding=asked)
    start(teacher)
    for batch in batches:
        assert teacher.train_step(batch).finite
    return teacher, {name: of_all_ranks(source, group) for name, source in teacher.snapshot().items()}


def of_all_ranks(source: torch.Tensor | TensorPieces, group: RankGroup) -> torch.Tensor:
    if isinstance(source, torch.Tensor):
        return source.cpu()
    whole = torch.zeros(source.shape)
    for offsets, piece in source.pieces:
        narrowed(whole, offsets, piece.shape).copy_(piece)
    return group.sum(whole)


def apart(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    return max((w - others[name]).abs().max().item() for name, w in weights.items())


def rank_main(settings: dict[str, Any]) -> None:
    set_threads(1)
    args = argparse.Namespace(**settings)
    batches = [share(step, args) for step in range(COMPARED_STEPS)]
    alone = torch.load(args.alone) if args.alone else None
    results = {}
    with RankGroup(args.rank, args.world, master_port=args.port, timeout_s=60, device=args.device) as group:
        for strategy in args.strategies:
            result = results[strategy] = measured(strategy, group, batches, args.steps)
            if alone:
                expected = alone[optimizer_of(strategy)]
                result["apart"] = {d: apart(w, expected[d]) for d, w in result.pop("weights").items()}
    report(settings, results)


def main() -> None:
    settings = settings_of_this_rank()
    if settings is not None:
        return rank_main(settings)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--rows", type=int, default=1024, help="of a global batch")
    parser.add_argument("--steps", type=int, default=10, help=f"of each of {TIMED_BLOCKS} timed blocks")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    if args.device == "cuda" and (gpus := torch.cuda.device_count()) < max(args.ranks):
        raise SystemExit(f"NCCL needs a GPU for each rank: {max(args.ranks)} were asked for, {gpus} are here")

    by_optimizer = {optimizer_of(s): s for s in reversed(args.strategies)}

    def run(world: int, strategies: Iterable[str], device: str, alone: str | None = None) -> dict[str, dict[str, Any]]:
        settings = vars(args) | {"strategies": list(strategies), "device": device, "alone": alone}
        return launch(__file__, world, settings, timeout_s=START_TIMEOUT_S + 60 * len(args.strategies))

    before = run(1, by_optimizer.values(), "cpu")
    with tempfile.NamedTemporaryFile() as alone:
        torch.save({optimizer: before[s]["weights"] for optimizer, s in by_optimizer.items()}, alone.name)
        results = {world: run(world, args.strategies, args.device, alone.name) for world in args.ranks}
    after = run(1, by_optimizer.values(), "cpu")
    ms_alone = {optimizer: min(found[s]["ms"] for found in (before, after)) for optimizer, s in by_optimizer.items()}

    heads = ["strategy", "ranks", "ms/step", "ratio", "embeddings kB/step", "all kB/step"]
    heads += ["Δ, dense in double", "Δ, float32"]
    print(f"{os.cpu_count()} cores, {args.device}; {args.rows} rows a step, {sum(TABLES.values()):,} table rows × 32\n")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for optimizer, ms in ms_alone.items():
        print(f"| one process on CPU, {optimizer} | 1 | {ms:.1f} | 1 | 0 | 0 | – | – |")
    for world, by_strategy in results.items():
        for strategy, r in by_strategy.items():
            print(
                f"| {strategy} | {world} | {r['ms']:.1f} | {r['ms'] / ms_alone[optimizer_of(strategy)]:.2f} | "
                f"{r['embeddings'] / 1000:,.0f} | {r['total'] / 1000:,.0f} | "
                f"{r['apart']['float64']:.0e} | {r['apart']['float32']:.0e} |"
            )


if __name__ == "__main__":
    main()
