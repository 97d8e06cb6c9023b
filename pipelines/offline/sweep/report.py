"""What a sweep shows, as one JSON value: every arm under every condition, by student and task and over all students."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from exfm.metrics import Estimate, estimate_ratio
from pipelines.offline import load_part
from pipelines.offline.sweep.choice import Chosen
from pipelines.offline.sweep.figures import Ids, mean_over_students
from pipelines.offline.sweep.place import Place
from pipelines.offline.sweep.settings import EXTENSIONS, Sweep
from pipelines.results import PACKAGES

LIMITS = ("too_few", "early_too_few")


def report(
    place: Place,
    choices: Mapping[tuple[str, str], Chosen],
    best_twins: Mapping[str, str],
    judged: Mapping[tuple[str, str], Mapping[str, Any]],
    parts: Sequence[Path],
) -> dict[str, Any]:
    """`judged`: what `judge.Judge.under` found, by student and task, and then by condition. `best_twins`: of each
    student, the baseline that is best where settings are chosen."""
    sweep = place.sweep
    made = [_made(path) for path in parts]
    codes = sorted({code for _, code in made})
    value = {
        "sweep": {
            "config": place.config.name,
            "config_hash": place.config.hash,
            "stream": "one for all seeds" if place.one_stream else "one per seed",
            "source": "lake" if place.run_dir else getattr(place.config.source, "kind", None),
            "rows": {str(seed): place.rows(seed).table.num_rows for seed in sweep.all_seeds},
            "date": max(at for at, _ in made)[:10],
            "code": codes,
            "versions": _versions(),
            "seeds": list(sweep.seeds),
            "tuning_seeds": list(sweep.tuned_with),
            "unseen_seeds": [seed for seed in sweep.seeds if seed not in sweep.tuned_with],
            "baselines": list(sweep.baselines),
            "best_twins": dict(best_twins),
            "cluster": list(sweep.clustered_by),
            "chosen_on": list(sweep.chosen_on),
            "trials": {arm: len(made.trials) for arm, made in sweep.arms.items()},
            "conditions": {name: made.model_dump() for name, made in sweep.conditions.items()},
            "controls": {name: sweep.controls_of(name) for name in sweep.conditions},
            "teachers": {name: made.model_dump() for name, made in sweep.teachers.items()},
            "extend": sweep.extend,
            "as_shown": sweep.as_shown,
            "errors": _errors(place),
        },
        "notes": _notes(place, choices, codes),
        "chosen": _chosen(choices, sweep),
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
    pieces = f"clusters of {' and of '.join(place.sweep.clustered_by) or 'consecutive rows'}"
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
    found += _edges(place, choices)
    if len(codes) > 1:
        found.append(
            f"parts were made by {len(codes)} versions of the model code; delete {place.folder} to compute all again"
        )
    if len(sweep.seeds) == 1:
        found.append("one seed: its randomness is in every figure and in no interval")
    elif not place.one_stream and len(sweep.seeds) < 5:
        found.append(f"{len(sweep.seeds)} seeds give wide intervals; 5 or more are usual")
    return found


def _edges(place: Place, choices: Mapping[tuple[str, str], Chosen]) -> list[str]:
    """Which grids were extended, and which choices still are at an edge."""
    extended: dict[str, list[str]] = {}
    edges: dict[str, list[str]] = {}
    for (student, arm), chosen in choices.items():
        if more := len(chosen.ne) - len(place.sweep.arms[arm].trials):
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


def _chosen(choices: Mapping[tuple[str, str], Chosen], sweep: Sweep) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (student, arm), chosen in choices.items():
        entry = {"tuned": chosen.setting.tuned, "trial": chosen.setting.trial, "ne_of_trials": chosen.ne}
        entry["beyond_the_grid"] = len(chosen.ne) - len(sweep.arms[arm].trials)
        entry["at_the_edge"] = chosen.edges
        entry["model"] = chosen.setting.student.model.model_dump(mode="json")
        found.setdefault(student, {})[arm] = entry
    return found


def _students(condition: str, judged: Mapping[tuple[str, str], Any], place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {}
    controls = place.sweep.controls_of(condition)
    for (student, task), by_condition in judged.items():
        value, arms = by_condition[condition], {}
        base = _seconds_per_row(value["arms"][place.sweep.baselines[0]]["cost"])
        lacking = value["too_few"]
        for arm, figures in value["arms"].items():
            seconds = _seconds_per_row(figures["cost"])
            entry = _plain({key: item for key, item in figures.items() if key != "figures"}) | figures["figures"]
            entry["gain_over"] = {name: _limited(gain, lacking) for name, gain in figures["gain_over"].items()}
            entry |= {"rows_per_s": 1 / seconds if seconds else None, "cost_ratio": seconds / base if base else None}
            if arm not in place.sweep.baselines:
                entry["gain"] = _limited(figures["gain"], lacking)
                if shown := figures.get("as_shown"):
                    entry["as_shown"] = {"ne": shown["ne"], "gain": _limited(shown["gain"], lacking)}
                entry["early_gain"] = _limited(figures["early_gain"], value["early_too_few"])
                if lacking is not None:
                    entry["transfer"] = {}
                known = {kind: by_condition[name]["arms"][arm]["gain"] for kind, name in controls.items()}
                entry["lost_to"] = {
                    kind: None if lacking else _plain(_lost(figures["gain"], gain)) for kind, gain in known.items()
                }
            arms[arm] = entry
        others = {
            name: made | made["figures"] | {"gain": _limited(made["gain"], lacking)}
            for name, made in value["others"].items()
        }
        for made in others.values():
            del made["figures"]
        shown = {key: item for key, item in value.items() if key != "clusters"}
        found.setdefault(student, {})[task] = shown | {"others": others, "arms": arms}
    return found


def _lost(gain: Estimate | None, control: Estimate | None) -> Estimate | None:
    """The share of the control's gain that is not there."""
    kept = estimate_ratio(gain, control) if gain and control else None
    return kept and Estimate(1 - kept.value, tuple(-way for way in kept.clusters), -kept.seeds)


def _seconds_per_row(cost: Mapping[str, Any]) -> float:
    return float(cost["seconds"] / cost["rows"]) if cost["rows"] else 0.0


def _limited(estimate: Estimate | None, lacking: str | None) -> dict[str, Any] | None:
    """An estimate as plain numbers; without an error where there is too little to tell, and `too_few` says of what."""
    if estimate is None:
        return None
    unknown = dict.fromkeys(("se", "low", "high", "p")) if lacking is not None else {}
    return _plain(estimate) | unknown | {"too_few": lacking}


def _plain(item: Any) -> Any:
    """Estimates as plain numbers; `seed_sd` is the standard deviation over seeds."""
    if isinstance(item, Estimate):
        return item.summary() | {"seed_sd": item.seed_sd}
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    return item


def _overall(condition: str, judged: Mapping[tuple[str, str], Any], place: Place) -> dict[str, Any]:
    """By task and arm: the mean over students, and the worst of them."""
    found: dict[str, Any] = {}
    controls = place.sweep.controls_of(condition)
    for task in dict.fromkeys(task for _, task in judged):
        students = [student for student, of in judged if of == task]
        average = partial(_average, ids=[judged[s, task][condition]["clusters"] for s in students])
        for arm in place.sweep.arms:
            each = {student: judged[student, task][condition]["arms"][arm] for student in students}
            lacking, early_lacking = (_first({s: judged[s, task][condition][key] for s in students}) for key in LIMITS)
            over = dict.fromkeys(name for e in each.values() for name in e["gain_over"])
            entry: dict[str, Any] = {
                "gain_over": {
                    name: _limited(average([e["gain_over"][name] for e in each.values()]), lacking) for name in over
                }
            }
            found.setdefault(task, {})[arm] = entry
            if arm in place.sweep.baselines:
                continue
            gain, early = (average([e[key] for e in each.values()]) for key in ("gain", "early_gain"))
            entry |= {"gain": _limited(gain, lacking), "early_gain": _limited(early, early_lacking)}
            if place.sweep.as_shown:
                shown = average([e["as_shown"]["gain"] for e in each.values()])
                entry["as_shown"] = {"gain": _limited(shown, lacking)}
            known = {
                kind: average([judged[s, task][name]["arms"][arm]["gain"] for s in students])
                for kind, name in controls.items()
            }
            entry["lost_to"] = {kind: None if lacking else _plain(_lost(gain, made)) for kind, made in known.items()}
            names = dict.fromkeys(name for e in each.values() for name in e["transfer"] if lacking is None)
            entry["transfer"] = {name: _plain(average([e["transfer"][name] for e in each.values()])) for name in names}
            entry["worst"] = _worst(
                {s: e["gain"] for s, e in each.items() if not judged[s, task][condition]["too_few"]}
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
