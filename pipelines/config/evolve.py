"""A run that goes on with other features than it was started with, where there is a rule for it (exfm/growth/refit.py).

What may differ: tables that grow, features that only the teacher reads. A release that knows more settings than the one
that started the run makes a config of another hash, too, and nothing else differs. It is planned from the two configs
alone, said line by line before anything happens, and remembered in the run directory:

    lineage.json    [{"from": config hash, "to": config hash, "changes": [what was said]}, …]

A worker takes up checkpoints of its own config and of those it came from; what they say they were made with
(`made_with` in their meta) decides how they are fitted.
"""

from __future__ import annotations

from collections.abc import Collection

from exfm.errors import ModelError
from exfm.growth import MadeWith, feature_changes, fitted_teacher
from pipelines.config.settings import Config, Student
from pipelines.run_dir import RunDir
from streaming.disk import read_json, write_json
from streaming.errors import BadInput, StreamingError


def made_with_teacher(config: Config) -> MadeWith:
    """What the teacher's checkpoints and snapshots of this config are made with."""
    return MadeWith.of(config.teacher.model, config.teacher_features, config.tasks, config.seed)


def made_with_student(config: Config, student: Student) -> MadeWith:
    """What a student's checkpoints of this config are made with."""
    return MadeWith.of(student.model, config.student_features(student), config.student_tasks(student), config.seed)


def evolution(before: Config, now: Config, drop: Collection[str] = ()) -> list[str]:
    """What going on under `now` does to a run of `before`, line by line.

    Raises BadInput where they differ in more than features, or there is no rule for what differs.
    """
    if _but_features(now, before).decisive != before.decisive:
        raise BadInput("more than features differ")
    try:
        found = feature_changes(before.features, now.features)
        fitted_teacher({}, made_with_teacher(before), made_with_teacher(now), drop=True)
    except ModelError as error:
        raise BadInput(str(error)) from None
    dropped = {change.feature for change in found if change.kind == "dropped"}
    if unasked := sorted(dropped - set(drop)):
        raise BadInput(
            f"`{'`, `'.join(unasked)}` would be dropped, and what the teacher learned of it be lost; ask for it with "
            f"--drop {' --drop '.join(unasked)}, or put it back"
        )
    if idle := sorted(set(drop) - dropped):
        raise BadInput(f"--drop {idle[0]}: the config still has that feature, or the run never had it; leave it out")
    for old, new in zip(before.students, now.students, strict=True):
        _same_for_student(before, old, now, new)
    lines = [change.text for change in found]
    for change in found:
        readers = [s.name for s in now.students if change.feature in now.student_features(s).names]
        if readers:
            lines.append(f"`{change.feature}` is read by students too: {', '.join(readers)}; theirs grows alike")
    return lines


def older_hashes(run_dir: RunDir, config_hash: str) -> list[str]:
    """The configs that this one came from, the last one first."""
    found: list[str] = []
    for entry in reversed(_lineage(run_dir)):
        if entry["to"] == (found[-1] if found else config_hash):
            found.append(entry["from"])
    return found


def remember(run_dir: RunDir, before: str, now: str, lines: list[str]) -> None:
    """Before the run directory's config is replaced: from then on checkpoints of the config that hashed to `before` are
    those of this run."""
    entry = {"from": before, "to": now, "changes": lines}
    entries = _lineage(run_dir)
    if entry not in entries[-1:]:
        write_json(run_dir.lineage, [*entries, entry])


def _lineage(run_dir: RunDir) -> list[dict[str, str]]:
    entries = read_json(run_dir.lineage) or []
    if not isinstance(entries, list) or not all(isinstance(e, dict) and {"from", "to"} <= e.keys() for e in entries):
        raise StreamingError(f"{run_dir.lineage} is damaged (no list of configs); put it back from a copy")
    return entries


def _but_features(now: Config, before: Config) -> Config:
    """`now` with the features of `before`, and students' and the teacher's choice of them."""
    chosen = {student.name: student.features for student in before.students}
    students = tuple(s.model_copy(update={"features": chosen.get(s.name, s.features)}) for s in now.students)
    teacher = now.teacher.model_copy(update={"only": before.teacher.only})
    return now.model_copy(update={"features": before.features, "teacher": teacher, "students": students})


def _same_for_student(before: Config, old: Student, now: Config, new: Student) -> None:
    """A student keeps the features it began with."""
    had, has = before.student_features(old).names, now.student_features(new).names
    if had == has:
        return
    more, fewer = [n for n in has if n not in had], [n for n in had if n not in has]
    if fewer:
        raise BadInput(f"student `{new.name}` reads `{fewer[0]}`, and keeps the features it began with; put it back")
    if more:
        raise BadInput(
            f"student `{new.name}` would read the new feature `{more[0]}`, and keeps the features it began with; add "
            f"`{more[0]}` to teacher.only, or give students.{new.name}.features the list {list(had)}"
        )
    raise BadInput(f"student `{new.name}` reads its features in another order; put them back into theirs")
