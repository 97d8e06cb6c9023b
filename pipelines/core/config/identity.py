"""Identity of each worker's state: a hash of the settings it depends on, carried by checkpoints.

    stream rows   source, rows, how the input topics are cut                        what comes in, in which order
    lake rows     stream rows, settlement, pace                                     labels, lake_seq, blocks
    teacher       lake rows, the examples topic's cut, teacher, its features, seed
    augmentation  teacher, augmentation                                             a logit is a function of both
    student       lake rows, its own section, its features, seed, metrics

Nothing depends on a student, so adding, removing or changing one leaves every other worker's identity as it was. The
teacher reads every feature that is made of a row alone; histories are the students' own, and `teacher.only` says what
students do not read, so neither of the two is part of the teacher.

A student does not depend on the teacher's settings. Logits are data in the lake like labels: once a row is committed,
its logits never change, whatever teacher writes the next ones. A student's state is a function of the rows it has read,
and `lake_seq` in its checkpoint says which. That keeps its checkpoint valid where the teacher's tables grow
(`--evolve`) or another teacher takes over. What a student cannot survive is another lake under the same `lake_seq`; the
settings that decide which rows there are, in which order, are part of its identity for that reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipelines.core.config.hash import decisive

INPUTS = ("impressions", "feedback")
OF_A_ROW = ("sparse", "dense", "sequence")
"""Kinds of features that are made of a row alone; what is left, histories, are a student's own."""

TEACHER = "teacher"
"""Name of the teacher's worker."""

AUGMENTATION = "augmentation"
"""Name of the worker that writes the lake."""

STUDENT = "student-"
"""Before a student's name, it makes the name of its worker."""


def workers_of(settings: Mapping[str, Any]) -> list[str]:
    """Every worker whose state has an identity, by name."""
    return ["augmentation", "teacher", *(STUDENT + student["name"] for student in settings["students"])]


def identity_of(settings: Mapping[str, Any], worker: str) -> str:
    """Hash of the settings that the state of `worker` depends on. Raises KeyError for a worker that the settings do not
    have.

    >>> settings = {"seed": 1, "students": [{"name": "feed"}, {"name": "shop"}]}
    >>> other = settings | {"students": [{"name": "feed", "batch_rows": 64}]}
    >>> [identity_of(settings, worker) == identity_of(other, worker) for worker in ("teacher", "student-feed")]
    [True, False]
    """
    return hashlib.sha256(json.dumps(depends_on(settings, worker), sort_keys=True).encode()).hexdigest()[:16]


def depends_on(settings: Mapping[str, Any], worker: str) -> dict[str, Any]:
    """The settings that decide the state of `worker`."""
    deciding = decisive(settings)
    if worker == "teacher":
        return _teacher(deciding)
    if worker == "augmentation":
        return _teacher(deciding) | {"augmentation": deciding.get("augmentation")}
    return _student(deciding, worker)


def own_section(settings: Mapping[str, Any], student: str) -> dict[str, Any]:
    """A student's section without its features, with implied defaults written out.

    >>> own_section({"students": [{"name": "feed", "features": ["ad_id"]}]}, "feed")
    {'name': 'feed', 'verticals': ['feed'], 'tasks': []}
    """
    section = dict(_section(settings, student))
    section.pop("features", None)
    tasks = [task["name"] for task in (settings.get("rows") or {}).get("tasks", [])]
    return section | {"verticals": section.get("verticals") or [student], "tasks": section.get("tasks") or tasks}


def _lake_rows(kept: Mapping[str, Any]) -> dict[str, Any]:
    topics = kept.get("kafka") or {}
    sections = {key: kept.get(key) for key in ("source", "rows", "settlement", "pace")}
    return sections | {"inputs": {topic: topics.get(topic) for topic in INPUTS}}


def _teacher(kept: Mapping[str, Any]) -> dict[str, Any]:
    features = kept.get("features") or {}
    section = {key: value for key, value in (kept.get("teacher") or {}).items() if key != "only"}
    return _lake_rows(kept) | {
        "examples": (kept.get("kafka") or {}).get("examples"),
        "teacher": section,
        "features": {kind: features.get(kind, []) for kind in OF_A_ROW},
        "seed": kept.get("seed"),
    }


def _student(kept: Mapping[str, Any], worker: str) -> dict[str, Any]:
    name = worker.removeprefix(STUDENT)
    chosen = _section(kept, name).get("features")
    left_out = (kept.get("teacher") or {}).get("only") or []
    features = {
        kind: [f for f in listed if (f["name"] in chosen if chosen else f["name"] not in left_out)]
        for kind, listed in (kept.get("features") or {}).items()
    }
    return _lake_rows(kept) | {
        "student": own_section(kept, name),
        "features": features,
        "seed": kept.get("seed"),
        "metrics": kept.get("metrics"),
    }


def _section(settings: Mapping[str, Any], student: str) -> Mapping[str, Any]:
    for section in settings["students"]:
        if section["name"] == student:
            own_settings: Mapping[str, Any] = section
            return own_settings
    raise KeyError(f"no student is named `{student}`")
