"""What a group of ranks that scores for augmentation holds and does, beside a replica.

    python -m tests.benchmarks.bench_scoring_ranks [--rows 4000000] [--ranks 1 2 4] [--seconds 5]

A teacher with one table of ROWS × 16 (and small ones) is saved once. Then 1 rank (a replica), 2, 4 … load it and score
blocks of 16,384 rows in batches of 4,096. Printed: table bytes in each process, its peak resident memory beyond what
it had with every library imported and before any table, and rows scored a second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MB = 1 << 20
TYPES = {"types": ["table_wise", "row_wise"], "tables": {"user_id": "row_wise"}}
RANK = """
import json, resource, sys, time
from exfm.threads import set_threads; set_threads(1)
from pathlib import Path
from pipelines.config import parse
from pipelines.run_dir.paths import RunDir
from pipelines.workers.worker import Orders, Rendezvous
from pipelines.workers.ranks import Ranks
from pipelines.workers.augmentation.scoring import ScoringWorker, scorer_of
from tests.benchmarks.bench_scoring_ranks import held_bytes, measured
rank, ranks, port, seconds, root = *map(int, sys.argv[1:5]), Path(sys.argv[5])
config, at = parse(json.loads(sys.argv[6])), Rendezvous(rank, ranks, port=port)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
rate = 0.0
if rank == 0:
    joined = Ranks(at)
    scorer = scorer_of(config, joined.group)
    scorer.load(RunDir(root).snapshots / "v00000001")
    rate = measured(config, scorer, seconds)
    scorer.leave()
else:
    scorer = ScoringWorker(config, RunDir(root), at)
    scorer.open()
    scorer.advance(0.0, Orders())
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([rank, held_bytes(scorer), after - before, rate]))
"""


def config_of(rows: int, ranks: int) -> Any:
    from tests.support.pipelines.small_runs import small

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
from exfm.tensors.checkpoint import save
from exfm.models.scorer import TeacherScorer
from pipelines.config import parse
from pipelines.run_dir.paths import RunDir
config = parse(json.loads(sys.argv[1]))
net = TeacherScorer(config.teacher.model, config.features, config.tasks)._net
tensors = {f"dense/{n}": p.detach() for n, p in net.named_parameters() if not n.startswith("tables.")}
tensors |= {f"table/{n}/weight": bag.weight.detach() for n, bag in net.tables.embedding_bags.items()}
save(RunDir(Path(sys.argv[2])).snapshots, "v00000001", tensors, {"lake_seq": 0}, kind="teacher-snapshot")
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, dumped(config), str(root)], check=True)


def dumped(config: Any) -> str:
    return json.dumps(config.model_dump(mode="json"))


def held_bytes(scorer: Any) -> int:
    """Of tables, in this process."""
    if hasattr(scorer, "_shards"):
        return int(sum(w.numel() * w.element_size() for w in scorer._shards.held))
    tables = scorer._scorer._net.tables
    return int(sum(p.numel() * p.element_size() for p in tables.parameters()))


def measured(config: Any, scorer: Any, seconds: float) -> float:
    """Rows scored a second, batch after batch."""
    from tests.contracts.test_scoring_ranks import rows

    batch = rows(config.augmentation.score_rows)
    scorer.score(batch)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        scorer.score(batch)
        count += batch.num_rows
    return count / (time.perf_counter() - start)


def measure(rows: int, ranks: int, root: Path, seconds: int = 1) -> list[tuple[int, int, float]]:
    """(bytes of tables held, peak resident memory beyond the libraries', rows a second) of each rank."""
    from tests.contracts.test_scoring_ranks import free_port

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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=4_000_000)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options.add_argument("--seconds", type=int, default=5)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_snapshot(config_of(asked.rows, 1), Path(folder))
        print(f"{'ranks':>5} {'tables in each, MB':>24} {'peak beyond libraries, MB':>28} {'rows/s':>10}")
        for ranks in asked.ranks:
            found = measure(asked.rows, ranks, Path(folder), asked.seconds)
            held = " ".join(f"{h / MB:.0f}" for h, _, _ in found)
            peak = " ".join(f"{p / MB:.0f}" for _, p, _ in found)
            print(f"{ranks:>5} {held:>24} {peak:>28} {found[0][2]:>10,.0f}", flush=True)


if __name__ == "__main__":
    main()
