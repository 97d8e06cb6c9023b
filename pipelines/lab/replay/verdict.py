"""The recommendation of a replay, from its cells: which arm, by how much, how sure, at what cost.

The arm with the largest gain is recommended. It is the best of K arms, so its gain is significant where the p-value is
below 5 % / K (Bonferroni).

No teacher pays where the arm that gains most of those that distil gains nothing for sure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from pydantic import Field

from pipelines.core.config.topics import Frozen
from pipelines.lab.replay.settings import Spec
from pipelines.report.cells import MEAN, Cells, Figures

LEVEL = 0.05
SMALLEST = 0.01
"""In %, what is shown of a difference."""

SHIP, STAY, UNDECIDED, TOO_FEW = "ship", "do not ship", "undecided", "too few rows"
COSTS = {"training": "cost_ratio", "flops": "serving/flops", "parameters": "serving/parameters"}


class Verdict(Frozen):
    """The verdict on one task. `arm`: the one with the largest gain; None where none can be compared.

    arms        how many were compared
    cost        times the baseline's: seconds of training a row, FLOPs and parameters served, means over students
    stopped_at  by student, the row at which a sequential test could have stopped
    """

    task: str
    baseline: str
    arm: str | None
    decision: str
    words: str
    arms: int = 0
    cost: dict[str, float | None] = Field(default={})
    stopped_at: dict[str, int | None] = Field(default={})


def verdicts(table: Cells, spec: Spec, distil: Collection[str] = (), labels: str = "Labels") -> Iterator[Verdict]:
    """One verdict for each task, under the first condition. `distil`: the arms with a teacher; `labels`: those that the
    best twins learn, in words."""
    condition = spec.tuned_under
    for task in dict.fromkeys(task for _, task in table.students(condition) if task):
        gains = {arm: of for arm, of in table.arms(condition, MEAN, task).items() if "gain" in of}
        made = _verdict(table, spec, task, gains)
        with_teacher = {arm: of for arm, of in gains.items() if arm in distil}
        if with_teacher and not _pays(with_teacher):
            made = made.model_copy(update={"words": f"{made.words} {labels} without a teacher do as well here."})
        yield made


def _pays(arms: dict[str, Figures]) -> bool:
    """True if the best of these arms gains for sure, or too little is known to tell."""
    best = max(arms.values(), key=lambda of: of.value("gain") or 0.0)
    return _decision(best, len(arms)) in (SHIP, TOO_FEW)


def _verdict(table: Cells, spec: Spec, task: str, gains: dict[str, Figures]) -> Verdict:
    baseline = spec.baselines[0] if len(spec.baselines) == 1 else "the best twin"
    if not gains:
        words = f"No arm can be compared on {task}."
        return Verdict(task=task, baseline=baseline, arm=None, decision=UNDECIDED, words=words)
    arm = max(gains, key=lambda name: gains[name].value("gain") or 0.0)
    decision, cost = _decision(gains[arm], len(gains)), _cost(table, spec, task, arm)
    return Verdict(
        task=task,
        baseline=baseline,
        arm=arm,
        decision=decision,
        words=_words(task, arm, baseline, decision, gains[arm], cost),
        arms=len(gains),
        cost=cost,
        stopped_at=_stopped(table, spec, task, arm),
    )


def _decision(of: Figures, arms: int) -> str:
    if of.lacking("gain") is not None:
        return TOO_FEW
    p = of.value("gain/p")
    if p is None or p >= LEVEL / arms:
        return UNDECIDED
    return SHIP if (of.value("gain") or 0.0) > 0 else STAY


def _stopped(table: Cells, spec: Spec, task: str, arm: str) -> dict[str, int | None]:
    stopped = {}
    for student, of_task in table.students(spec.tuned_under):
        of = table.of(spec.tuned_under, student, of_task, arm)
        if of_task == task and "watched/log_e" in of:
            row = of.value("watched/stopped_at")
            stopped[student] = None if row is None else int(row)
    return stopped


def _cost(table: Cells, spec: Spec, task: str, arm: str) -> dict[str, float | None]:
    ratios: dict[str, list[float]] = {name: [] for name in COSTS}
    for student, of_task in table.students(spec.tuned_under):
        if of_task != task:
            continue
        own, base = (table.of(spec.tuned_under, student, task, name) for name in (arm, spec.baselines[0]))
        for name, metric in COSTS.items():
            value, other = own.value(metric), base.value(metric)
            if value and other:
                ratios[name].append(value / other)
    return {name: float(np.mean(of)) if of else None for name, of in ratios.items()}


def _words(task: str, arm: str, base: str, decision: str, of: Figures, cost: dict[str, float | None]) -> str:
    gain = of.cell("gain")
    assert gain is not None
    assert gain.value is not None
    if decision == TOO_FEW:
        return f"{task}: too few {of.lacking('gain')} to tell whether {arm} beats {base}."
    if gain.value == 0:
        return f"Equal: on {task} the best arm, {arm}, has the NE of {base} exactly{_at_cost(cost)}."
    low_high = "" if gain.low is None else f" (95 %: {gain.low:+.2f} to {gain.high:+.2f})"
    much = f"{abs(gain.value):.2f} %" if abs(gain.value) >= SMALLEST else f"less than {SMALLEST} %"
    size = f"{much} {'lower' if gain.value > 0 else 'higher'} NE than {base}{low_high}"
    if decision == SHIP:
        return f"Ship {arm}: on {task} it has {size}{_at_cost(cost)}."
    if decision == STAY:
        return f"Stay with {base}: on {task} the best arm, {arm}, has {size}."
    return f"Undecided: on {task} the best arm, {arm}, has {size}, which may be chance{_at_cost(cost)}."


def _at_cost(cost: dict[str, float | None]) -> str:
    """
    >>> _at_cost({"training": 1.25, "flops": 2.0, "parameters": None})
    '; training takes 1.25 × as long, serving 2.00 × the FLOPs'
    >>> _at_cost({"training": None, "flops": 1.0, "parameters": 1.0})
    '; serving costs the same'
    """
    parts = [] if cost["training"] is None else [f"training takes {cost['training']:.2f} × as long"]
    served = {name: cost[key] for name, key in (("the FLOPs", "flops"), ("the parameters", "parameters"))}
    changed = [f"{ratio:.2f} × {name}" for name, ratio in served.items() if ratio is not None and ratio != 1]
    if changed:
        parts.append(f"serving {' and '.join(changed)}")
    elif any(ratio is not None for ratio in served.values()):
        parts.append("serving costs the same")
    return "; " + ", ".join(parts) if parts else ""
