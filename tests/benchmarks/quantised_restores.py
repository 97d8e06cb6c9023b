"""What a teacher loses where its tables come back from quantised checkpoints, again and again.

    python -m tests.benchmarks.quantised_restores RUN [--rows 300000] [--restores 1,3,20] [--bits 8,4,3,2]

The teacher of a run learns the run's lake anew, each row scored before it is learned. At RESTORES rows, equally far
from each other, its state is saved with tables in so many bits, and it goes on from what is read back; all else, also
accumulators, keeps its bits. NE over the second half, and by how much it is above that of the teacher that was never
restored.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from exfm.features.batch import BatchBuilder
from exfm.models.engine import TEACHER, TeacherEngine
from exfm.models.teacher import Teacher
from exfm.snapshots.quantised_state import as_read
from exfm.snapshots.row_quantisation import Bits
from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.rows import Rows, rows_of

BATCH_ROWS = 512


def second_half(config: Config, rows: Rows, restores: int, bits: Bits | None) -> dict[str, float]:
    """NE of each task over the second half of the rows."""
    features = config.teacher_features
    engine = TeacherEngine(Teacher(config.teacher.model, features, config.tasks, config.seed, full_batch=BATCH_ROWS))
    build, count = BatchBuilder(features, config.tasks), rows.num_rows
    at = {int(count * (n + 1) / (restores + 1)) // BATCH_ROWS for n in range(restores)}
    logits, labels, known = [], [], []
    for number, start in enumerate(range(0, count, BATCH_ROWS)):
        if number in at:
            engine.load(as_read(engine.state(), bits))
        batch = build(rows.slice(start, BATCH_ROWS))
        logits.append(engine.step(batch).results[TEACHER].logits)
        labels.append(batch.labels.numpy())
        known.append(batch.label_mask.numpy())
    found = {}
    half = count // 2
    z, y, m = (np.concatenate(parts)[half:] for parts in (logits, labels, known))
    for t, task in enumerate(config.tasks):
        zt, yt = (of[m[:, t], t].astype(float) for of in (z, y))
        rate = yt.mean()
        loss = (np.logaddexp(0, zt) - yt * zt).mean()
        found[task] = float(loss / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))
    return found


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--restores", type=numbers, default=[1, 3, 20])
    parser.add_argument("--bits", type=numbers, default=[8, 4, 3, 2])
    asked = parser.parse_args()
    run_dir = RunDir(asked.run)
    config = load(run_dir.config)
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(config, Path(folder), limit=asked.rows, run_dir=run_dir, advance=lambda done: None)
        whole = second_half(config, rows, 0, None)
        print(f"{rows.num_rows:,} rows; never restored: {', '.join(f'{t} {ne:.4f}' for t, ne in whole.items())}")
        for bits in asked.bits:
            for restores in asked.restores:
                ne = second_half(config, rows, restores, bits)
                change = ", ".join(f"{t} {100 * (ne[t] / whole[t] - 1):+.3f} %" for t in ne)
                print(f"{bits} bits, {restores} restores: {change}", flush=True)


if __name__ == "__main__":
    main()
