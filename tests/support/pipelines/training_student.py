"""The student `feed` of a stored run, in training, in a process of its own; one word a line on its standard input.

    python -m tests.support.pipelines.training_student ROOT STEPS_A_SECOND

`end`: it closes, and says what it predicts of ROWS itself: {"predictions": […], "lake_seq": …}. It goes on from its
last checkpoint, as any worker does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from exfm.metrics.classification import sigmoid
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.feeds.student import StudentBatch
from pipelines.live.workers.student.worker import StudentWorker
from tests.support.pipelines.stored_run import rows_of
from tests.support.waiting import PATIENCE_S

BLOCK = 32


class TrainingStudent:
    """The process, from the outside."""

    def __init__(self, root: Path, steps_a_second: float = 50.0) -> None:
        words = [sys.executable, "-m", "tests.support.pipelines.training_student", str(root), str(steps_a_second)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self) -> dict[str, Any]:
        said = json.loads(self.process.communicate("end\n", timeout=PATIENCE_S)[0].splitlines()[-1])
        assert self.process.returncode == 0
        return dict(said)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def train(root: Path, every_s: float) -> None:
    run_dir = RunDir(root)
    config = load(run_dir.config)
    worker = StudentWorker(config, config.student("feed"), run_dir)
    worker.resume()
    worker.state.record.predictions.open(worker.position)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
    block = (worker.position + 1) // BLOCK
    due = time.monotonic()
    while True:  # one block at least, however soon it is to end
        rows = rows_of(block, BLOCK)
        worker.learn(StudentBatch(rows, worker.build(rows)))
        assert worker.increments is not None
        worker.increments.publish()
        if over.is_set():
            break
        block, due = block + 1, due + every_s
        over.wait(max(0.0, due - time.monotonic()))
    student, position = worker.state.engine.student, worker.position
    worker.close()
    from tests.support.pipelines.served_runs import ROWS

    batch = worker.build(pa.Table.from_pylist(ROWS).cast(pa.schema({n: rows.schema.field(n).type for n in ROWS[0]})))
    say({"predictions": sigmoid(student.score(batch))[:, 0].tolist(), "lake_seq": position})


def say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), 1 / float(sys.argv[2]))
