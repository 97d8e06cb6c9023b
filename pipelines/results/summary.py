"""The results of a finished run: `summary.json`, from exact metrics over every prediction.

Every prediction was made before its row was learned. For one student and task all columns are computed on the same
rows: those with a label, a teacher logit, and (where a truth exists) a known probability.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from exfm.metrics import consecutive_blocks, gauc, metrics_of, paired_ne_difference, transfer_ratio
from pipelines.config import Config, StudentSettings
from pipelines.results.counts import counts_of
from pipelines.results.losses import Severity, losses_in
from pipelines.results.lost_feedback import lost_feedback
from pipelines.run_dir import RunDir
from pipelines.status import RunStatus, WorkerStatus
from pipelines.training import count_predictions, read_predictions
from pipelines.workers import Report
from streaming.sources.synthetic import Truth, load_truth

PACKAGES = ("torch", "torchrec", "ray", "pyarrow", "kafka-python", "mlflow", "deltalake", "numpy")
MODELS = ("student", "no_teacher", "teacher", "optimum")
CLUSTER_ROWS = 512
"""Rows of one cluster of the paired interval: neighbours in the stream share their hour, drift and model state."""


@dataclass(frozen=True)
class Columns:
    """Aligned columns of one student and task, (N,) each, in stream order: labels, the logits of each model, and, where
    rows have them, their weights and groups."""

    lake_seq: np.ndarray
    labels: np.ndarray
    logits: dict[str, np.ndarray]
    left_out: int
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None

    def after(self, seq: int) -> Columns:
        return self.take(np.flatnonzero(self.lake_seq > seq))

    def take(self, kept: np.ndarray) -> Columns:
        """The rows at these places."""
        return Columns(
            self.lake_seq[kept],
            self.labels[kept],
            {model: z[kept] for model, z in self.logits.items()},
            self.left_out,
            None if self.weights is None else self.weights[kept],
            None if self.groups is None else self.groups[kept],
        )


def no_rows(models: Sequence[str]) -> Columns:
    """Of a student that saw no row: it has its line in every table all the same."""
    return Columns(np.empty(0, np.int64), np.empty(0), {model: np.empty(0) for model in models}, 0)


def columns_of(table: pa.Table, task: str, truth: Truth | None) -> Columns:
    """The rows on which every model can be judged."""
    labels = table[f"label_{task}"].to_numpy(zero_copy_only=False)
    labelled = table.filter(pa.array(~np.isnan(labels.astype(np.float64))))
    logits = {
        model: labelled[f"{model}_{task}"].to_numpy(zero_copy_only=False).astype(np.float64)
        for model in ("student", "no_teacher", "teacher")
        if f"{model}_{task}" in labelled.schema.names
    }
    if truth is not None:
        logits["optimum"] = truth.logits(labelled["impression_id"].combine_chunks(), task)
    complete = np.logical_and.reduce([np.isfinite(z) for z in logits.values()])
    there = set(labelled.schema.names)
    return Columns(
        labelled["lake_seq"].to_numpy(),
        labelled[f"label_{task}"].to_numpy().astype(np.float64),
        logits,
        int((~complete).sum()),
        labelled[f"weight_{task}"].to_numpy() if f"weight_{task}" in there else None,
        labelled["group"].to_numpy() if "group" in there else None,
    ).take(np.flatnonzero(complete))


def judge(columns: Columns) -> dict[str, Any]:
    """The figures of every model on the same rows; the paired difference student − no_teacher, with stretches of the
    stream and with groups as clusters; the share of the teacher's lead that the student got.

    Figures are weighted. `rows` and `positives` count rows, and so do `gauc_rows`, those of groups with both labels.
    """
    labels, weights, groups = columns.labels, columns.weights, columns.groups
    found: dict[str, Any] = {"rows": len(labels), "positives": int(labels.sum())}
    found |= {"gauc_groups": None, "gauc_rows": None}
    for model in MODELS:
        found[model] = None
        if (z := columns.logits.get(model)) is not None:
            figures = metrics_of(z, labels, weights)._asdict()
            found[model] = {key: figures[key] for key in ("ne", "auc", "log_loss", "calibration")}
            found[model]["gauc"] = None
            if groups is not None:
                found[model]["gauc"], found["gauc_groups"], found["gauc_rows"] = gauc(z, labels, groups, weights)
    clusters = {"gain": consecutive_blocks(len(labels), CLUSTER_ROWS), "gain_by_group": groups}
    for name, ids in clusters.items():
        found[name] = None
        if "no_teacher" in columns.logits and ids is not None:
            z, other = columns.logits["student"], columns.logits["no_teacher"]
            gain = paired_ne_difference(z, other, labels, ids, weights)
            found[name] = gain._asdict() if gain.difference is not None else None
    ne = [found[model]["ne"] for model in ("no_teacher", "student", "teacher") if found[model] is not None]
    found["transfer_ratio"] = transfer_ratio(*ne) if len(ne) == 3 and None not in ne else None
    return found


@dataclass(frozen=True)
class Summary:
    value: dict[str, Any]

    def flat(self, student: str, task: str) -> dict[str, float]:
        """Final figures as MLflow metrics."""
        result = self.value["students"][student][task]
        flat = {}
        for model in MODELS:
            for key, figure in (result[model] or {}).items():
                if figure is not None:
                    flat[f"final/{task}/{model}/{key}"] = figure
        if result["gain"] is not None:
            flat[f"final/{task}/gain"] = result["gain"]["difference"]
        if result.get("transfer_ratio") is not None:
            flat[f"final/{task}/transfer_ratio"] = result["transfer_ratio"]
        return flat


def students_of(config: Config, run_dir: RunDir, last_seq: int) -> dict[str, dict[str, Any]]:
    truth = load_truth(run_dir.truth, config.tasks)
    return {student.name: _student(config, run_dir, student, truth, last_seq) for student in config.students}


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
        result["last_half"] = judge(columns.after(last_seq // 2))
        results[task] = result
    return results


def summarise(config: Config, run_dir: RunDir, status: RunStatus) -> Summary:
    """All of summary.json."""
    reports = {name: worker.report for name, worker in status.workers.items() if worker.report is not None}
    writer = next(name for name, worker in status.workers.items() if worker.kind.writes_lake)
    counters = reports[writer].counts or {}
    last_seq = counters["lake_rows"] - 1
    workers = {name: _worker(worker) for name, worker in status.workers.items() if worker.whole}
    given = {"teacher": counters["lake_rows"]} | {
        f"student-{student.name}": count_predictions(run_dir.predictions(student.name)) for student in config.students
    }
    for name in workers.keys() & given.keys():
        workers[name] |= _rows_of_model(reports[name].counts or {}, given[name])
    value = {
        "run": {
            "name": config.name,
            "config_hash": config.hash,
            "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
            "started_at": status.started_at,
            "wall_s": round(status.wall_s, 3),
            "legs": status.legs,
            "pace": config.pace.mode,
            "seed": config.seed,
        },
        "counts": counts_of(counters),
        "workers": workers,
        "students": students_of(config, run_dir, last_seq),
        "losses": {"examples": counters["dead_letter_examples"], "feedback": []},
    }
    if losses_in(value, config).severity is not Severity.FINE:
        value["losses"]["feedback"] = [task._asdict() for task in lost_feedback(config, run_dir)]
    value["losses"] |= losses_in(value, config).as_json()
    return Summary(value)


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    """What a worker did since the run began; `rows_per_s` is the rate of this leg, replayed rows included."""
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


def _rows_of_model(counts: dict[str, Any], given: int) -> dict[str, Any]:
    """Rows of the whole run that a model was given (a teacher: the lake's; a student: those with a prediction and
    those that sampling left out), trained on, and left out because a logit, the loss or a gradient was not finite."""
    found = {"given_rows": given + counts.get("left_out_by_sampling", 0)}
    for key in ("trained_rows", "quarantined_rows", "quarantined_rows_no_teacher", "left_out_by_sampling"):
        if key in counts:
            found[key] = counts[key]
    return found


def rows_hold(workers: dict[str, dict[str, Any]]) -> bool:
    """Trained + quarantined + left out by sampling = rows given, for every model."""
    return all(
        worker["trained_rows"] + worker["quarantined_rows"] + worker.get("left_out_by_sampling", 0)
        == worker["given_rows"]
        for worker in workers.values()
        if "trained_rows" in worker
    )
