"""The demo's teacher, its replica that scores, and a student with each kind of table, as a ratio to full tables.

    python -m tests.benchmarks.bench_kinds_in_models

Rows of the demo's own stream, settled; models and steps are those of a run. Every kind takes a batch in turn, and
`full` twice, at the beginning and the end of each turn: what else the machine does meets all alike. Time is the
process's own (CPU), in one thread: rows per CPU second, as a ratio to those of `full`, whose two figures show what a
ratio is worth. Not measured: queues, topics, the lake and checkpoints.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.embeddings.kinds.registry import settings_of
from exfm.features.batch import Batch, BatchBuilder
from exfm.machine import set_threads
from exfm.models.engine import StudentEngine, TeacherEngine
from exfm.models.scorer import TeacherScorer
from exfm.models.teacher import Teacher
from pipelines.core.config.settings import load
from pipelines.lab.rows import rows_of
from tests.support.places import CONFIGS
from tests.support.tables import Table as Printed

LARGE = 10_000  # tables of as many ids are of the kind; all others are full
SEED = 1


def kinds_of(sizes: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Settings of the large tables, by the arm's name and the table's."""
    found: dict[str, Any] = {"full": lambda n: {"kind": "full"}}
    found |= {"hash": lambda n: {"kind": "hash", "rows": n // 4}, "qr": lambda n: {"kind": "qr"}}
    found["mixed"] = lambda n: {"kind": "mixed", "width": 4}
    found["mixed in blocks"] = lambda n: {"kind": "mixed", "width": 4, "blocks": [{"share": 0.1, "width": 8}]}
    found |= {"fiited": lambda n: {"kind": "fiited", "chunks": 2}}
    found |= {"managed": lambda n: {"kind": "managed", "rows": n // 4}, "full again": lambda n: {"kind": "full"}}
    return {
        name: {table: settings_of(kind(rows)) for table, rows in sizes.items() if rows >= LARGE}
        for name, kind in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    args = parser.parse_args()
    set_threads(1)
    config = load(CONFIGS / "demo.yaml", [f"source.impressions={args.rows}", "features.asof=[]"])
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(config, Path(folder), limit=None, run_dir=None, advance=lambda done: None).table
    logits = {f"teacher_logit_{task}": np.random.default_rng(0).normal(-3, 1, len(rows)) for task in config.tasks}
    for name, values in logits.items():
        rows = rows.append_column(name, pa.array(values, pa.float32()))
    (student, *_), tasks, full = config.students, config.tasks, config.teacher.batch_rows
    features = config.teacher_features, config.student_features(student)

    teachers, scorers, students = {}, {}, {}
    for name, kinds in kinds_of({feature.name: feature.rows for feature in features[0].tabled}).items():
        model = config.teacher.model.model_copy(update={"embeddings": kinds})
        teacher = Teacher(model, features[0], tasks, SEED, batch_rows=full, full_batch=full)
        teachers[name], scorers[name] = TeacherEngine(teacher), TeacherScorer(model, features[0], tasks)
        known = {table: kind for table, kind in kinds.items() if table in features[1].table_names}
        own = student.model.model_copy(update={"embeddings": known})
        students[name] = StudentEngine(own, features[1], tasks, SEED, full_batch=student.batch_rows)

    builds = [BatchBuilder(of, tasks) for of in features]
    spent = {part: dict.fromkeys(teachers, 0.0) for part in ("teacher", "scoring", "student")}
    warm, counted = len(rows) // 4, 0
    for start in range(0, len(rows), full):
        read, taught = (build(rows.slice(start, full)) for build in builds)
        counted += len(read) if start >= warm else 0
        for name, teacher in teachers.items():
            if start % (8 * full) == 0:
                scorers[name].load(teacher.snapshot())
            steps: dict[str, tuple[Any, Batch]] = {
                "scoring": (scorers[name].score, read),
                "teacher": (teacher.step, read),
                "student": (students[name].step, taught),
            }
            for part, (step, batch) in steps.items():
                began = time.process_time()
                step(batch)
                spent[part][name] += time.process_time() - began if start >= warm else 0.0
    for teacher in teachers.values():
        teacher.close()

    mean = {part: (of["full"] + of["full again"]) / 2 for part, of in spent.items()}
    spent["all three"] = {name: sum(of[name] for of in spent.values()) for name in teachers}
    mean["all three"] = sum(mean.values())
    printed = Printed("kind", *(f"{part}, rows/s of full" for part in spent))
    for name in teachers:
        printed.row(name, *(f"{mean[part] / of[name]:.2f}" for part, of in spent.items()))
    print("\nfull, rows per CPU second: " + ", ".join(f"{part} {counted / of:,.0f}" for part, of in mean.items()))


if __name__ == "__main__":
    main()
