"""A run that continues with other features, or other students, than it was started with.

Features may differ where there is a rule for it (exfm/growth/refit.py): tables that grow, features that only the
teacher reads. Students may join and leave, for nothing depends on them; one that has learned keeps its settings. All of
it is planned from the two configs alone and announced line by line before anything happens; the run directory remembers
it (lineage.py). What a checkpoint was made with (`made_with` in its meta) decides how it is fitted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from exfm.errors import ModelError
from exfm.growth import MadeWith, feature_changes, fitted_teacher
from pipelines.config.identity import own_section
from pipelines.config.settings import Config, StudentSettings
from streaming.errors import BadInput


class StudentChanges(NamedTuple):
    """The students of two configs, by name."""

    joining: tuple[str, ...]
    leaving: tuple[str, ...]
    changed: tuple[str, ...]
    """In both, with another section: their checkpoints do not fit it."""


def student_changes(before: Config, now: Config) -> StudentChanges:
    """Who joins, who leaves, and whose own section differs; that of features alone is for `evolution` to judge."""
    had, has = ({student.name: student for student in config.students} for config in (before, now))
    settings = [config.model_dump(mode="json") for config in (before, now)]
    same_features = (before.features, before.teacher.only) == (now.features, now.teacher.only)

    def differs(name: str) -> bool:
        read = [config.student_features(config.student(name)).names for config in (before, now)]
        sections = [own_section(each, name) for each in settings]
        return sections[0] != sections[1] or (same_features and read[0] != read[1])

    return StudentChanges(
        tuple(name for name in has if name not in had),
        tuple(name for name in had if name not in has),
        tuple(name for name in has if name in had and differs(name)),
    )


def with_students(config: Config, names: Collection[str]) -> Config:
    """`config` with the students named, in that order."""
    return config.model_copy(update={"students": tuple(config.student(name) for name in names)})


def made_with_teacher(config: Config) -> MadeWith:
    """What the teacher's checkpoints and snapshots of this config are made with."""
    return MadeWith.of(config.teacher.model, config.teacher_features, config.tasks, config.seed)


def made_with_student(config: Config, student: StudentSettings) -> MadeWith:
    """What a student's checkpoints of this config are made with."""
    return MadeWith.of(student.model, config.student_features(student), config.student_tasks(student), config.seed)


def decisive_for_all(config: Config) -> dict[str, Any]:
    """What decides the whole run: everything but its students."""
    return {key: value for key, value in config.decisive.items() if key != "students"}


def evolution(before: Config, now: Config, drop: Collection[str] = ()) -> list[str]:
    """What continuing under `now` does to a run of `before`, line by line. Both have the same students, whose sections
    say the same except for features.

    Raises BadInput where more than features differ, or there is no rule for what differs.
    """
    if decisive_for_all(_but_features(now, before)) != decisive_for_all(before):
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


def _but_features(now: Config, before: Config) -> Config:
    """`now` with the features of `before`, and the teacher's choice of them."""
    teacher = now.teacher.model_copy(update={"only": before.teacher.only})
    return now.model_copy(update={"features": before.features, "teacher": teacher})


def _same_for_student(before: Config, old: StudentSettings, now: Config, new: StudentSettings) -> None:
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
