"""Hash of the settings that decide a run's result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

ELSEWHERE = ("run_dir", "tracking", "registry", "resources", "lake", "losses", "alarms", "teachers")
"""Sections that say where a run runs, how it is watched and judged, and who else scores: logits are data."""

RANKS, PLACEMENT = ("teacher", "augmentation"), ("workers", "ranks", "sharding", "read_ahead", "saves")
"""Sections, and in them the settings, that say which processes and threads do the work, and how states are
stored: a run goes on under others."""

TOPICS, CUT = ("impressions", "feedback", "examples"), ("partitions", "codec", "unwrap", "impression_id")
"""The Kafka settings that decide what a run computes: how the topics are cut, and how their messages are read."""


def decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that decide a run's result.

    >>> decisive({"seed": 1, "lake": {"days": 3}, "teacher": {"ranks": 2, "batch_rows": 64}})
    {'seed': 1, 'teacher': {'batch_rows': 64}}
    """
    deciding = _of_a_lake({key: value for key, value in settings.items() if key not in ELSEWHERE})
    for section in RANKS:
        if isinstance(deciding.get(section), Mapping):
            deciding[section] = {key: value for key, value in deciding[section].items() if key not in PLACEMENT}
    if isinstance(students := deciding.get("students"), Sequence):
        deciding["students"] = [{key: value for key, value in each.items() if key != "ranks"} for each in students]
    if isinstance(teacher := deciding.get("teacher"), Mapping):
        deciding["teacher"] = _by_content(teacher)
    if isinstance(source := deciding.get("source"), Mapping):
        deciding["source"] = _as_written(source)
    if isinstance(kafka := deciding.get("kafka"), Mapping):
        topics = {name: kafka[name] for name in TOPICS if isinstance(kafka.get(name), Mapping)}
        deciding["kafka"] = {name: {key: topic.get(key) for key in CUT} for name, topic in topics.items()}
    return deciding


def _of_a_lake(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run that follows another's lake: those that decide which rows there are are the other's, and so is
    the teacher, of which only the choice of features counts. Other settings as they are.

    >>> following = {"source": {"kind": "lake", "lake": "/runs/a", "stream": {"seed": 5}}, "teacher": {"lr": 1}}
    >>> _of_a_lake(following)
    {'source': {'seed': 5}, 'teacher': {'only': None}}
    """
    source = settings.get("source")
    if not isinstance(source, Mapping) or source.get("kind") != "lake":
        return settings
    left = {key: value for key, value in settings.items() if key != "augmentation"}
    topics = {key: value for key, value in (settings.get("kafka") or {}).items() if key != "examples"}
    left |= {"source": source.get("stream"), "teacher": {"only": (settings.get("teacher") or {}).get("only")}}
    return left | ({"kafka": topics} if "kafka" in settings else {})


def _by_content(teacher: Mapping[str, Any]) -> dict[str, Any]:
    """A teacher's section, with the digest of the one that it begins as: where that lies decides nothing.

    >>> _by_content({"ranks": 1, "init_from": {"path": "/may", "digest": "3f"}}), _by_content({"init_from": None})
    ({'ranks': 1, 'init_from': '3f'}, {})
    """
    section = {key: value for key, value in teacher.items() if key != "init_from"}
    if isinstance(begun := teacher.get("init_from"), Mapping):
        section["init_from"] = begun.get("digest")
    return section


def _as_written(source: Mapping[str, Any]) -> dict[str, Any]:
    """A source whose files are named as its config names them: where that config lies decides nothing.

    >>> _as_written({"path": "/data/clicks.parquet", "written_path": "clicks.parquet"})
    {'path': 'clicks.parquet'}
    """
    section = {key: value for key, value in source.items() if key not in ("written_path", "copies")}
    if (written := source.get("written_path")) is not None:
        section["path"] = written
    if isinstance(feedback := source.get("feedback"), Mapping):
        section["feedback"] = _as_written(feedback)
    return section


def hash_of(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(decisive(settings), sort_keys=True).encode()).hexdigest()[:16]
