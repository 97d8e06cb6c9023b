"""What a sweep shows, as one JSON value: every arm under every condition, by student and task and over all students."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from exfm.metrics import Estimate, average_estimates, estimate_ratio
from pipelines.offline import load_part
from pipelines.offline.sweep.choice import Chosen
from pipelines.offline.sweep.place import Place
from pipelines.results import PACKAGES

LIMITS = ("too_few", "early_too_few")


def report(
    place: Place,
    choices: Mapping[tuple[str, str], Chosen],
    judged: Mapping[tuple[str, str], Mapping[str, Any]],
    parts: Sequence[Path],
) -> dict[str, Any]:
    """`judged`: what `judge.Judge.under` found, by student and task, and then by condition."""
    sweep = place.sweep
    made = [_made(path) for path in parts]
    codes = sorted({code for _, code in made})
    value = {
        "sweep": {
            "config": place.config.name,
            "config_hash": place.config.hash,
            "stream": "one for all seeds" if place.one_stream else "one per seed",
            "source": "lake" if place.run_dir else getattr(place.config.source, "kind", None),
            "rows": {str(seed): place.rows(seed).table.num_rows for seed in sweep.seeds},
            "date": max(at for at, _ in made)[:10],
            "code": codes,
            "versions": _versions(),
            "seeds": list(sweep.seeds),
            "tuning_seeds": min(sweep.tuning_seeds or len(sweep.seeds), len(sweep.seeds)),
            "baseline": sweep.baseline,
            "cluster": sweep.cluster,
            "chosen_on": list(sweep.chosen_on),
            "trials": {arm: len(made.trials) for arm, made in sweep.arms.items()},
            "conditions": {name: made.model_dump() for name, made in sweep.conditions.items()},
            "references": {name: made.model_dump() for name, made in sweep.references.items()},
            "errors": _errors(place),
        },
        "notes": _notes(place, choices, codes),
        "chosen": _chosen(choices),
        "conditions": {
            condition: {
                "students": _students(condition, judged, place),
                "overall": _overall(condition, judged, place),
            }
            for condition in sweep.conditions
        },
    }
    return value


def _made(path: Path) -> tuple[str, str]:
    part = load_part(path)
    assert part is not None
    return str(part["made_at"]), str(part["made_with"])


def _errors(place: Place) -> str:
    """How the errors were computed, in words."""
    pieces = f"clusters of {place.sweep.cluster or 'consecutive rows'}"
    if len(place.sweep.seeds) == 1:
        return f"{pieces} of one seed: another seed's result is not covered"
    if place.one_stream:
        return f"{pieces} in the mean over seeds, and the seeds, added; t, degrees of freedom by Satterthwaite"
    return "t over seeds, each with a stream of its own"


def _notes(place: Place, choices: Mapping[tuple[str, str], Chosen], codes: Sequence[str]) -> list[str]:
    """What a reader must know before trusting a figure."""
    sweep, found = place.sweep, []
    if sweep.unequal:
        efforts = ", ".join(f"{arm} {len(made.trials)}" for arm, made in sweep.arms.items())
        found.append(f"UNEQUAL EFFORT: the arms tried different numbers of settings ({efforts}); more is an advantage")
    edges: dict[str, list[str]] = {}
    for (student, arm), chosen in choices.items():
        if chosen.edges:
            edges.setdefault(arm, []).append(f"{student}: {', '.join(chosen.edges)}")
    for arm, where in edges.items():
        found.append(f"arm `{arm}` chose the edge of its grid ({'; '.join(where)}): a wider grid may do better")
    if len(codes) > 1:
        found.append(
            f"parts were made by {len(codes)} versions of the model code; delete {place.folder} to compute all again"
        )
    if len(sweep.seeds) == 1:
        found.append("one seed: its randomness is in every figure and in no interval")
    elif not place.one_stream and len(sweep.seeds) < 5:
        found.append(f"{len(sweep.seeds)} seeds give wide intervals; 5 or more are usual")
    return found


def _chosen(choices: Mapping[tuple[str, str], Chosen]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (student, arm), chosen in choices.items():
        entry = {"tuned": chosen.setting.tuned, "trial": chosen.setting.trial, "ne_of_trials": chosen.ne}
        entry["at_the_edge"] = chosen.edges
        entry["model"] = chosen.setting.student.model.model_dump(mode="json")
        found.setdefault(student, {})[arm] = entry
    return found


def _students(condition: str, judged: Mapping[tuple[str, str], Any], place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (student, task), by_condition in judged.items():
        value, arms = by_condition[condition], {}
        base = _seconds_per_row(value["arms"][place.sweep.baseline]["cost"])
        lacking = value["too_few"]
        for arm, figures in value["arms"].items():
            seconds = _seconds_per_row(figures["cost"])
            entry = _plain({key: item for key, item in figures.items() if key != "figures"}) | figures["figures"]
            if "gain" in figures:
                entry["gain"] = _limited(figures["gain"], lacking)
                entry["early_gain"] = _limited(figures["early_gain"], value["early_too_few"])
            if lacking is not None:
                entry["transfer"] = {}
            entry |= {"rows_per_s": 1 / seconds if seconds else None, "cost_ratio": seconds / base if base else None}
            if arm != place.sweep.baseline:
                fresh = by_condition[place.sweep.tuned_under]["arms"][arm]["gain"]
                entry["lost"] = None if lacking else _plain(_lost(condition, place, figures["gain"], fresh))
            arms[arm] = entry
        others = {
            name: {"gain": _limited(made["gain"], lacking)} | made["figures"] for name, made in value["others"].items()
        }
        found.setdefault(student, {})[task] = value | {"others": others, "arms": arms}
    return found


def _lost(condition: str, place: Place, gain: Estimate | None, fresh: Estimate | None) -> Estimate | None:
    """The share of the gain that a condition costs; None for the first one, and for students that start later."""
    if condition == place.sweep.tuned_under or place.sweep.conditions[condition].start or not (gain and fresh):
        return None
    kept = estimate_ratio(gain, fresh)
    return kept and Estimate(1 - kept.value, -kept.clusters, -kept.seeds)


def _seconds_per_row(cost: Mapping[str, Any]) -> float:
    return float(cost["seconds"] / cost["rows"]) if cost["rows"] else 0.0


def _limited(estimate: Estimate | None, lacking: str | None) -> dict[str, Any] | None:
    """An estimate as plain numbers; without an error where there is too little to tell, and `too_few` says of what."""
    if estimate is None:
        return None
    unknown = dict.fromkeys(("se", "low", "high", "p")) if lacking is not None else {}
    return estimate.summary() | unknown | {"too_few": lacking}


def _plain(item: Any) -> Any:
    """Estimates as plain numbers."""
    if isinstance(item, Estimate):
        return item.summary()
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    return item


def _overall(condition: str, judged: Mapping[tuple[str, str], Any], place: Place) -> dict[str, Any]:
    """By task and arm: the mean over students, and the worst of them."""
    found: dict[str, Any] = {}
    for task in dict.fromkeys(task for _, task in judged):
        students = [student for student, of in judged if of == task]
        for arm in place.sweep.arms:
            if arm == place.sweep.baseline:
                continue
            each = {student: judged[student, task][condition]["arms"][arm] for student in students}
            gain, early = (_average([e[key] for e in each.values()]) for key in ("gain", "early_gain"))
            lacking, early_lacking = (_first({s: judged[s, task][condition][key] for s in students}) for key in LIMITS)
            fresh = _average([judged[s, task][place.sweep.tuned_under]["arms"][arm]["gain"] for s in students])
            entry: dict[str, Any] = {"gain": _limited(gain, lacking), "early_gain": _limited(early, early_lacking)}
            entry["lost"] = None if lacking else _plain(_lost(condition, place, gain, fresh))
            names = dict.fromkeys(name for e in each.values() for name in e["transfer"] if lacking is None)
            entry["transfer"] = {name: _plain(_average([e["transfer"][name] for e in each.values()])) for name in names}
            entry["worst"] = _worst(
                {s: e["gain"] for s, e in each.items() if not judged[s, task][condition]["too_few"]}
            )
            found.setdefault(task, {})[arm] = entry
    return found


def _first(lacking: Mapping[str, str | None]) -> str | None:
    """What a mean over students lacks: what one of them lacks.

    >>> _first({"feed": None, "shop": "positives (9)"})
    'positives (9) of shop'
    """
    return next((f"{words} of {student}" for student, words in lacking.items() if words is not None), None)


def _average(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """The mean; None where one of them is undefined, since the others are different students."""
    known = [estimate for estimate in estimates if estimate is not None]
    return average_estimates(known) if known and len(known) == len(estimates) else None


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
