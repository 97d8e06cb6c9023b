"""A teacher whose tables no single rank may hold: it trains, checkpoints, and goes on under another number of ranks.

    .venv/bin/python -m tests.benchmarks.large_teacher                 # 12 GB of memory
    .venv/bin/python -m tests.benchmarks.large_teacher --rows 4000000 --memory-gb 0.1

Prints why one rank cannot hold it, the resident memory of every rank at every stage, and whether the restored ranks
score as those that saved did.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from exfm.features.batch import Batch, BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.machine import set_threads
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.parallel.planning.placement import PlanQuestion, Shortage, find_plan
from exfm.snapshots.checkpoint import Together, open_checkpoint, save_checkpoint
from tests.support.ranks.local_ranks import launch, report, settings_of_this_rank

TASKS = ("ctr",)
BATCH, NAME = 2048, "v1"
GB = 1 << 30


def features(rows: int) -> FeatureSet:
    """Two tables for the ids that there are many of, and small ones beside them: `rows` in all."""
    user, ad = int(rows * 0.9), int(rows * 0.1)
    small = [SparseFeature(name=name, rows=1000) for name in ("advertiser_id", "category_id", "hour")]
    return FeatureSet(sparse=[SparseFeature(name="user_id", rows=user), SparseFeature(name="ad_id", rows=ad), *small])


def teacher_of(width: int) -> TeacherConfig:
    """Without a linear part, as docs/results/performance.md has it: `--memory-gb` is for the network's tables alone."""
    return TeacherConfig(width=width, wide=False)


def examples(rng: np.random.Generator, count: int) -> pa.Table:
    """Zipf over ten times as many ids as there are rows in a table; a label that the ads decide."""
    ads = rng.zipf(1.2, count) % 10_000_000
    columns = {name: rng.integers(0, 5000, count) for name in ("advertiser_id", "category_id", "hour")}
    label = (rng.random(count) < 0.05 + 0.2 * (ads % 3 == 0)).astype("i1")
    return pa.table({"user_id": rng.integers(0, 1 << 40, count), "ad_id": ads, "label_ctr": label} | columns)


def held_by_this_rank(own: dict[str, Any]) -> None:
    process, told = psutil.Process(), {"imported": psutil.Process().memory_info().rss}
    rank, ranks, root = own["rank"], own["world"], Path(own["root"])
    schema, restores = features(own["rows"]), own["stage"] == "restore"
    build = BatchBuilder(schema, TASKS)
    sharding = Sharding(types=("table_wise", "row_wise"), memory_gb=own["memory_gb"])

    def mine(seed: int) -> Batch:
        rows = examples(np.random.default_rng(seed), BATCH)
        cuts = [BATCH * r // ranks for r in range(ranks + 1)]
        return build(rows.slice(cuts[rank], cuts[rank + 1] - cuts[rank]))

    with RankGroup(rank, ranks, master_port=own["port"], timeout_s=600) as group:
        began = time.monotonic()
        teacher = Teacher(teacher_of(own["width"]), schema, TASKS, 1, group=group, sharding=sharding)
        told |= {"built_s": time.monotonic() - began, "built": process.memory_info().rss}
        if restores:
            began = time.monotonic()
            teacher.load_state(open_checkpoint(root / NAME).tensors)
            told |= {"restored_s": time.monotonic() - began, "restored": process.memory_info().rss}
            np.save(root / f"restored-{rank}.npy", teacher.score(mine(seed=9)))
        took, losses = [], []
        first = own["steps"] if restores else 0
        for step in range(first, first + own["steps"]):
            batch = mine(seed=100 + step)
            began = time.monotonic()
            losses.append(teacher.train_step(batch).loss)
            took.append(time.monotonic() - began)
        told |= {"step_ms": 1e3 * float(np.median(took)), "trained": process.memory_info().rss}
        told |= {"first_loss": losses[0], "last_loss": losses[-1]}
        if not restores:
            np.save(root / f"saved-{rank}.npy", teacher.score(mine(seed=9)))
            state = teacher.state()
            told |= {"copied": process.memory_info().rss}
            began = time.monotonic()
            save_checkpoint(root, NAME, state, {}, together=Together(rank, ranks, group.token))
            told |= {"saved_s": time.monotonic() - began}
        teacher.close()
    told["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (root / f"{own['stage']}-{rank}.json").write_text(json.dumps(told))
    report(own, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000, help="embedding rows in all")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--ranks", type=int, nargs=2, default=[4, 2], help="that save, that restore")
    parser.add_argument("--memory-gb", type=float, default=2.2, help="per rank, for tables and their accumulators")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    schema, trains, restores = features(options.rows), *options.ranks
    whole = sum(feature.rows for feature in schema.sparse) * (options.width + 1) * 4
    print(f"{options.rows:,} rows × {options.width}: {whole / GB:.2f} GiB with accumulators")
    limited = Sharding(memory_gb=options.memory_gb)
    alone = find_plan(PlanQuestion(schema, teacher_of(options.width), limited, batch_rows=BATCH), quick=True)
    print(f"one rank: {alone}" if isinstance(alone, Shortage) else "one rank would do")
    settings = {"rows": options.rows, "width": options.width, "memory_gb": options.memory_gb, "steps": options.steps}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for stage, ranks in (("train", trains), ("restore", restores)):
            launch(__file__, ranks, settings | {"stage": stage, "root": folder}, timeout_s=900)
            for rank in range(ranks):
                told = json.loads((root / f"{stage}-{rank}.json").read_text())
                shown = {k: f"{v / GB:.2f} GiB" if isinstance(v, int) else f"{v:.3g}" for k, v in told.items()}
                print(stage, rank, ", ".join(f"{key} {value}" for key, value in shown.items()))
        saved = np.concatenate([np.load(root / f"saved-{r}.npy") for r in range(trains)])
        restored = np.concatenate([np.load(root / f"restored-{r}.npy") for r in range(restores)])
        size = sum(file.stat().st_size for file in (root / NAME).iterdir())
        print(f"checkpoint {size / GB:.2f} GiB; logits before and after differ by {np.abs(saved - restored).max():.1e}")


if __name__ == "__main__":
    if (settings := settings_of_this_rank()) is None:
        main()
    else:
        set_threads(1)
        held_by_this_rank(settings)
