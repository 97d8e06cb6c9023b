"""Summaries of finished runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from pipelines.live.status import counts
from pipelines.live.status.counts import Counts
from pipelines.report.results.summary import WorkerTotals


def figures(ne: float | None, auc: float | None, calibration: float | None) -> dict[str, Any]:
    grouped = None if auc is None else auc - 0.1
    return {"ne": ne, "auc": auc, "log_loss": 0.3, "calibration": calibration, "gauc": grouped}


def gain(low: float, high: float, positives: int = 98_765) -> dict[str, Any]:
    counts = {"clusters": 900, "rows": 1_234_567, "positives": positives, "too_few": None}
    return {"difference": (low + high) / 2, "low": low, "high": high, "standard_error": (high - low) / 4} | counts


def unknown(positives: int) -> dict[str, Any]:
    """A gain of too few positives."""
    absent = dict.fromkeys(("low", "high", "standard_error"))
    return gain(3, 4, positives) | absent | {"too_few": f"positives ({positives})"}


HALF = {
    "rows": 1_234_567,
    "positives": 98_765,
    "too_few": None,
    "student": figures(0.9123, 0.7345, 1.023),
    "no_teacher": figures(0.9234, 0.7234, 0.987),
    "teacher": figures(0.8765, 0.7456, 1.111),
    "optimum": figures(0.7654, 0.8123, 1.001),
    "gain": gain(0.98, 1.42),
    "gain_by_group": gain(0.79, 1.62),
    "lead": gain(4.88, 5.28),
    "gauc_groups": 12_345,
    "gauc_rows": 999_999,
    "transfer_ratio": 0.231,
}
FEW = HALF | {
    "positives": 9, "too_few": "positives (9)", "gain": unknown(9), "gain_by_group": unknown(9), "lead": unknown(9),
    "transfer_ratio": None,
}  # fmt: skip
SUMMARY: dict[str, Any] = {
    "format": 2,
    "run": {
        "name": "demo",
        "config_hash": "0",
        "versions": {},
        "started_at": "2024-01-01T00:00:00+00:00",
        "wall_s": 754.0,
        "legs": 1,
        "pace": "free",
        "seed": 1,
        "source": "generated",
        "group_by": "user_id",
        "cluster_by": [],
        "predicted": "as learned",
        "arms": {"feed": {}, "brand_de.v2": {}},
    },
    "counts": {
        "impressions_read": 600_123,
        "settled": {"ctr": 599_000, "cvr": 80_000},
        "not_applicable": {"ctr": 0, "cvr": 519_000},
        "pending": {"ctr": 0, "cvr": 0},
        "unknown_labels": {"ctr": 0, "cvr": 0},
        "dead_letters": 23,
        "dead_letters_by_reason": {"impression": {"undecodable": 23}, "feedback": {}},
        "duplicates_dropped": 1_100,
        "lake_rows": 679_000,
        "verticals": {},
        "teacher_inferences": 679_000,
        "feedback_read": 99_000,
        "joined_feedback": 99_000,
        "late_feedback": 0,
        "unmatched_feedback": 0,
        "duplicate_feedback": 0,
        "feedback_dead_letters": 0,
        "waiting_feedback": 0,
    },
    "columns": [],
    "losses": {"severity": "fine", "lines": [], "words": [], "examples": {}, "feedback": [], "unmet_conditions": {}},
    "workers": {
        name: {
            "rows": 1_234_567,
            "busy_s": 500.0,
            "rows_per_s": 12_345.6,
            "peak_rss_bytes": 1_234 << 20,
            "restarts": 0,
            "phases_s": {"wait for teacher": 300.0, "score": 100.0, "settle": 50.0, "save state": 40.0, "commit": 10.0},
        }
        for name in ("augmentation", "teacher", "student-feed", "student-brand_de.v2")
    },
    "students": {
        name: {task: HALF | {"last_half": HALF, "by_tenth": []} for task in ("ctr", "cvr")}
        for name in ("feed", "brand_de.v2")
    },
}


def summary_of(**students: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """{student: {task: figures of the last half}}, and what else a summary holds."""
    return SUMMARY | {
        "run": SUMMARY["run"] | {"arms": {name: {} for name in students}},
        "students": {
            name: {task: half | {"last_half": half, "by_tenth": []} for task, half in tasks.items()}
            for name, tasks in students.items()
        },
    }


def counts_hold(value: Mapping[str, Any]) -> bool:
    """`counts_hold` on the part `counts` of summary.json."""
    return counts.counts_hold(TypeAdapter(Counts).validate_python(value))


def rows_hold(workers: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if every worker in the part `workers` of summary.json accounts for its rows."""
    return all(TypeAdapter(WorkerTotals).validate_python(worker).holds for worker in workers.values())
