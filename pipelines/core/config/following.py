"""Config of a run that follows the lake of another: the sections that are the other run's are taken from there.

    source: {lake: runs/ads, from: 0}    rows, features, pace, teacher, … as `runs/ads/config.yaml` has them
    students: […]                        its own, as are seed, metrics, registry, resources, alarms and tracking

What decides rows and logits has been decided where they are made. A section of these in the config of a run that
follows is refused by name, unless it says the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipelines.core.config.text import read_settings
from pipelines.core.run_dir.lake_link import read_link
from pipelines.core.run_dir.object_storage import leader_copy, shown
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput
from streaming.store.objects import is_url

OF_THE_LEADER = ("rows", "features", "pace", "kafka", "settlement", "augmentation", "lake", "teacher", "teachers")
"""Sections of the run that leads; `asof` is a part of its rows."""


def follows_lake(settings: Mapping[str, Any]) -> bool:
    """True if these are the settings of a run that follows another's lake."""
    source = settings.get("source")
    return isinstance(source, Mapping) and "lake" in source


def with_leader(settings: dict[str, Any], origin: str) -> dict[str, Any]:
    """The settings with the sections of the run whose lake they follow; those of other runs, and those that a run has
    written down, as they are.

    Raises BadInput where no run lies there, it follows another itself, or a section differs from its own.
    """
    if not follows_lake(settings) or "stream" in settings["source"]:
        return settings
    source = settings["source"] | {"kind": "lake"}
    leader = leader_at(source["lake"], origin)
    theirs = read_settings(leader.config, "config")
    expected = {name: theirs[name] for name in OF_THE_LEADER if name in theirs}
    compared = expected | {"asof": (theirs.get("rows") or {}).get("asof")}
    given = {name: settings[name] for name in (*OF_THE_LEADER, "asof") if name in settings}
    if other := [where for name in given for where in _unequal(given[name], compared.get(name), name)]:
        raise BadInput(
            f"{origin} follows the lake of {shown(leader)}, and sets {', '.join(f'`{where}`' for where in other[:5])}"
            f"{', …' * (len(other) > 5)}: that is decided where the rows are made, and {shown(leader)} has it "
            f"otherwise. Leave it out; a run that follows takes {', '.join(OF_THE_LEADER)} from there"
        )
    own = {name: value for name, value in settings.items() if name != "asof"}
    return own | expected | {"source": source | {"stream": theirs.get("source")}}


def leader_at(lake: Any, origin: str = "source.lake") -> RunDir:
    """The run whose lake is to be followed. Raises BadInput where none lies there that leads."""
    if not isinstance(lake, str) or not lake:
        raise BadInput(
            f"{origin}: source.lake is `{lake}`; give the folder of a run, or its address, as in {{lake: runs/ads, "
            "from: 0}"
        )
    leader = RunDir(leader_copy(lake) if is_url(lake) else Path(lake))
    if not leader.config.exists():
        why = "no config.yaml there" if leader.root.is_dir() else "there is no such folder"
        raise BadInput(
            f"{origin}: source.lake is {lake}, and no run lies there ({why}); give the folder of a run, or its address "
            "(`exfm stream` makes one)"
        )
    if (link := read_link(leader.root)) is not None:
        raise BadInput(
            f"{origin}: source.lake is {lake}, which follows the lake of {link.run} itself and has none; follow "
            f"{link.run}"
        )
    return leader


def _unequal(given: Any, theirs: Any, where: str) -> Iterator[str]:
    """Places at which settings say something else than those of the run that leads, as far as they say anything.

    >>> list(_unequal({"port": 3, "heap_mb": 1}, {"port": 4, "heap_mb": 1, "topic": "x"}, "kafka"))
    ['kafka.port']
    """
    if isinstance(given, Mapping) and isinstance(theirs, Mapping):
        for key, value in given.items():
            yield from _unequal(value, theirs.get(key), f"{where}.{key}")
    elif isinstance(given, list) and isinstance(theirs, list) and len(given) == len(theirs):
        for index, (one, other) in enumerate(zip(given, theirs, strict=True)):
            yield from _unequal(one, other, f"{where}.{index}")
    elif given != theirs:
        yield where


def begun_at(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with no student beginning before the row at which the run does.

    >>> begun_at({"source": {"lake": "/runs/ads", "from": 9}, "students": [{"name": "feed"}]})["students"]
    [{'name': 'feed', 'first_seq': 9}]
    """
    students = settings.get("students")
    if not follows_lake(settings) or not isinstance(students, list):
        return settings
    first = settings["source"].get("from") or 0

    def begun(student: Any) -> Any:
        own = student.get("first_seq") or 0 if isinstance(student, dict) else None
        return (
            student | {"first_seq": first}
            if isinstance(own, int) and isinstance(first, int) and own < first
            else student
        )

    return settings | {"students": [begun(student) for student in students]}
