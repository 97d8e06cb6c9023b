"""The teacher's ranks as plain processes, without Ray, over a lake and a topic that a finished run has left.

reports = taught(finished, tmp_path / "two", ranks=2)
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipelines.config import dump
from pipelines.layout import RunDir
from tests.contracts.pipeline_fixtures import Finished

PATIENCE_S = 150
RANK = """
import dataclasses, json, logging, sys
from pipelines.run import build_worker
from pipelines.workers.base import Orders, Rendezvous
logging.basicConfig(level=logging.INFO)
asked = json.loads(sys.argv[1])
at = Rendezvous(asked["rank"], asked["ranks"], "127.0.0.1", asked["port"])
worker = build_worker("teacher", "", asked["config"], asked["root"], asked["servers"], True, at)
worker.open()
sums = lambda: {t: p.lifetime_tally().sums for t, p in worker._judge._progress.items()}
before, block_end = sums(), worker._block_end
def told(agreed):
    global before
    block_end(agreed)
    now = sums()
    loss = {t: float((now[t] - before[t])[2] / max((now[t] - before[t])[0], 1)) for t in now}
    before = now
    print(json.dumps({"block": agreed.portion.block.number, "loss": loss}), flush=True)
worker._block_end = told
report = worker.report()
while not report.done and report.teacher_version < asked["until"]:
    report = worker.advance(0.05, Orders(end_seq=asked["end_seq"]))
worker.close()
print(json.dumps(dataclasses.asdict(worker.report())), flush=True)
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def new_run(finished: Finished, root: Path) -> RunDir:
    """A run directory with the finished run's lake, and no checkpoints."""
    run_dir = RunDir(root)
    run_dir.lake.parent.mkdir(parents=True)
    run_dir.lake.symlink_to(finished.run_dir.lake, target_is_directory=True)
    return run_dir


@contextmanager
def started(
    finished: Finished, root: Path, ranks: int, *, until: int = 10**9, **changes: Any
) -> Iterator[list[subprocess.Popen[str]]]:
    """`ranks` processes that learn the topic, from where the run at `root` stands to the end of the lake or to version
    `until`. Each prints a line of JSON at every block's end, and its report as the last. `changes`: of the teacher."""
    if not root.exists():
        new_run(finished, root)
    config = finished.config.model_copy(update={"teacher": finished.config.teacher.model_copy(update=changes)})
    asked = {
        "config": dump(config),
        "root": str(root),
        "servers": config.kafka.bootstrap_servers,
        "ranks": ranks,
        "port": free_port(),
        "end_seq": finished.lake.num_rows - 1,
        "until": until,
    }
    with ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            log = stack.enter_context((root / f"rank{rank}.log").open("w"))
            command = [sys.executable, "-W", "ignore", "-c", RANK, json.dumps(asked | {"rank": rank})]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def taught(finished: Finished, root: Path, ranks: int, *, until: int = 10**9, **changes: Any) -> list[dict[str, Any]]:
    """As `started`, to its end: what each rank reports last."""
    with started(finished, root, ranks, until=until, **changes) as processes:
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
        for rank, process in enumerate(processes):
            assert process.returncode == 0, (root / f"rank{rank}.log").read_text()[-3000:]
    return [json.loads(text.splitlines()[-1]) for text in said]
