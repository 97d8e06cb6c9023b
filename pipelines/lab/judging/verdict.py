"""The recommendation of a replay, from its report: which arm, by how much, how sure, at what cost.

The arm with the largest gain is recommended. It is the best of K arms, so its gain is significant where the p-value is
below 5 % / K (Bonferroni). Among all arms, students, tasks and segments, e-BH tells which differences are
more than luck (exfm/metrics/discoveries.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from exfm.metrics.discoveries import e_bh

LEVEL = 0.05
SMALLEST = 0.01
"""In %, what is shown of a difference."""

SHIP, STAY, UNDECIDED, TOO_FEW = "ship", "do not ship", "undecided", "too few rows"


def mark_discoveries(report: dict[str, Any]) -> None:
    """Add `found` to every segment, and to what was watched over all rows: whether it is a discovery of e-BH at 5 %."""
    entries = list(_evidence(report))
    for entry, found in zip(entries, e_bh(np.array([entry["log_e"] for entry in entries]), LEVEL), strict=True):
        entry["found"] = bool(found)
    report["comparisons"] = {"count": len(entries), "found": sum(entry["found"] for entry in entries), "level": LEVEL}


def _evidence(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for condition in report["conditions"].values():
        for tasks in condition["students"].values():
            for of in tasks.values():
                for arm in of["arms"].values():
                    if arm.get("watched"):
                        yield arm["watched"]
                    yield from arm.get("segments", {}).values()


def verdicts(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One for each task, under the first condition."""
    condition = next(iter(report["conditions"].values()))
    return [_verdict(report, condition, task) for task in condition["overall"]]


def _verdict(report: Mapping[str, Any], condition: Mapping[str, Any], task: str) -> dict[str, Any]:
    gains = {arm: of["gain"] for arm, of in condition["overall"][task].items() if of.get("gain") is not None}
    about = {"task": task, "baseline": _baseline(report["sweep"])}
    if not gains:
        return about | {"arm": None, "decision": UNDECIDED, "words": f"No arm can be compared on {task}."}
    arm = max(gains, key=lambda name: gains[name]["value"])
    gain, cost = gains[arm], _cost(report, condition, task, arm)
    decision = _decision(gain, len(gains))
    found = about | {"arm": arm, "decision": decision, "gain": gain, "cost": cost, "arms": len(gains)}
    found["stopped_at"] = _stopped(condition, task, arm)
    return found | {"words": _words(found)}


def _decision(gain: Mapping[str, Any], arms: int) -> str:
    if gain["too_few"] is not None:
        return TOO_FEW
    if gain["p"] is None or gain["p"] >= LEVEL / arms:
        return UNDECIDED
    return SHIP if gain["value"] > 0 else STAY


def _baseline(about: Mapping[str, Any]) -> str:
    names = about["baselines"]
    return str(names[0]) if len(names) == 1 else "the best twin"


def _stopped(condition: Mapping[str, Any], task: str, arm: str) -> dict[str, int | None]:
    """By student, the row at which a sequential test could have stopped."""
    found = {}
    for student, tasks in condition["students"].items():
        seen = tasks.get(task, {}).get("arms", {}).get(arm, {}).get("watched")
        if seen:
            found[student] = seen["stopped_at"]
    return found


def _cost(report: Mapping[str, Any], condition: Mapping[str, Any], task: str, arm: str) -> dict[str, float | None]:
    """Times the baseline's: seconds of training a row, FLOPs and parameters served, each the mean over students."""
    ratios: dict[str, list[float]] = {"training": [], "flops": [], "parameters": []}
    base = report["sweep"]["baselines"][0]
    for student, tasks in condition["students"].items():
        if task not in tasks:
            continue
        if ratio := tasks[task]["arms"][arm]["cost_ratio"]:
            ratios["training"].append(ratio)
        own, other = (report["chosen"][student][name]["serving"] for name in (arm, base))
        for key in ("flops", "parameters"):
            if own[key] and other[key]:
                ratios[key].append(own[key] / other[key])
    return {key: float(np.mean(of)) if of else None for key, of in ratios.items()}


def _words(of: Mapping[str, Any]) -> str:
    gain, arm, base, task = of["gain"], of["arm"], of["baseline"], of["task"]
    if of["decision"] == TOO_FEW:
        return f"{task}: too few {gain['too_few']} to tell whether {arm} beats {base}."
    if gain["value"] == 0:
        return f"Equal: on {task} the best arm, {arm}, has the NE of {base} exactly{_at_cost(of['cost'])}."
    low_high = "" if gain["low"] is None else f" (95 %: {gain['low']:+.2f} to {gain['high']:+.2f})"
    much = f"{abs(gain['value']):.2f} %" if abs(gain["value"]) >= SMALLEST else f"less than {SMALLEST} %"
    size = f"{much} {'lower' if gain['value'] > 0 else 'higher'} NE than {base}{low_high}"
    if of["decision"] == SHIP:
        return f"Ship {arm}: on {task} it has {size}{_at_cost(of['cost'])}."
    if of["decision"] == STAY:
        return f"Stay with {base}: on {task} the best arm, {arm}, has {size}."
    return f"Undecided: on {task} the best arm, {arm}, has {size}, which may be chance{_at_cost(of['cost'])}."


def _at_cost(cost: Mapping[str, float | None]) -> str:
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
