"""What a replay costs beyond its engines: rows per second of one arm and of four, against the bare engine on tensors in
memory; what one arm more costs; and whether memory grows with the stream.

    python -m tests.benchmarks.replay --rows 1000000

Rows are the demo's, settled; logits are drawn, since it does not matter to speed what they say. One core.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.machine import set_threads
from exfm.models.engine import StudentEngine
from pipelines.core.config.settings import load as load_config
from pipelines.lab.data import data_of
from pipelines.lab.replay.jobs import StudentJob
from pipelines.lab.replay.settings import Spec
from pipelines.lab.replay.store import TrainRequest
from pipelines.lab.replay.stream import Stream, stream_of
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.arms import ArmSpec
from pipelines.lab.spec.conditions import Condition

WARM_ROWS = 20_000
BARE_ROWS = 200_000
ARMS = 4


class Drawn(Workspace):
    """A stream whose logits are made up."""

    def lake(self, seed: int, condition: Condition, student: Any = None, twin: Any = None) -> Stream:
        def logits(table: pa.Table, offset: int) -> np.ndarray:
            waves = np.sin(0.37 * np.arange(offset, offset + table.num_rows))[:, None] - 2
            return np.repeat(waves, len(self.config.tasks), axis=1).astype(np.float32)

        return Stream(self.rows(seed), self.of(seed), condition, logits, of_a_lake=False)


def place_of(folder: Path, rows: int) -> Drawn:
    config = load_config("configs/demo.yaml", [f"source.impressions={rows}"])
    student = config.students[0].model_copy(update={"verticals": "all", "twin": False})
    config = config.model_copy(update={"students": (student,)})
    arms = {f"arm {n}": ArmSpec() for n in range(ARMS)}
    return Drawn(Spec(config="-", seeds=(1,), arms=arms, baselines=("arm 0",), rows=rows), config, folder, None)


def bare(workspace: Drawn) -> float:
    """Rows per second of the engine alone, on tensors in memory."""
    config = workspace.of(1)
    (student,) = config.students
    stream = stream_of(workspace, 1, Condition()).first(BARE_ROWS)
    batches = [each.batch for each in data_of(stream, config, student).stream]
    features, tasks = config.student_features(student), config.student_tasks(student)
    engine = StudentEngine(student.model, features, tasks, 1, full_batch=student.batch_rows)
    rows, began = 0, 0.0
    for batch in batches:
        if rows < WARM_ROWS <= rows + len(batch):
            began, before = time.process_time(), rows + len(batch)
        engine.step(batch)
        rows += len(batch)
    return (rows - before) / (time.process_time() - began)


def replayed(workspace: Drawn, arms: int) -> dict[str, float]:
    """Seconds and memory of a process that replays so many arms; none: that only reads, hashes and builds."""
    (student,) = workspace.config.students
    with tempfile.TemporaryDirectory(dir=workspace.folder) as folder:
        cells = [TrainRequest(1, student, Condition(), Path(folder) / f"{n}.npz") for n in range(arms)]
        told: list[int] = []
        began = time.process_time()
        if arms:
            StudentJob(workspace, False, tuple(cells)).run(told.append)
        else:
            data = data_of(
                stream_of(workspace, 1, Condition()), workspace.of(1), student, folder=workspace.folder, held_rows=0
            )
            told = [len(each.rows) for each in data.stream]
        seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"rows": sum(told), "seconds": seconds, "peak_mb": peak / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--folder", type=Path, help="where the rows are kept; default: nowhere")
    parser.add_argument("--arms", type=int, help="(of its own processes)")
    asked = parser.parse_args()
    set_threads(1)
    if asked.arms is not None:
        print(json.dumps(replayed(place_of(asked.folder, asked.rows), asked.arms)))
        return
    with tempfile.TemporaryDirectory() as made:
        folder, rows, small = asked.folder or Path(made), asked.rows, asked.rows // 4
        for count in (small, rows):
            place_of(folder, count).rows(1)
        speeds = [bare(place_of(folder, rows))]
        asked_of = [(rows, 0), (rows, 1), (rows, ARMS), (small, ARMS)]
        read, one, four, short = (own(folder, *count) for count in asked_of)
        speeds.append(bare(place_of(folder, rows)))
    speed, of_four = sum(speeds) / 2, four["rows"] / four["seconds"]
    print(f"rows                         {rows:,}; load {os.getloadavg()[1]:.1f}, {os.cpu_count()} cores")
    print(f"bare engine                  {speed:,.0f} rows/s (before {speeds[0]:,.0f}, after {speeds[1]:,.0f})")
    print(f"reading, hashing, building   {read['rows'] / read['seconds']:,.0f} rows/s")
    print(f"replay, {ARMS} arms               {of_four:,.0f} rows/s of an arm")
    print(f"replay against bare          {of_four / speed:.2f}    target 0.80")
    more = (four["seconds"] - one["seconds"]) / (ARMS - 1)
    print(f"one arm more, of the first   {more / one['seconds']:.2f}    target 0.60 at most")
    print(f"peak memory                  {short['peak_mb']:,.0f} MB of {small:,} rows, {four['peak_mb']:,.0f} MB")


def own(folder: Path, rows: int, arms: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.replay", "--folder", str(folder), "--rows", str(rows)]
    done = subprocess.run([*command, "--arms", str(arms)], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    main()
