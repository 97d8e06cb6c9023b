"""Continuation of a run under a config: whether it is possible, and its announcement and record.

the same settings                           it is resumed
students joined or left                     resumed: others keep their checkpoints, a new one begins with the lake
a student's own section changed             refused, unless it has learned nothing yet
features or columns differ, or topics grew   resumed with --evolve, where there is a rule
anything else                               refused
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from exfm.errors import ModelError
from exfm.snapshots.checkpoint import checkpoint_names
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.evolve import StudentChanges, decisive_for_all, evolution, student_changes, with_students
from pipelines.core.config.hash import decisive, hash_of
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.kept_columns import with_kept_columns
from pipelines.core.config.lineage import accepted_identities, remember
from pipelines.core.config.settings import Config, parse
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput
from streaming.lake.readers import Readers
from streaming.store.working_copy import brought_up

SAME = "the config is written in other words (in another order) and computes the same"


def settle(config: Config, run_dir: RunDir, *, evolve: bool, drop: Collection[str], say: Callable[[str], None]) -> None:
    """Announce and record a continuation; raises BadInput if the run in `run_dir` cannot continue under `config`."""
    if not run_dir.config.exists():
        return
    before = _written(run_dir)
    differing = list(_differences(_by_student(decisive(before)), _by_student(config.decisive)))
    if not differing and hash_of(before) == config.hash:
        return
    way = ""
    try:
        started_with = parse(before, str(run_dir.config))
        changes_of_students = student_changes(started_with, config)
        staying = [
            s.name
            for s in config.students
            if s.name not in (*changes_of_students.joining, *changes_of_students.changed)
        ]
        was, now = (with_kept_columns(with_students(c, staying), run_dir) for c in (started_with, config))
        lines = evolution(was, now, drop)
    except BadInput as error:
        if evolve:
            way = f" --evolve cannot: {error}."
    else:
        if evolve or decisive_for_all(was) == decisive_for_all(now):
            _refuse_changed(config, started_with, changes_of_students, run_dir)
            lines = [*lines, *_announced(changes_of_students, run_dir)] or [SAME]
            for line in lines:
                say(line)
            remember(run_dir, before, config, lines, anew=[STUDENT + name for name in changes_of_students.changed])
            for name in changes_of_students.leaving:
                Readers(run_dir.readers).retire(STUDENT + name)
            return
        way = f" Or continue it with --evolve{': ' * bool(lines)}{'; '.join(lines)}."
    shown = "; ".join(differing[:5]) + ("; …" if len(differing) > 5 else "")
    raise BadInput(
        f"{run_dir.root} holds a run under another config ({shown}). Resume it with the config it was started with "
        f"({run_dir.config}), give another --run-dir, or start over with --fresh (deletes what is there).{way}"
    )


def _refuse_changed(config: Config, before: Config, found: StudentChanges, run_dir: RunDir) -> None:
    """Raises BadInput for students whose checkpoints do not fit their section."""
    problems = []
    for name in (*found.changed, *found.joining):
        if not (traces := _traces(run_dir, name)):
            continue
        if name in found.changed:
            was, now = (c.student(name).model_dump(mode="json") for c in (before, config))
            problem = f"has learned under other settings ({'; '.join(_differences(was, now))})"
        elif _resumable(config, run_dir, STUDENT + name):
            continue
        else:
            problem = "was in this run before, under settings that its checkpoints do not fit"
        problems.append(
            f"student `{name}` {problem}. Give it another name, or its settings back; or delete "
            f"{' and '.join(map(str, traces))}, and it begins again with the lake"
        )
    if problems:
        raise BadInput("\n".join([*problems, "Nothing was changed; every other worker can be resumed."]))


def _announced(found: StudentChanges, run_dir: RunDir) -> Iterator[str]:
    for name in found.joining:
        if _traces(run_dir, name):
            yield f"student `{name}` is back: it resumes from its checkpoint; other workers from theirs"
        else:
            yield f"student `{name}` joins and learns the lake from its first row on; others resume where they were"
    for name in found.changed:
        yield f"student `{name}` learns the lake from its first row on, under its new settings"
    for name in found.leaving:
        checkpoints = run_dir.checkpoints(STUDENT + name)
        yield f"student `{name}` leaves: the lake keeps no rows for it any more; its checkpoints stay in {checkpoints}"


def _traces(run_dir: RunDir, student: str) -> list[Path]:
    """Folders of a student that has learned something."""
    checkpoints = brought_up(run_dir.checkpoints(STUDENT + student))
    folders = (checkpoints, run_dir.served(student), run_dir.served_twin(student))
    return [folder for folder in folders if checkpoint_names(folder)]


def _resumable(config: Config, run_dir: RunDir, worker: str) -> bool:
    """True if the newest checkpoint is of an identity that is accepted. One that is damaged is for the worker to judge:
    it falls back to the one before."""
    root = run_dir.checkpoints(worker)
    saved = checkpoint_names(root)
    try:
        identity = read_manifest(root / saved[-1])["meta"].get("config_hash") if saved else None
    except ModelError:
        return True
    return identity in accepted_identities(run_dir, config, worker)


def _written(run_dir: RunDir) -> dict[str, Any]:
    """The settings that the run was started with."""
    try:
        settings = yaml.safe_load(run_dir.config.read_text())
        if isinstance(settings, dict):
            return settings
        flaw = "no mapping of settings"
    except (yaml.YAMLError, ValueError) as error:
        flaw = str(error).splitlines()[0]
    raise BadInput(
        f"{run_dir.config} is no longer YAML ({flaw}); put back what the run was started with, give another --run-dir, "
        "or start over with --fresh (deletes what is there)"
    )


def _by_student(settings: dict[str, Any]) -> dict[str, Any]:
    """Students by name, so that a difference names the student and its setting."""
    students = settings.get("students")
    if not isinstance(students, list) or not all(isinstance(s, dict) and "name" in s for s in students):
        return settings
    return settings | {"students": {str(student["name"]): student for student in students}}


def _differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (a, b) in enumerate(zip(before, now, strict=True)):
            yield from _differences(a, b, f"{path}.{index}")
    elif before != now:
        yield f"{path} was {_short(before)}, is {_short(now)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "…"
