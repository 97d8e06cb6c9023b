"""The results of a finished run: `summary.json`, from exact metrics over every prediction (figures.py)."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.status import RunStatus, WorkerStatus
from pipelines.live.training.predictions import count_predictions, read_predictions
from pipelines.live.workers.report import Report
from pipelines.report.cells import Cells
from pipelines.report.results.age import by_tenth
from pipelines.report.results.cells import summary_cells
from pipelines.report.results.columns_read import columns_read
from pipelines.report.results.counts import counts_of
from pipelines.report.results.figures import MODELS, columns_of, judge, no_rows
from pipelines.report.results.losses import LossSeverity, losses_in
from pipelines.report.results.lost_feedback import lost_feedback
from pipelines.report.results.verdict import JUDGED
from streaming.errors import StreamingError
from streaming.lake.reader import LakeReader
from streaming.sources.synthetic.truth import Truth, load_truth

FORMAT = 2
"""Of summary.json."""

PACKAGES = ("torch", "torchrec", "ray", "pyarrow", "kafka-python", "mlflow", "deltalake", "numpy")


@dataclass(frozen=True)
class Summary:
    value: dict[str, Any]

    def flat(self, student: str, task: str) -> dict[str, float]:
        """Final figures as MLflow metrics, of the window that is judged; none that is of too few rows."""
        half = self.value["students"][student][task][JUDGED]
        flat = {"positives": half["positives"]}
        if half["too_few"] is None:
            flat |= {f"{model}/{key}": figure for model in MODELS for key, figure in (half.get(model) or {}).items()}
            flat["transfer_ratio"] = half["transfer_ratio"]
        if (gain := half["gain"]) is not None and gain["low"] is not None:
            flat |= {"gain": gain["difference"], "gain_low": gain["low"], "gain_high": gain["high"]}
        return {f"final/{task}/{name}": float(figure) for name, figure in flat.items() if figure is not None}


def students_of(config: Config, run_dir: RunDir, last_seq: int) -> dict[str, dict[str, Any]]:
    """The figures of every student. Two are worked out at once: a run's cores are free by then, and most of the time
    is numpy's sorting, which holds no lock of Python's."""
    truth = load_truth(run_dir.truth, config.tasks)
    with ThreadPoolExecutor(2) as pool:
        figures = pool.map(lambda student: _student(config, run_dir, student, truth, last_seq), config.students)
        return {student.name: each for student, each in zip(config.students, figures, strict=True)}


def _student(
    config: Config, run_dir: RunDir, student: StudentSettings, truth: Truth | None, last_seq: int
) -> dict[str, Any]:
    table = read_predictions(run_dir.predictions(student.name))
    models = ("student", *(["no_teacher"] if student.twin else []), "teacher")
    results = {}
    for task in config.student_tasks(student):
        columns = no_rows(models) if table is None else columns_of(table, task, truth)
        result = judge(columns)
        result["rows_left_out"] = columns.left_out
        half = columns.after(last_seq // 2)
        result[JUDGED] = judge(half)
        result["by_tenth"] = by_tenth(columns, last_seq + 1)
        results[task] = result
    return results


def summarise(config: Config, run_dir: RunDir, status: RunStatus) -> Summary:
    """All of summary.json."""
    reports = {name: worker.report for name, worker in status.workers.items() if worker.report is not None}
    writer = next(name for name, worker in status.workers.items() if worker.kind.writes_lake)
    counters = reports[writer].counts or {}
    last_seq = counters["lake_rows"] - 1
    workers = {name: _worker(worker) for name, worker in status.workers.items() if worker.whole}
    for name, labelled_rows in _given_rows(config, run_dir, reports, counters["lake_rows"]).items():
        if name in workers:
            workers[name] |= _rows_of_model(reports[name].counts or {}, labelled_rows)
    students = students_of(config, run_dir, last_seq)
    value: dict[str, Any] = {
        "format": FORMAT,
        "run": {
            "name": config.name,
            "config_hash": config.hash,
            "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
            "started_at": status.started_at,
            "wall_s": round(status.wall_s, 3),
            "legs": status.attempts,
            "pace": config.pace.mode,
            "seed": config.seed,
            "source": None if config.source is None else config.source.kind,
            "group_by": config.metrics.group_by,
            "cluster_by": list(config.metrics.clusters),
            "predicted": "as learned",
            **({"paused": sorted(paused)} if (paused := run_dir.roster.paused) else {}),
            "arms": {student.name: student.model.arm.model_dump(mode="json") for student in config.students},
        },
        "counts": counts_of(counters),
        "workers": workers,
        "students": students,
        "cells": Cells(summary_cells(students)).as_json(),
        "columns": _columns(config, run_dir, counters),
        "losses": {
            "examples": counters["dead_letter_examples"],
            "feedback": [],
            "unmet_conditions": counters.get("unmet_conditions", {}),
        },
    }
    if losses_in(value, config).severity is not LossSeverity.FINE:
        value["losses"]["feedback"] = [task._asdict() for task in lost_feedback(config, run_dir)]
    value["losses"] |= losses_in(value, config).as_json()
    return Summary(value)


def _columns(config: Config, run_dir: RunDir, counters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Profile of every column of the lake; empty for one that cannot be read, which its writer names."""
    try:
        columns = columns_read(LakeReader(run_dir.lake, config.rows), counters["dead_letters"]["impression"])
    except StreamingError:
        return []
    return [{"rows": column.rows, **column.as_json()} for column in columns]


def _given_rows(config: Config, run_dir: RunDir, reports: Mapping[str, Report], lake_rows: int) -> dict[str, int]:
    """Count of the rows that gave labels to each model, as far as the run's files say: a teacher those of the lake, a
    student those with a prediction, and those of other verticals where it learns their labels."""
    labelled_rows = {"teacher": lake_rows}
    for student in config.students:
        name = f"student-{student.name}"
        labelled_rows[name] = count_predictions(run_dir.predictions(student.name))
        if student.label_rows == "all" and (report := reports.get(name)) is not None:
            labelled_rows[name] += (report.counts or {}).get("other_rows", 0)
    return labelled_rows


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    """Work of a worker since the run began; `rows_per_s` is the rate of this attempt, replayed rows included."""
    rows, busy_s = sum(r.rows for r in worker.whole), sum(r.busy_s for r in worker.whole)
    return {
        "rows": worker.rows,
        "busy_s": round(worker.busy_s, 3),
        "rows_per_s": round(rows / busy_s, 1) if busy_s else 0.0,
        "peak_rss_bytes": worker.peak_rss_bytes,
        "restarts": worker.all_restarts,
        "phases_s": {phase: round(s, 3) for phase, s in worker.phases_s.items()},
    } | _ranks(worker.whole)


def _ranks(whole: list[Report]) -> dict[str, Any]:
    """Rows and peak memory of each rank; empty for a worker of a single process."""
    ranks = sorted({rank.rank for report in whole for rank in report.ranks})
    each = {n: [rank for report in whole for rank in report.ranks if rank.rank == n] for n in ranks}
    rows = [
        {"rank": n, "rows": sum(r.rows for r in of), "peak_rss_bytes": max(r.peak_rss_bytes for r in of)}
        for n, of in each.items()
    ]
    return {"ranks": rows} if rows else {}


def _rows_of_model(counts: dict[str, Any], labelled_rows: int) -> dict[str, Any]:
    """Rows of the whole run whose labels a model was given (a teacher: the lake's; a student: those with a prediction,
    those of other verticals where it learns their labels, and those that sampling left out), trained on, and left out
    because a logit, the loss or a gradient was not finite."""
    rows = {"given_rows": labelled_rows + counts.get("left_out_by_sampling", 0)}
    for key in (
        "trained_rows",
        "quarantined_rows",
        "quarantined_rows_no_teacher",
        "left_out_by_sampling",
        "other_rows",
    ):
        if key in counts:
            rows[key] = counts[key]
    return rows


def rows_hold(workers: dict[str, dict[str, Any]]) -> bool:
    """True if trained + quarantined + left out by sampling equals the rows given, for every model."""
    return all(
        worker["trained_rows"] + worker["quarantined_rows"] + worker.get("left_out_by_sampling", 0)
        == worker["given_rows"]
        for worker in workers.values()
        if "trained_rows" in worker
    )
