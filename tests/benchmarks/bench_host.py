"""What a student costs that shares a process with others, and what the lake costs a student.

    python -m tests.benchmarks.bench_host [--rows 120000] [--rounds 3] [--students 8] [--lake FOLDER]

A lake of the demo's stream (configs/demo.yaml; the teacher's logits are any: what is asked is time), and students of
the demo's size. Every figure is core time of a whole process, threads included, from the moment its students are open;
a ratio is of one round, and the median of the rounds is printed.

1. Alone against so many on one host, all on the same rows with different arms: what the second to the last student cost
   per row, as a share of what the first costs alone.
2. The same with a vertical each, so that no row is shared.
3. For both, the bare engine on the same batches, made before: a backfill's rows a second as a share of its.

What the first student learned must be the same alone and with others, to the bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from exfm.machine import set_threads
from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint
from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.host import Host
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.worker import Orders
from streaming.lake.reader import LakeReader
from tests.support.pipelines.written_lakes import write_lake

CONFIG = "configs/demo.yaml"
ARMS: list[dict[str, Any]] = [
    {},
    {"weight": 8},
    {"weight": 4, "single_head_weight": 0},
    {"rows": "labelled"},
    {"weight": 2, "single_head_weight": 8},
    {"weight": 32},
    {"gradient_scale": 1.0},
    {"weight": 1},
]
"""Over the demo's own."""


def config_of(kind: str, count: int, overrides: list[str]) -> Config:
    """Students that share all rows (`same`), or none (`own`)."""
    students = [
        {"name": f"s{n}", "model": {"arm": ARMS[n % len(ARMS)]}, "verticals": "all" if kind == "same" else [f"v{n}"]}
        for n in range(count)
    ]
    return load(CONFIG, [f"students={json.dumps(students)}", "registry.publish_every_rows=1000000000", *overrides])


def hosted(kind: str, count: int, lake: str, overrides: list[str]) -> dict[str, Any]:
    """So many students on one host, to the lake's end: core time and rows of all, and where it went."""
    config = config_of(kind, count, overrides)
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir(Path(folder))
        run_dir.lake.parent.mkdir(parents=True)
        run_dir.lake.symlink_to(lake)
        host = Host(f"{folder}/host.log", 10)
        workers: dict[str, StudentWorker] = {}

        def build(name: str, at: Rendezvous) -> StudentWorker:
            workers[name] = StudentWorker(config, config.student(name), run_dir)
            return workers[name]

        for student in config.students:
            host.open(student.name, partial(build, student.name), f"{folder}/{student.name}.log", Rendezvous())
        orders = Orders(end_seq=LakeReader(run_dir.lake, config.rows).last_lake_seq)
        began, wall = time.process_time(), time.perf_counter()
        left = list(workers)
        while left:
            left = [name for name in left if not host.advance(name, 0.5, orders).done]
        cpu_s, wall_s = time.process_time() - began, time.perf_counter() - wall
        phases: Counter[str] = Counter()
        for worker in workers.values():
            phases.update(worker.watch.phases_s)
        rows = sum(worker.rows for worker in workers.values())
        for name in list(workers):
            host.close(name)
        ends = {name: _digest(run_dir, f"student-{name}") for name in workers}
    return {"cpu_s": cpu_s, "wall_s": wall_s, "rows": rows, "phases": dict(phases), "ends": ends}


def bare(kind: str, lake: str, overrides: list[str]) -> dict[str, Any]:
    """The first student's engine alone, on the batches of the whole lake, which are made before."""
    config = config_of(kind, 1, overrides)
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = RunDir(Path(folder))
        run_dir.lake.parent.mkdir(parents=True)
        run_dir.lake.symlink_to(lake)
        worker = StudentWorker(config, config.students[0], run_dir)
        worker.open()
        assert worker.feed is not None
        worker.feed.end_at(LakeReader(run_dir.lake, config.rows).last_lake_seq)
        batches = [batch.tensors for batch in worker.feed]
        began, wall = time.process_time(), time.perf_counter()
        for batch in batches:
            worker.state.engine.step(batch)
        cpu_s, wall_s = time.process_time() - began, time.perf_counter() - wall
        worker.abandon()
    return {"cpu_s": cpu_s, "wall_s": wall_s, "rows": sum(map(len, batches))}


def _digest(run_dir: RunDir, name: str) -> str:
    """Of all tensors of a worker's last checkpoint."""
    newest = latest_checkpoint(run_dir.checkpoints(name))
    assert newest is not None
    found = hashlib.blake2b(digest_size=8)
    for key, tensor in sorted(load_checkpoint(newest).tensors.items()):
        found.update(key.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def in_a_process(what: str, *given: Any) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--do", json.dumps([what, *given])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "ARROW_IO_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=120_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--students", type=int, default=8)
    options.add_argument("--lake", type=Path, help="keep the lakes there")
    options.add_argument("--set", action="append", default=[])
    options.add_argument("--do", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.do:
        what, *given = json.loads(asked.do)
        print(json.dumps({"hosted": hosted, "bare": bare}[what](*given)))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = asked.lake or Path(folder)
        for kind, verticals in (("same", 4), ("own", asked.students)):
            lake = root / f"{kind}-{asked.rows}-{verticals}"
            if not lake.exists():
                write_lake(lake, config_of(kind, 1, []), asked.rows, [f"v{n}" for n in range(verticals)])
            shares, backfills = [], []
            for _ in range(asked.rounds):
                alone, many = (in_a_process("hosted", kind, n, str(lake), asked.set) for n in (1, asked.students))
                per_row = [1e6 * found["cpu_s"] / found["rows"] for found in (alone, many)]
                rest = (many["cpu_s"] - alone["cpu_s"]) / (many["rows"] - alone["rows"])
                shares.append(rest * alone["rows"] / alone["cpu_s"])
                for found, each in zip((alone, many), per_row, strict=True):
                    spent = {k: round(1e6 * v / found["rows"], 1) for k, v in sorted(found["phases"].items())}
                    print(f"{len(found['ends'])} students: {each:.1f} µs of core a row; by phase {spent}", flush=True)
                engine = in_a_process("bare", kind, str(lake), asked.set)
                backfills.append(engine["cpu_s"] * alone["rows"] / engine["rows"] / alone["cpu_s"])
                assert alone["ends"].items() <= many["ends"].items(), "results depend on the host"
            print(f"{kind} rows: the second to last student cost {statistics.median(shares):.3f} of the first per row")
            print(f"{kind} rows: a backfill has {statistics.median(backfills):.3f} of the bare engine's rows a second")


if __name__ == "__main__":
    main()
