"""The teacher's ranks as plain processes, without Ray, over a lake and a topic that a finished run has left.

learned = taught(finished, tmp_path / "two", ranks=2)
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipelines.config import dump
from pipelines.layout import RunDir
from tests.contracts.pipeline_fixtures import Finished

PATIENCE_S = 120
RANK = """
import dataclasses, json, logging, sys
from pipelines.run import build_worker
from pipelines.workers.base import Orders, Rendezvous
logging.basicConfig(level=logging.INFO)
asked = json.loads(sys.argv[1])
at = Rendezvous(asked["rank"], asked["ranks"], "127.0.0.1", asked["port"])
worker = build_worker("teacher", "", asked["config"], asked["root"], asked["servers"], True, at)
worker.open()
report = worker.report()
while not report.done and report.teacher_version < asked["until"]:
    report = worker.advance(0.05, Orders(end_seq=asked["end_seq"]))
worker.close()
print(json.dumps(dataclasses.asdict(worker.report())))
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


def taught(
    finished: Finished, root: Path, ranks: int, *, until: int = 10**9, end_seq: int | None = None, **changes: Any
):
    """Have `ranks` processes learn the topic, from where the run at `root` stands to the end of the lake or to version
    `until`; returns what each of them reports last."""
    if not root.exists():
        new_run(finished, root)
    config = finished.config.model_copy(update={"teacher": finished.config.teacher.model_copy(update=changes)})
    asked = {
        "config": dump(config),
        "root": str(root),
        "servers": config.kafka.bootstrap_servers,
        "ranks": ranks,
        "port": free_port(),
        "end_seq": finished.lake.num_rows - 1 if end_seq is None else end_seq,
        "until": until,
    }
    with ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            log = stack.enter_context((root / f"rank{rank}.log").open("w"))
            command = [sys.executable, "-W", "ignore", "-c", RANK, json.dumps(asked | {"rank": rank})]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ)
            stack.callback(process.kill)
            processes.append(process)
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
        for rank, process in enumerate(processes):
            assert process.returncode == 0, (root / f"rank{rank}.log").read_text()[-3000:]
    return [json.loads(text.splitlines()[-1]) for text in said]
