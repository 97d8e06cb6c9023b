"""What bf16 products, or machine code, cost a teacher in normalised entropy: the same teachers on the same rows.

    python -m tests.benchmarks.teacher_precision [--impressions 60000] [--seeds 1 2 3 4 5] [--compile] [--fp32]

The teacher of configs/demo.yaml learns the settled rows of its stream once; every row is judged before it is learned.
Printed are, by seed of the teacher and task, NE over the last half of the rows, and the difference in % of the fp32 one
with its 95 % interval over seeds. With `--compile` the others are machine code, with `--fp32` they are fp32, too.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from exfm.features.batch import Batch, BatchBuilder
from exfm.machine import set_threads
from exfm.metrics.classification import normalised_entropy
from exfm.metrics.estimates import mean_of_seeds
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from pipelines.core.config.settings import Config, load
from pipelines.lab.rows import rows_of

CONFIG, BATCH = "configs/demo.yaml", 512


def ne_by_task(model: TeacherConfig, config: Config, batches: list[Batch], seed: int) -> list[float]:
    teacher = Teacher(model, config.teacher_features, config.tasks, seed)
    logits = np.concatenate([teacher.train_step(batch).logits for batch in batches])
    labels, known = (np.concatenate([getattr(b, name).numpy() for b in batches]) for name in ("labels", "label_mask"))
    teacher.close()
    late = np.arange(len(logits)) >= len(logits) // 2
    judged = [late & known[:, t] for t in range(len(config.tasks))]
    return [float(normalised_entropy(logits[rows, t], labels[rows, t])) for t, rows in enumerate(judged)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impressions", type=int, default=60_000)
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    options.add_argument("--compile", action="store_true")
    options.add_argument("--fp32", action="store_true")
    asked = options.parse_args()
    set_threads(1)
    config = load(CONFIG, [f"source.impressions={asked.impressions}"])
    with tempfile.TemporaryDirectory() as folder:
        table = rows_of(config, Path(folder), limit=None, run_dir=None, advance=lambda n: None).table
    build = BatchBuilder(config.teacher_features, config.tasks)
    batches = [build(table.slice(start, BATCH)) for start in range(0, table.num_rows, BATCH)]
    model, differences = config.teacher.model, []
    precision = "fp32" if asked.fp32 else "bf16"
    way = precision + ", compiled" * asked.compile
    for seed in asked.seeds:
        other = model.model_copy(update={"precision": precision, "compile": asked.compile})
        fp32, others = (ne_by_task(each, config, batches, seed) for each in (model, other))
        differences.append([100 * (b - a) / a for a, b in zip(fp32, others, strict=True)])
        print(f"seed {seed}: NE fp32 {np.round(fp32, 5)}, {way} {np.round(others, 5)}", flush=True)
    for task, of_task in zip(config.tasks, zip(*differences, strict=True), strict=True):
        found = mean_of_seeds(of_task).summary()
        print(f"{task}: {way} is worse by {found['value']:+.3f} % [{found['low']:+.3f}, {found['high']:+.3f}]")


if __name__ == "__main__":
    main()
