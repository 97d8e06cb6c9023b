"""Ranks for tests: one process imports torch (seconds), and its forks are the ranks of many small trainings.

    python -m tests.support.ranks.spawned_ranks JOBS.json ROOT TIMEOUT_S DEVICE

JOBS: a list of objects with `name`, `ranks`, and what `train` takes. What a job leaves is ROOT/<name>.<rank>.pt.
On `cuda` ranks are processes of their own: a fork cannot use a GPU that its parent has asked about, as imports do.
"""

import json
import os
import resource
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import torch

from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.machine import set_threads
from exfm.models import bad_rows
from exfm.models.engine import TeacherEngine
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.snapshots.windows import TensorPieces, whole_tensor
from streaming.ports import free_port

TASKS = ["ctr", "cvr"]
FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="ad", rows=50, transform="index"),
        SparseFeature(name="user", rows=83, width=16, transform="index"),
        SparseFeature(name="tiny", rows=3, transform="index"),  # fewer rows than ranks
        SparseFeature(name="bag", rows=97, width=16, transform="index"),  # several ids, or none
    ],
    sequence=[SequenceFeature(name="seen", rows=60, length=3, units=2, transform="index")],
    dense=[
        DenseFeature(name="price", transform="standardise", statistics="online"),
        DenseFeature(name="depth", column="price", transform="quantiles", buckets=4),
    ],
)
CFG = dict(width=8, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,))
STEPS, ROWS = 20, 40
SPOILED, SPOILED_STEPS = (0, 3, ROWS - 1), (4, 5, 11)
PYTHON = [sys.executable, "-W", "ignore", "-m", "tests.support.ranks.spawned_ranks"]


def batches(bags: bool):
    """Global batches. With `bags`, bags of 0 to 4 ids; else at most 2, and no row looked up more than twice: no sum of
    a table's float32 has more than two terms then, and rounds the same whatever is cut."""
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        rows = 0 if step == 7 else ROWS
        if bags:
            ids = {"ad": rng.integers(0, 50, rows), "user": rng.integers(0, 83, rows), "tiny": rng.integers(0, 3, rows)}
            lists = [rng.integers(0, 97, n).tolist() for n in rng.integers(0, 5, rows)]
            seen = [rng.integers(0, 60, n).tolist() for n in rng.integers(0, 5, rows)]
        else:
            ids = {"ad": twice(rng, 50, rows), "user": twice(rng, 83, rows), "tiny": few(rng, rows)}
            lists = twice(rng, 97, 2 * rows).reshape(rows, 2).tolist()
            seen = twice(rng, 60, 3 * rows).reshape(rows, 3).tolist()
        columns = {name: pa.array(values, pa.int64()) for name, values in ids.items()}
        columns |= {"bag": pa.array(lists, pa.list_(pa.int64())), "seen": pa.array(seen, pa.list_(pa.int64()))}
        columns["price"] = pa.array(np.random.default_rng(step).integers(0, 99, rows))
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
        for name, p in sorted(teacher.dense.items()):
            if name.startswith("heads") and not p.any():
                p.copy_(torch.empty(p.shape).normal_(0, 0.3, generator=drawn))


def train(
    group, *, sharding=None, cfg=None, bags=True, ahead=False, broken=None, without=None, spoiled=None, rows=None
):
    """20 steps. `ahead`: every batch is prepared before the step of the one before, and one more is. In step `broken`
    the last rank's rows have infinite weights; step `without` is left out. `spoiled`: the rows SPOILED of some steps
    have infinite weights ("in"), or are not there ("out"). `rows`: of table `user`, only to measure."""
    features = FEATURES if rows is None else large(rows)
    build = BatchBuilder(features, TASKS)
    cfg = TeacherConfig(**CFG, **(cfg or {}))
    began = memory_bytes()
    teacher = Teacher(cfg, features, TASKS, 0, group=group, sharding=Sharding(**(sharding or {})))
    if rows is None:
        start(teacher)
    todo = []
    for step, examples in enumerate(batches(bags)):
        at = cuts(step, group.world_size)
        batch = build(examples[at[group.rank] : at[group.rank + 1]])
        if step == broken and group.rank == group.world_size - 1:
            assert len(batch)
            batch = replace(batch, weights=torch.full_like(batch.weights, torch.inf))
        if spoiled is not None:
            batch = spoil(batch, at[group.rank], spoiled) if step in SPOILED_STEPS else batch
        if step != without:
            todo.append((step, batch))
    losses = []
    engine = TeacherEngine(teacher) if spoiled is not None else None
    if engine is not None:  # rows of any weight reach the step
        bad_rows.LARGEST_INPUT = float("inf")
    learner = engine or teacher
    current = learner.prepare(todo[0][1]) if ahead else todo[0][1]
    for (step, _), (_, following) in zip(todo, [*todo[1:], todo[-1]], strict=True):
        this, current = current, learner.prepare(following) if ahead else following
        result = teacher.train_step(this) if engine is None else engine.step(this).results["teacher"]
        if spoiled == "in":
            assert result.left_out_rows == (len(SPOILED) if step in SPOILED_STEPS else 0), f"step {step}"
        assert result.finite == (step != broken), f"step {step}"
        losses.append(result.loss)
    plan = {name: (p.sharding_type, p.ranks) for name, p in teacher.plan.plan["tables"].items()}
    if rows is not None:
        held = teacher.tables.nbytes
        return {"plan": plan, "losses": losses, "held": held, "taken": memory_bytes() - began, "peak": peak_bytes()}
    return {"state": teacher.state(), "losses": losses, "plan": plan}


def spoil(batch, first, how):
    """Of a batch whose rows lie at `first` of the global one."""
    mine = [row - first for row in SPOILED if first <= row < first + len(batch)]
    bad = torch.zeros(len(batch), dtype=torch.bool)
    bad[mine] = True
    if how == "out":
        return batch.only(~bad)
    return replace(batch, weights=torch.where(bad, torch.inf, batch.weights))


def large(rows: int) -> FeatureSet:
    return FeatureSet(
        sparse=[f.model_copy(update={"rows": rows, "width": 8}) if f.name == "user" else f for f in FEATURES.sparse]
    )


def memory_bytes() -> int:
    """Resident, and this process's alone."""
    return psutil.Process().memory_full_info().uss


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def hold(rank: int, jobs: list[dict], ports: dict[int, int], root: Path, device: str) -> None:
    set_threads(1)
    for ranks in sorted({job["ranks"] for job in jobs}):
        if rank >= ranks:
            continue
        port = ports[ranks] if ranks > 1 else None
        with RankGroup(rank, ranks, master_port=port, timeout_s=60, device=device) as group:
            for job in jobs:
                if job["ranks"] == ranks:
                    began = time.perf_counter()
                    kwargs = {k: v for k, v in job.items() if k not in ("name", "ranks")}
                    try:
                        result = train(group, **kwargs)
                    except Exception as error:
                        raise RuntimeError(f"job {job['name']}, rank {rank}") from error
                    torch.save(result | {"seconds": time.perf_counter() - began}, root / f"{job['name']}.{rank}.pt")


def run(jobs: list[dict], root: Path, timeout_s: float = 200.0, device: str = "cpu") -> None:
    """In one process and its forks. Raises AssertionError if a rank fails, in its shutdown too."""
    (root / "jobs.json").write_text(json.dumps(jobs))
    command = [*PYTHON, str(root / "jobs.json"), str(root), str(timeout_s), device]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s + 60)
    assert done.returncode == 0, done.stderr[-5000:]


def read(root: Path, name: str) -> dict:
    """What a job left, its state whole; all ranks must agree on what they all have."""
    ranks = [torch.load(path, weights_only=False) for path in sorted(root.glob(f"{name}.*.pt"))]
    state = {}
    for key, value in ranks[0]["state"].items():
        if isinstance(value, TensorPieces):
            pieces = [piece for rank in ranks for piece in rank["state"][key].pieces]
            state[key] = whole_tensor(TensorPieces(value.shape, pieces))
        else:
            assert key == "rng" or all(torch.equal(value, rank["state"][key]) for rank in ranks), key
            state[key] = value
    assert all(rank["losses"] == ranks[0]["losses"] for rank in ranks)
    return ranks[0] | {"state": state}


def main() -> int:
    jobs, root, device = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), sys.argv[4]
    if sys.argv[5:]:
        rank, ports = json.loads(sys.argv[5])
        hold(rank, jobs, {ranks: port for ranks, port in ports}, root, device)
        return 0
    ports = {ranks: free_port() for ranks in {job["ranks"] for job in jobs}}
    children = {}
    for rank in range(max(job["ranks"] for job in jobs)):
        if device != "cpu":
            own = [*sys.argv[1:5], json.dumps([rank, list(ports.items())])]
            children[subprocess.Popen([*PYTHON, *own]).pid] = rank
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                hold(rank, jobs, ports, root, device)
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.exit(code)  # in the ordinary way: what fails at shutdown fails the test
        children[pid] = rank
    failed, until = 0, time.monotonic() + float(sys.argv[3])
    try:
        while children and time.monotonic() < until:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                time.sleep(0.02)  # work: the only way to wait for any child, and no longer than so
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
