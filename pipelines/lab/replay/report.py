"""A replay as one JSON value: every arm under every condition, by student and task and over all students."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from exfm.metrics.estimates import Estimate, estimate_ratio, remainder
from pipelines.lab.judging.evidence import power
from pipelines.lab.judging.figures import Ids, mean_over_students
from pipelines.lab.judging.summaries import limited, plain
from pipelines.lab.judging.verdict import mark_discoveries, verdicts
from pipelines.lab.parts import load_part
from pipelines.lab.replay.choice import Chosen
from pipelines.lab.replay.serving import serving_of
from pipelines.lab.replay.settings import EXTENSIONS
from pipelines.lab.replay.workspace import Workspace
from pipelines.report.results.summary import PACKAGES

LIMITS = ("too_few", "early_too_few")


def report(
    workspace: Workspace,
    choices: Mapping[tuple[str, str], Chosen],
    best_twins: Mapping[str, str],
    judged: Mapping[tuple[str, str], Mapping[str, Any]],
    parts: Sequence[Path],
    command: str = "",
) -> dict[str, Any]:
    """`judged`: what `judge.Judge.under` found, by student and task, and then by condition. `best_twins`: of each
    student, the baseline that is best where settings are chosen."""
    spec = workspace.spec
    made = [_made(path) for path in parts]
    value: dict[str, Any] = {
        "sweep": _about(workspace, best_twins, made, command),
        "labels": {name: found for name in spec.conditions if (found := _labels(workspace, name))},
        "notes": _notes(workspace, choices, sorted({code for _, code in made})),
        "chosen": _chosen(choices, workspace),
        "conditions": {
            condition: {
                "students": _students(condition, judged, workspace),
                "overall": _overall(condition, judged, workspace),
            }
            for condition in spec.conditions
        },
    }
    mark_discoveries(value)
    value["verdicts"] = verdicts(value)
    return value


def _about(
    workspace: Workspace, best_twins: Mapping[str, str], made: Sequence[tuple[str, str]], command: str
) -> dict[str, Any]:
    """What was run. `made`: when each part was, and by which code."""
    spec = workspace.spec
    return {
        "config": workspace.config.name,
        "config_hash": workspace.config.hash,
        "stream": "one for all seeds" if workspace.one_stream else "one per seed",
        "source": "lake" if workspace.run_dir else getattr(workspace.config.source, "kind", None),
        "rows": {str(seed): workspace.rows(seed).table.num_rows for seed in spec.all_seeds},
        "date": max(at for at, _ in made)[:10],
        "code": sorted({code for _, code in made}),
        "versions": _versions(),
        "seeds": list(spec.seeds),
        "tuning_seeds": list(spec.tuned_with),
        "unseen_seeds": [seed for seed in spec.seeds if seed not in spec.tuned_with],
        "baselines": list(spec.baselines),
        "best_twins": dict(best_twins),
        "cluster": list(spec.clustered_by),
        "chosen_on": list(spec.chosen_on),
        "trials": {arm: len(made.trials) for arm, made in spec.arms.items()},
        "conditions": {name: made.model_dump() for name, made in spec.conditions.items()},
        "controls": {name: spec.controls_of(name) for name in spec.conditions},
        "teachers": {name: made.model_dump() for name, made in spec.teachers.items()},
        "extend": spec.extend,
        "as_shown": spec.as_shown,
        "errors": _errors(workspace),
        "command": command,
        "events_ms": _event_range(workspace),
        "judged_from": spec.judged_from,
        "spec": spec.model_dump(mode="json"),
    }


def _labels(workspace: Workspace, condition: str) -> dict[str, dict[str, int]]:
    """By task, what students of the first seed learn of the labels that were logged, where it is not all of them."""
    seed, found = workspace.spec.seeds[0], {}
    for task, learned in workspace.labels(seed, workspace.spec.conditions[condition]).items():
        logged = workspace.rows(seed).table[f"label_{task}"]
        (positives, known), (kept, still) = (
            (pc.sum(of).as_py() or 0, pc.count(of).as_py()) for of in (logged, learned)
        )
        found[task] = {"positives": positives, "learned": kept, "labels": known, "unknown": known - still}
    return found


def _event_range(workspace: Workspace) -> list[int] | None:
    """First and last event time, over all seeds' streams."""
    ends: list[int] = []
    for seed in workspace.spec.seeds:
        ends += (x for x in pc.min_max(workspace.rows(seed).table["event_time_ms"]).as_py().values() if x is not None)
    return [min(ends), max(ends)] if ends else None


def _made(path: Path) -> tuple[str, str]:
    part = load_part(path)
    assert part is not None
    return str(part["made_at"]), str(part["made_with"])


def _errors(workspace: Workspace) -> str:
    """How the errors were computed, in words."""
    pieces = f"clusters of {' and of '.join(workspace.spec.clustered_by) or 'consecutive rows'}"
    if len(workspace.spec.seeds) == 1:
        return f"{pieces} of one seed: another seed's result is not covered"
    if workspace.one_stream:
        return f"{pieces} in the mean over seeds, and seeds as far as they differ by more than that; t"
    return "t over seeds, each with a stream of its own"


def _notes(workspace: Workspace, choices: Mapping[tuple[str, str], Chosen], codes: Sequence[str]) -> list[str]:
    """What a reader must know before trusting a figure."""
    spec, found = workspace.spec, []
    if spec.unequal:
        efforts = ", ".join(f"{arm} {len(made.trials)}" for arm, made in spec.arms.items())
        found.append(f"UNEQUAL EFFORT: the arms tried different numbers of settings ({efforts}); more is an advantage")
    found += _edges(workspace, choices)
    if len(codes) > 1:
        found.append(
            f"parts were made by {len(codes)} versions of the model code; delete {workspace.folder} to compute all "
            "again"
        )
    if len(spec.seeds) == 1:
        found.append("one seed: its randomness is in every figure and in no interval")
    elif not workspace.one_stream and len(spec.seeds) < 5:
        found.append(f"{len(spec.seeds)} seeds give wide intervals; 5 or more are usual")
    return found


def _edges(workspace: Workspace, choices: Mapping[tuple[str, str], Chosen]) -> list[str]:
    """Which grids were extended, and which choices still are at an edge."""
    extended: dict[str, list[str]] = {}
    edges: dict[str, list[str]] = {}
    for (student, arm), chosen in choices.items():
        if more := len(chosen.ne) - len(workspace.spec.arms[arm].trials):
            extended.setdefault(arm, []).append(f"{student} by {more}")
        if chosen.edges:
            edges.setdefault(arm, []).append(f"{student}: {', '.join(chosen.edges)}")
    found = []
    if extended:
        arms = "; ".join(f"`{arm}` {', '.join(students)}" for arm, students in extended.items())
        found.append(
            "settings were tried beyond the edges of grids, by one rule for all arms, at most "
            f"{EXTENSIONS} times: {arms}"
        )
    for arm, where in edges.items():
        found.append(f"arm `{arm}` chose the edge of its grid ({'; '.join(where)}): a wider grid may do better")
    return found


def _chosen(choices: Mapping[tuple[str, str], Chosen], workspace: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    spec, seed = workspace.spec, workspace.spec.seeds[0]
    rows = workspace.rows(seed).table
    for (student, arm), chosen in choices.items():
        entry = {"tuned": chosen.setting.tuned, "trial": chosen.setting.trial, "ne_of_trials": chosen.ne}
        entry["beyond_the_grid"] = len(chosen.ne) - len(spec.arms[arm].trials)
        entry["at_the_edge"] = chosen.edges
        entry["model"] = chosen.setting.student.model.model_dump(mode="json")
        entry["serving"] = serving_of(workspace.of(seed, arm), chosen.setting.student, rows)._asdict()
        found.setdefault(student, {})[arm] = entry
    return found


def _students(condition: str, judged: Mapping[tuple[str, str], Any], workspace: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    controls = workspace.spec.controls_of(condition)
    for (student, task), by_condition in judged.items():
        value, arms = by_condition[condition], {}
        base = _seconds_per_row(value["arms"][workspace.spec.baselines[0]]["cost"])
        for arm, figures in value["arms"].items():
            lacking, early_lacking = (_lacking(value, arm, key) for key in LIMITS)
            seconds = _seconds_per_row(figures["cost"])
            entry = plain({k: item for k, item in figures.items() if k != "figures"}) | figures["figures"]
            entry["gain_over"] = {name: limited(gain, lacking) for name, gain in figures["gain_over"].items()}
            entry |= {"rows_per_s": 1 / seconds if seconds else None, "cost_ratio": seconds / base if base else None}
            if arm not in workspace.spec.baselines:
                entry["gain"] = limited(figures["gain"], lacking)
                if shown := figures.get("as_shown"):
                    entry["as_shown"] = {"ne": shown["ne"], "gain": limited(shown["gain"], lacking)}
                entry["early_gain"] = limited(figures["early_gain"], early_lacking)
                entry["power"] = power(entry["gain"], figures.get("rows", value["rows"])[0])
                if lacking is not None:
                    entry["transfer"] = {}
                known = {kind: by_condition[name]["arms"][arm]["gain"] for kind, name in controls.items()}
                entry["lost_to"] = {
                    kind: None if lacking else plain(_lost(figures["gain"], gain)) for kind, gain in known.items()
                }
            arms[arm] = entry
        others = {
            name: made | made["figures"] | {"gain": limited(made["gain"], value["too_few"])}
            for name, made in value["others"].items()
        }
        for made in others.values():
            del made["figures"]
        shown = {key: item for key, item in value.items() if key != "clusters"}
        found.setdefault(student, {})[task] = shown | {"others": others, "arms": arms}
    return found


def _lacking(value: Mapping[str, Any], arm: str, key: str) -> str | None:
    """What there is too little of to judge an arm by: on its own rows, where it has not judged all of the baseline's.

    >>> value = {"too_few": None, "arms": {"none": {}, "late": {"too_few": "positives (9)"}}}
    >>> _lacking(value, "none", "too_few"), _lacking(value, "late", "too_few")
    (None, 'positives (9)')
    """
    found: str | None = value["arms"][arm].get(key, value[key])
    return found


def _lost(gain: Estimate | None, control: Estimate | None) -> Estimate | None:
    """The share of the control's gain that is not there."""
    kept = estimate_ratio(gain, control) if gain and control else None
    return kept and remainder(kept)


def _seconds_per_row(cost: Mapping[str, Any]) -> float:
    return float(cost["seconds"] / cost["rows"]) if cost["rows"] else 0.0


def _overall(condition: str, judged: Mapping[tuple[str, str], Any], workspace: Workspace) -> dict[str, Any]:
    """By task and arm: the mean over students, and the worst of them."""
    found: dict[str, Any] = {}
    controls = workspace.spec.controls_of(condition)
    for task in dict.fromkeys(task for _, task in judged):
        students = [student for student, of in judged if of == task]
        average = partial(_average, ids=[judged[s, task][condition]["clusters"] for s in students])
        for arm in workspace.spec.arms:
            each = {student: judged[student, task][condition]["arms"][arm] for student in students}
            lacking, early_lacking = (
                _first({s: _lacking(judged[s, task][condition], arm, key) for s in students}) for key in LIMITS
            )
            over = dict.fromkeys(name for e in each.values() for name in e["gain_over"])
            entry: dict[str, Any] = {
                "gain_over": {
                    name: limited(average([e["gain_over"][name] for e in each.values()]), lacking) for name in over
                }
            }
            found.setdefault(task, {})[arm] = entry
            if arm in workspace.spec.baselines:
                continue
            gain, early = (average([e[key] for e in each.values()]) for key in ("gain", "early_gain"))
            entry |= {"gain": limited(gain, lacking), "early_gain": limited(early, early_lacking)}
            if workspace.spec.as_shown:
                shown = average([e["as_shown"]["gain"] for e in each.values()])
                entry["as_shown"] = {"gain": limited(shown, lacking)}
            known = {
                kind: average([judged[s, task][name]["arms"][arm]["gain"] for s in students])
                for kind, name in controls.items()
            }
            entry["lost_to"] = {kind: None if lacking else plain(_lost(gain, made)) for kind, made in known.items()}
            names = dict.fromkeys(name for e in each.values() for name in e["transfer"] if lacking is None)
            entry["transfer"] = {name: plain(average([e["transfer"][name] for e in each.values()])) for name in names}
            entry["worst"] = _worst(
                {s: e["gain"] for s, e in each.items() if not _lacking(judged[s, task][condition], arm, "too_few")}
            )
    return found


def _first(lacking: Mapping[str, str | None]) -> str | None:
    """What a mean over students lacks: what one of them lacks.

    >>> _first({"feed": None, "shop": "positives (9)"})
    'positives (9) of shop'
    """
    return next((f"{words} of {student}" for student, words in lacking.items() if words is not None), None)


def _average(estimates: Sequence[Estimate | None], ids: Sequence[Ids]) -> Estimate | None:
    """The mean; None where one of them is undefined, since the others are different students. `ids` of their
    clusters."""
    known = [estimate for estimate in estimates if estimate is not None]
    return mean_over_students(known, ids) if known and len(known) == len(estimates) else None


def _worst(gains: Mapping[str, Estimate | None]) -> dict[str, Any] | None:
    """The student whose gain's lower bound is lowest."""
    summaries = {student: gain.summary() for student, gain in gains.items() if gain is not None}
    bounds = {s: t["value"] if t["low"] is None else t["low"] for s, t in summaries.items()}
    if not bounds:
        return None
    student = min(bounds, key=lambda name: bounds[name])
    return {"student": student, **summaries[student]}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("exfm", *PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
