"""A group of ranks that scores for augmentation: what each holds, and how fast."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.snapshots.checkpoint import open_checkpoint
from streaming.ports import free_port
from tests.support.pipelines.small_runs import small

TYPES = {"types": ["table_wise", "row_wise"], "tables": {"user_id": "row_wise"}}


RANK = """
import json, resource, sys, time
from exfm.machine import set_threads; set_threads(1)
from pathlib import Path
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.worker import Orders
from pipelines.live.workers.ranks import Ranks
from pipelines.live.workers.augmentation.scoring import ScoringWorker
from pipelines.live.workers.augmentation.scoring import scorer_of
from tests.support.ranks.scoring_ranks import held_bytes, measured
rank, ranks, port, seconds, root = *map(int, sys.argv[1:5]), Path(sys.argv[5])
config, at = parse(json.loads(sys.argv[6])), Rendezvous(rank, ranks, port=port)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
rate = 0.0
if rank == 0:
    joined = Ranks(at)
    scorer = scorer_of(config, joined)
    scorer.load(RunDir(root).snapshots / "v00000001")
    rate = measured(config, scorer, seconds)
    scorer.leave()
else:
    scorer = ScoringWorker(config, RunDir(root), at)
    scorer.open()
    scorer.advance(0.0, Orders())
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([rank, held_bytes(scorer, RunDir(root).snapshots / "v00000001"), after - before, rate]))
"""


def config_of(rows: int, ranks: int) -> Any:
    sparse = [
        {"name": "user_id", "rows": rows},
        {"name": "ad_id", "rows": 1000},
        {"name": "vertical", "rows": 16},
        {"name": "interest_0", "rows": 5, "transform": "index"},
    ]
    model = {"width": 16, "layers": 2}
    return small(
        "nowhere:1",
        features__sparse=sparse,
        teacher__model=model,
        augmentation__ranks=ranks,
        augmentation__sharding=TYPES if ranks > 1 else {},
    )


def save_snapshot(config: Any, root: Path) -> None:
    """In a process of its own: whoever measures has never held a table."""
    code = """
import json, sys
from pathlib import Path
from exfm.models.teacher import Teacher
from exfm.snapshots.checkpoint import save_checkpoint
from pipelines.core.config.evolve import made_with_teacher
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
config = parse(json.loads(sys.argv[1]))
teacher = Teacher(config.teacher.model, config.features, config.tasks, 0)
meta = {"lake_seq": 0, "made_with": made_with_teacher(config).model_dump(mode="json")}
save_checkpoint(RunDir(Path(sys.argv[2])).snapshots, "v00000001", teacher.snapshot(), meta, kind="teacher-snapshot")
teacher.close()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, dumped(config), str(root)], check=True)


def dumped(config: Any) -> str:
    return json.dumps(config.model_dump(mode="json"))


def held_bytes(scorer: Any, snapshot: Path) -> int:
    """Of tables, in this process: a rank's shards; a replica holds the tables of its snapshot whole."""
    if hasattr(scorer, "shards"):
        return int(sum(w.numel() * w.element_size() for w in scorer.shards.held))
    tables = (t for name, t in open_checkpoint(snapshot).tensors.items() if name.startswith("table/"))
    return int(sum(t.shape.numel() * t.dtype.itemsize for t in tables))


def measured(config: Any, scorer: Any, seconds: float) -> float:
    """Rows scored a second, batch after batch."""

    batch = rows(config.augmentation.score_rows)
    scorer.score(batch)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        scorer.score(batch)
        count += batch.num_rows
    return count / (time.perf_counter() - start)


def measure(rows: int, ranks: int, root: Path, seconds: int = 1) -> list[tuple[int, int, float]]:
    """(bytes of tables held, peak resident memory beyond the libraries', rows a second) of each rank."""
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    tail = [str(ranks), str(free_port()), str(seconds), str(root), dumped(config_of(rows, ranks))]
    processes = [
        subprocess.Popen([*command, str(rank), *tail], stdout=subprocess.PIPE, text=True) for rank in range(ranks)
    ]
    try:
        told = [json.loads(process.communicate(timeout=280)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(held, peak, rate) for _, held, peak, rate in told]


def rows(count: int, seed: int = 0) -> pa.RecordBatch:
    drawn = np.random.default_rng(seed)
    return pa.record_batch(
        {
            "impression_id": np.arange(count),
            "user_id": drawn.integers(0, 5000, count),
            "ad_id": drawn.integers(0, 5000, count),
            "vertical": drawn.choice(["feed", "shop", "video"], count),
            "interest_0": drawn.integers(0, 5, count),
            "bid": drawn.random(count).astype(np.float32),
        }
    )
