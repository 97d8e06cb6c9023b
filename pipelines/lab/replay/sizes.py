"""Teachers by what they cost: the FLOPs of each, how far it is ahead, and how much of that its students get."""

from __future__ import annotations

from typing import Any

from exfm.parallel.planning.cost import flops_per_example
from pipelines.lab.replay.workspace import Workspace


def sizes_of(workspace: Workspace, report: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry for each teacher that a condition names, by student, task and arm, cheapest first; nothing where no
    further teacher is asked for. `lead`: of the teacher over the best twin; `gain`: of the student that learns from it;
    `transfer`: the share of the lead that the student got; each with its interval, None where it is not known.
    `flops`: of one row's forward pass through the teacher's dense part."""
    found = []
    for condition, made in workspace.spec.conditions.items():
        snapshots = made.logit_source
        if not workspace.spec.teachers or snapshots is None or snapshots.stored is not None:
            continue
        features, model = workspace.teacher(snapshots.teacher)
        flops = flops_per_example(model, features, len(workspace.config.tasks))
        for student, tasks in report["conditions"][condition]["students"].items():
            for task, judged in tasks.items():
                for arm, entry in judged["arms"].items():
                    if "gain" not in entry:
                        continue
                    about = {"teacher": snapshots.teacher, "condition": condition, "flops": flops}
                    about |= {"student": student, "task": task, "arm": arm, "lead": judged["others"]["teacher"]["gain"]}
                    transfer = (entry.get("transfer") or {}).get("teacher")
                    found.append(about | {"gain": entry["gain"], "transfer": transfer})
    return sorted(found, key=lambda entry: (entry["student"], entry["task"], entry["arm"], entry["flops"]))


def text_of_sizes(sizes: list[dict[str, Any]]) -> str:
    """For people: a line for each."""
    lines = [f"{'student task arm':<32} {'teacher':<12} {'FLOPs/row':>12}  lead %  gain % [95 %]  transfer"]
    for entry in sizes:
        who = f"{entry['student']} {entry['task']} {entry['arm']}"
        teacher = entry["teacher"] or "the run's"
        estimates = (_said(entry[key]) for key in ("lead", "gain", "transfer"))
        lines.append(f"{who:<32} {teacher:<12} {entry['flops']:>12,}  {'  '.join(estimates)}")
    return "\n".join(lines)


def _said(estimate: dict[str, Any] | None) -> str:
    if estimate is None or estimate.get("value") is None:
        return "not known"
    low, high = estimate.get("low"), estimate.get("high")
    interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return f"{estimate['value']:.2f}{interval}"
