"""Promotion: decides whether a candidate replaces the champion, from both models' results on the same fresh rows.

One may ask after every row: the evidence is anytime-valid (exfm/metrics/sequential.py), so asking often promotes no
model that is no better. With the e-values E_t of T tasks:

    promote   mean of E_t ≥ 1/level, if calibration lies in bounds and clipping hides no loss
    refuse    a task is lost (E_t of the other side ≥ T/level), a logit was not finite, or patience is at its end
    keep      all else: the comparison goes on

A mean of e-values is an e-value: where the candidate is better at no task, it is promoted with probability `level` at
most, for as long as the comparison lasts. The level is of each comparison, not of all that a run makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from exfm.metrics.sequential import Evidence


@dataclass(frozen=True)
class TaskSeen:
    """Evidence on one task. `calibration` of the candidate on the rows compared: Σ predicted / Σ label, None without
    positives. `not_finite`: rows where the candidate gave no finite logit, and the champion did."""

    evidence: Evidence
    positives: int
    calibration: float | None
    not_finite: int = 0


@dataclass(frozen=True)
class Standards:
    """Requirements for a candidate; field names are those of the config's section `registry`."""

    level: float = 0.05
    calibration: tuple[float, float] = (0.8, 1.25)
    min_positives: int = 200
    trial_rows: int = 1_000_000
    trial_days: float | None = None


@dataclass(frozen=True)
class Promote:
    reason: str


@dataclass(frozen=True)
class Keep:
    """The champion stays, and the comparison continues."""

    reason: str


@dataclass(frozen=True)
class Refuse:
    """The champion stays, and the comparison is over."""

    reason: str


Decision = Promote | Keep | Refuse


def promotion(tasks: Mapping[str, TaskSeen], standards: Standards, *, rows: int, days: float = 0.0) -> Decision:
    """Decide on a candidate after `rows` rows and `days` of event time of comparison.

    >>> none = Evidence(0.0, 0.0, None, None, None, None, 0, 0, None, 0, 0.0, 0)
    >>> promotion({"ctr": TaskSeen(none, 0, None)}, Standards(), rows=0)
    Keep(reason='not decided yet: e-value 1 of 20, after 0 rows')
    """
    count, needed = max(1, len(tasks)), 1 / standards.level
    for task, result in tasks.items():
        if result.not_finite:
            return Refuse(f"{result.not_finite} rows of {task} got a logit that is not finite")
    for task, result in tasks.items():
        if result.evidence.log_e_worse >= math.log(needed * count):
            return Refuse(f"worse on {_words(task, result)}")
    log_e = _log_mean([result.evidence.log_e_better for result in tasks.values()])
    decided = log_e >= math.log(needed)
    objection = _objection(tasks, standards) if decided else None
    if decided and objection is None:
        best = _best(tasks)
        return Promote(f"better on {_words(best, tasks[best])}; e-value {_number(log_e)}, {needed:g} asked for")
    waits = objection or f"e-value {_number(log_e)} of {needed:g}"
    if rows >= standards.trial_rows:
        return Refuse(f"{waits}, after {rows:,} rows; registry.trial_rows gives it {standards.trial_rows:,}")
    if standards.trial_days is not None and days >= standards.trial_days:
        return Refuse(f"{waits}, after {days:.2f} days; registry.trial_days gives it {standards.trial_days:g}")
    return Keep(f"not decided yet: {waits}, after {rows:,} rows" if objection is None else objection)


def _objection(tasks: Mapping[str, TaskSeen], standards: Standards) -> str | None:
    """Reason why a candidate whose evidence suffices is not promoted yet."""
    low, high = standards.calibration
    best = _best(tasks)
    for task, result in tasks.items():
        if result.positives < standards.min_positives:
            if task == best:
                few = f"{result.positives} positives of {task}, {standards.min_positives} are asked for"
                return f"the evidence suffices, but whether it is calibrated is not known yet: {few}"
        elif result.calibration is None or not low <= result.calibration <= high:
            words = "unknown" if result.calibration is None else f"{result.calibration:.3f}"
            return f"the evidence suffices, but its calibration on {task} is {words}, outside {low:g} to {high:g}"
    raw = tasks[best].evidence.raw
    if raw is None or raw <= 0:
        clipped = tasks[best].evidence.clipped
        return f"the evidence suffices, but not without clipping: {clipped} blocks of {best} were clipped"
    return None


def _best(tasks: Mapping[str, TaskSeen]) -> str:
    return max(tasks, key=lambda task: tasks[task].evidence.log_e_better)


def _words(task: str, seen: TaskSeen) -> str:
    evidence = seen.evidence
    if evidence.difference is None or evidence.low is None or evidence.high is None:
        return task
    where, by = "lower", (evidence.difference, evidence.low, evidence.high)
    if evidence.difference < 0:
        where, by = "higher", (-evidence.difference, -evidence.high, -evidence.low)
    return (
        f"{task}: log-loss {where} by {by[0]:.3g} [{by[1]:.3g}, {by[2]:.3g}] per row, {evidence.rows:,} rows, "
        f"{seen.positives:,} positives"
    )


def _log_mean(logs: list[float]) -> float:
    most = max(logs, default=0.0)
    return most + math.log(sum(math.exp(log - most) for log in logs) / len(logs)) if logs else 0.0


def _number(log_e: float) -> str:
    return f"{math.exp(log_e):.3g}" if log_e < 14 else "over a million"
