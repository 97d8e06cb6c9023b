"""Data of the page: a run's flow, students, alarms and dead letters, from status.json as it is now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.kinds import Kind
from pipelines.live.status.stored import StoredStatus, StoredWorker, read_status
from pipelines.track.registry.ledger import Ledger
from pipelines.why.alarm import active_alarms


def view_of(run_dir: RunDir, config: Config) -> dict[str, Any]:
    """The page's data, as JSON. `config`: the run's, for names of topics. Raises BadInput where no status is, or a
    damaged one."""
    status = read_status(run_dir.root)
    counts = status.counts or {}
    lives = status.lives
    students = [_student(name, worker, lives, run_dir) for name, worker in _of(status, Kind.STUDENT)]
    return {
        "run": status.name,
        "folder": str(run_dir.root),
        "state": status.state if lives or status.state in ("done", "failed", "stopped") else "not running",
        "lives": lives,
        "reason": status.reason,
        "updated_at": status.updated_at,
        "started_at": status.started_at,
        "wall_s": status.wall_s,
        "fraction": status.fraction,
        "flow": _flow(status, config, counts, lives, sum(bool(each["champion"]) for each in students)),
        "students": students,
        "alarms": [answer.as_json() for answer in active_alarms(status, config.alarms)],
        "losses": status.losses.model_dump(mode="json") if status.losses is not None else None,
        "dead_letters": _dead_letters(counts),
        "counts": _counted(counts),
        "disk": dict(status.disk),
    }


def _of(status: StoredStatus, kind: Kind) -> list[tuple[str, StoredWorker]]:
    return [(name, worker) for name, worker in status.workers.items() if _field(worker, "kind") == str(kind)]


def _field(worker: StoredWorker, name: str) -> Any:
    return (worker.model_extra or {}).get(name)


def _flow(
    status: StoredStatus, config: Config, counts: Mapping[str, Any], lives: bool, champions: int
) -> dict[str, Any]:
    """Nodes and edges of the picture. An edge has the rate at which rows pass and how many wait. A run that follows the
    lake of another has no topics and no teacher."""
    augmentation = [worker for _, worker in _of(status, Kind.AUGMENTATION)]
    teachers = [worker for name, worker in _of(status, Kind.TEACHER) if name == "teacher"]
    students = [worker for _, worker in _of(status, Kind.STUDENT)]
    ingest = [worker for _, worker in _of(status, Kind.INGEST)]
    version = next((w.teacher_version for w in augmentation if w.teacher_version is not None), None)
    age_rows = next((_field(w, "teacher_lag_rows") for w in augmentation), None)
    age_s = next((_field(w, "teacher_age_s") for w in augmentation if _field(w, "teacher_age_s") is not None), None)
    topics = f"{config.kafka.impressions.topic}, {config.kafka.feedback.topic}"
    lag_s = next((_field(w, "lag_event_time_s") for w in augmentation), None)
    nodes = {
        "source": {"title": "Source", "state": _state(ingest, lives), "lines": [_rows_of(ingest)]} if ingest else None,
        "kafka": None
        if not augmentation
        else {"title": "Kafka", "state": "topics", "lines": [topics, status.broker.bootstrap_servers or ""]},
        "augmentation": None
        if not augmentation
        else {
            "title": "Augmentation",
            "state": _state(augmentation, lives),
            "lines": [
                f"{_total(counts.get('pending'))} pending",
                "orders, settles, scores" if lag_s is None else f"{lag_s:,.0f} s behind the clock",
            ],
        },
        "lake": {
            "title": "Lake",
            "state": "log",
            "lines": [f"{status.lake.rows:,} rows", f"{status.lake.bytes / 1e6:,.0f} MB"],
        },
        "teacher": None
        if not teachers
        else {
            "title": "Teacher",
            "state": _state(teachers, lives),
            "lines": [
                "no snapshot scores yet" if version is None else f"snapshot {version} scores",
                "" if age_rows is None else f"{age_rows:,} rows old" + ("" if age_s is None else f", {age_s:,.0f} s"),
            ],
        },
        "students": {
            "title": f"{len(students):,} students",
            "state": _state(students, lives),
            "lines": [_rows_of(students)],
        },
        "registry": {
            "title": "Registry",
            "state": "versions",
            "lines": [f"{champions:,} of {len(students):,} have", "a champion to serve"],
        },
    }
    edges = [
        {"from": "source", "to": "kafka", **_edge(ingest, lives)},
        {"from": "kafka", "to": "augmentation", **_edge(augmentation, lives)},
        {"from": "augmentation", "to": "lake", **_edge(augmentation, lives), "lag_rows": None},
        {"from": "lake", "to": "teacher", **_edge(teachers, lives)},
        {"from": "teacher", "to": "augmentation", "label": "snapshots"},
        {"from": "lake", "to": "students", **_edge(students, lives)},
        {"from": "students", "to": "registry", "label": "exports"},
    ]
    there = {name: node for name, node in nodes.items() if node is not None}
    return {"nodes": there, "edges": [e for e in edges if e["from"] in there and e["to"] in there]}


def _edge(workers: Iterable[StoredWorker], lives: bool) -> dict[str, Any]:
    """Rate and lag of what reads at its end: the sum of rates, the largest lag; None where it is not known."""
    at_work = list(workers)
    rates = [worker.rows_per_s for worker in at_work if worker.rows_per_s is not None]
    lags = [worker.lag_rows for worker in at_work if worker.lag_rows is not None]
    unknown = any(not worker.lag_known for worker in at_work)
    return {
        "rows_per_s": sum(rates) if rates and lives else None,
        "lag_rows": None if unknown or not lags else max(lags),
        "lag_known": not unknown,
    }


def _rows_of(workers: Iterable[StoredWorker]) -> str:
    return f"{sum(worker.rows for worker in workers):,} rows"


def _state(workers: Iterable[StoredWorker], lives: bool) -> str:
    """The gravest state of several workers."""
    states = {worker.state for worker in workers}
    grave = next((s for s in ("failed", "restarting", "starting", "running", "done") if s in states), "none")
    return grave if lives or grave in ("failed", "done", "none") else "not running"


def _total(by_group: Any) -> str:
    return f"{sum(by_group.values()):,}" if isinstance(by_group, dict) else "0"


def _student(name: str, worker: StoredWorker, lives: bool, run_dir: RunDir) -> dict[str, Any]:
    """A student's line in the table; its versions are those of its ledger, which the end of a run writes, too."""
    aliases = Ledger(run_dir, name.removeprefix(STUDENT)).aliases()
    trial = (_field(worker, "versions") or {}).get("trial")
    return {
        "name": name.removeprefix(STUDENT),
        "state": worker.state if lives or worker.state in ("done", "failed", "retired") else "stopped",
        "reason": worker.reason,
        "rows": worker.rows,
        "rows_per_s": worker.rows_per_s if lives else None,
        "lag_rows": worker.lag_rows,
        "lag_known": worker.lag_known,
        "lake_seq": worker.lake_seq,
        "ne": worker.ne,
        "teacher_version": worker.teacher_version,
        "logit_age_s": worker.logit_age_s,
        "champion": aliases.champion,
        "candidate": aliases.candidate,
        "trial": trial if aliases.candidate is not None else None,
        "alarms": list(worker.alarms),
    }


def _dead_letters(counts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Refused rows by kind and reason, the most frequent first."""
    by_reason = counts.get("dead_letters_by_reason") or {}
    found = [
        {"kind": kind, "reason": reason, "rows": rows}
        for kind, reasons in by_reason.items()
        for reason, rows in reasons.items()
    ]
    return sorted(found, key=lambda each: -each["rows"])


COUNTED = {
    "impressions_read": "impressions read",
    "feedback_read": "feedback read",
    "joined_feedback": "joined",
    "late_feedback": "late",
    "unmatched_feedback": "unmatched",
    "duplicates_dropped": "duplicate impressions",
    "dead_letters": "impressions refused",
    "feedback_dead_letters": "feedback refused",
}


def _counted(counts: Mapping[str, Any]) -> dict[str, int]:
    return {words: counts[name] for name, words in COUNTED.items() if isinstance(counts.get(name), int)}
