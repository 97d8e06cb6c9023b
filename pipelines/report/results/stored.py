"""The summary of a run that is finished, as this release writes it, whichever release wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exfm.metrics.limits import too_few
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.stored import alive, read_status
from pipelines.report.results.figures import MODELS
from pipelines.report.results.summary import FORMAT
from pipelines.report.results.verdict import JUDGED
from streaming.disk.files import read_json
from streaming.errors import BadInput
from streaming.program import command


def read_summary(run_dir: RunDir) -> dict[str, Any]:
    """Raises BadInput where the run has no summary: it says what to do instead."""
    value = read_json(run_dir.summary)
    if value is None:
        raise BadInput(_unfinished(run_dir))
    return current(value, run_dir.summary)


def _unfinished(run_dir: RunDir) -> str:
    status = read_status(run_dir.root)
    running = alive(status)
    look = command("exfm", "status", "--run-dir", run_dir.root)
    resume = command("exfm", "stream", run_dir.config, "--run-dir", run_dir.root, "--until-end")
    return (
        f"the run in {run_dir.root} has no results yet: it is {'running' if running else status['state']}, and writes "
        f"summary.json when its stream has ended\n{f'see what it does: {look}' if running else f'resume it: {resume}'}"
    )


def current(value: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A stored summary in the present format. Raises BadInput for one of a later release."""
    stored = value.get("format", 1)
    if stored > FORMAT:
        raise BadInput(f"{path} has format {stored}, and this release reads up to {FORMAT}; install a later exfm")
    if stored == FORMAT:
        return dict(value)
    students = {
        student: {task: _figures(result) | {JUDGED: _figures(result[JUDGED])} for task, result in tasks.items()}
        for student, tasks in value["students"].items()
    }
    return {**value, "format": FORMAT, "students": students}


def _figures(old: Mapping[str, Any]) -> dict[str, Any]:
    """Format 1: a gain was the difference of two NE, below 0 good, and of any number of positives."""
    lacking = too_few(old["positives"], old["rows"] - old["positives"])
    found = dict.fromkeys(("gain_by_group", "lead", "transfer_ratio", "gauc_groups", "gauc_rows")) | dict(old)
    found |= {m: {"gauc": None, **old[m]} if old.get(m) else None for m in MODELS}
    twin = None if old["no_teacher"] is None else old["no_teacher"]["ne"]
    for key in ("gain", "gain_by_group"):
        found[key] = None if old.get(key) is None else _gain(old[key], twin, old["positives"])
    if twin is not None and found["gain"] is None:
        found["gain"] = _gain({"clusters": 0, "rows": old["rows"]}, None, old["positives"])
    return found | {"too_few": lacking}


def _gain(old: Mapping[str, Any], twin: float | None, positives: int) -> dict[str, Any]:
    """In % of the twin's NE; its interval as it was, where it would be given today.

    >>> old = {"difference": -0.01, "low": -0.02, "high": 0.01, "standard_error": 0.005, "clusters": 40, "rows": 9000}
    >>> gain = _gain(old, 0.5, 300)
    >>> gain["difference"], gain["low"], gain["high"]
    (2.0, -2.0, 4.0)
    >>> _gain(old, 0.5, 9)["too_few"]
    'positives (9)'
    """
    lacking = too_few(positives, old["rows"] - positives, old["clusters"])

    def percent(key: str) -> float | None:
        return None if not twin or old.get(key) is None else -100 * old[key] / twin

    error = percent("standard_error")
    found = {"difference": percent("difference"), "low": percent("high"), "high": percent("low")}
    found["standard_error"] = None if error is None else -error
    if lacking is not None or found["low"] is None:
        found |= {"low": None, "high": None, "standard_error": None}
        lacking = lacking or f"clusters ({old['clusters']})"
    counts = {key: old[key] for key in ("clusters", "rows")}
    return found | counts | {"positives": positives, "too_few": lacking}
