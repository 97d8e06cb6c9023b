"""Ranks for tests: one process imports torch (seconds), and its forks are the ranks of many small trainings.

    python spawned_ranks.py JOBS.json ROOT

JOBS: a list of objects with `name`, `ranks`, and what `train` takes. What a job leaves is ROOT/<name>.<rank>.pt.
"""

import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from exfm.batch import BatchBuilder
from exfm.features import FeatureSet, SparseFeature
from exfm.pieces import Pieces, whole
from exfm.ranks import RankGroup
from exfm.sharding import Sharding
from exfm.teacher import Teacher
from exfm.teacher_net import TeacherConfig
from exfm.threads import set_threads

TASKS = ["ctr", "cvr"]
FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="ad", rows=50, transform="index"),
        SparseFeature(name="user", rows=83, width=16, transform="index"),
        SparseFeature(name="tiny", rows=3, transform="index"),  # fewer rows than ranks
        SparseFeature(name="bag", rows=97, width=16, transform="index"),  # several ids, or none
    ]
)
CFG = dict(width=8, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))
STEPS, ROWS = 20, 40
TIMEOUT_S = 60.0


def batches(bags: bool):
    """Global batches. With `bags`, bags of 0 to 4 ids; else at most 2, and no row looked up more than twice: no sum of
    a table's float32 has more than two terms then, and rounds the same whatever is cut."""
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        rows = 0 if step == 7 else ROWS
        if bags:
            ids = {"ad": rng.integers(0, 50, rows), "user": rng.integers(0, 83, rows), "tiny": rng.integers(0, 3, rows)}
            lists = [rng.integers(0, 97, n).tolist() for n in rng.integers(0, 5, rows)]
        else:
            ids = {"ad": twice(rng, 50, rows), "user": twice(rng, 83, rows), "tiny": few(rng, rows)}
            lists = twice(rng, 97, 2 * rows).reshape(rows, 2).tolist()
        columns = {name: pa.array(values, pa.int64()) for name, values in ids.items()}
        columns["bag"] = pa.array(lists, pa.list_(pa.int64()))
        columns["label_ctr"] = pa.array(rng.integers(0, 2, rows).astype("i1"))
        columns["label_cvr"] = pa.array(rng.integers(0, 2, rows).astype("i1"), mask=rng.random(rows) < 0.5)
        yield pa.table(columns)


def twice(rng, table_rows, count):
    return rng.permutation(np.repeat(np.arange(table_rows), 2))[:count]


def few(rng, count):
    """Ids of a table of 3 rows, each at most twice, else none."""
    ids = np.full(count, -1)
    ids[: min(count, 6)] = np.repeat(np.arange(3), 2)[: min(count, 6)]
    return [None if i < 0 else i for i in rng.permutation(ids).tolist()]


def cuts(step: int, ranks: int) -> list[int]:
    """Where the ranks' shares of a global batch begin and end: unequal, and every so often empty."""
    rng = np.random.default_rng((step, ranks))
    inner = np.sort(rng.integers(0, ROWS + 1, ranks - 1))
    if step % 4 == 0:
        inner[:] = 0  # all rows are the last rank's
    if step % 4 == 1:
        inner[:] = ROWS  # all rows are the first rank's
    return [0, *inner.tolist(), ROWS]


def start(teacher: Teacher) -> None:
    """Heads start at zero, so the tables' first gradients are next to nothing, and AdaGrad, dividing by their size,
    would make rounding large. It is sharding that is compared here: start where heads have learned something."""
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in sorted(teacher._dense.items()):
            if name.startswith("heads") and not p.any():
                p.copy_(torch.empty(p.shape).normal_(0, 0.3, generator=drawn))


def train(group, *, sharding=None, cfg=None, bags=True, ahead=False, equal=False):
    build = BatchBuilder(FEATURES, TASKS)
    cfg = TeacherConfig(**CFG, **(cfg or {}))
    teacher = Teacher(cfg, FEATURES, TASKS, 0, group=group, sharding=Sharding(**(sharding or {})))
    start(teacher)
    mine = []
    for step, rows in enumerate(batches(bags)):
        at = cuts(step, group.world_size)
        if equal:
            at = [ROWS * r // group.world_size for r in range(group.world_size + 1)]
        mine.append(build(rows[at[group.rank] : at[group.rank + 1]]))
    losses = []
    prepared = teacher.prepare(mine[0]) if ahead else mine[0]
    for step in range(STEPS):
        this, following = prepared, mine[min(step + 1, STEPS - 1)]
        prepared = teacher.prepare(following) if ahead and step + 1 < STEPS else following
        result = teacher.train_step(this)
        assert result.finite, f"step {step} is not finite"
        losses.append(result.loss)
    kinds = {name: p.sharding_type for name, p in teacher.plan.plan["tables"].items()}
    ranks = {name: p.ranks for name, p in teacher.plan.plan["tables"].items()}
    return {"state": teacher.state(), "losses": losses, "kinds": kinds, "ranks": ranks}


def rank_main(rank: int, jobs: list[dict], ports: dict[int, int], root: Path) -> None:
    set_threads(1)
    for ranks in sorted({job["ranks"] for job in jobs}):
        if rank >= ranks:
            continue
        with RankGroup(rank, ranks, master_port=ports[ranks] if ranks > 1 else None, timeout_s=TIMEOUT_S) as group:
            for job in jobs:
                if job["ranks"] == ranks:
                    began = time.perf_counter()
                    kwargs = {k: v for k, v in job.items() if k not in ("name", "ranks")}
                    try:
                        result = train(group, **kwargs)
                    except Exception as error:
                        raise RuntimeError(f"job {job['name']}, rank {rank}") from error
                    torch.save(result | {"seconds": time.perf_counter() - began}, root / f"{job['name']}.{rank}.pt")


def read(root: Path, name: str) -> dict:
    """What a job left, its state whole; all ranks must agree on what they all have."""
    ranks = [torch.load(path, weights_only=False) for path in sorted(root.glob(f"{name}.*.pt"))]
    state = {}
    for key, value in ranks[0]["state"].items():
        if isinstance(value, Pieces):
            pieces = [piece for rank in ranks for piece in rank["state"][key].pieces]
            state[key] = whole(Pieces(value.shape, pieces))
        else:
            assert key == "rng" or all(torch.equal(value, rank["state"][key]) for rank in ranks), key
            state[key] = value
    assert all(rank["losses"] == ranks[0]["losses"] for rank in ranks)
    return ranks[0] | {"state": state}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def main() -> int:
    jobs, root = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    ports = {ranks: free_port() for ranks in {job["ranks"] for job in jobs}}
    children = {}
    for rank in range(max(job["ranks"] for job in jobs)):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                rank_main(rank, jobs, ports, root)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                if code or os.environ.get("SKIP_EXIT"):
                    os._exit(code)
            sys.exit(0)
        children[pid] = rank
    failed, until = 0, time.monotonic() + float(os.environ.get("RANKS_TIMEOUT_S", TIMEOUT_S))
    try:
        while children and time.monotonic() < until:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                time.sleep(0.02)
                continue
            rank = children.pop(pid)
            if status:
                failed += 1
                print(f"rank {rank} ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
                break
    finally:
        for pid, rank in children.items():
            print(f"rank {rank} is killed", file=sys.stderr)
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
