"""Evolution of a run: continues with other features, columns, students, or more partitions.

Features may differ where there is a rule for it (exfm/models/growth/refit.py): tables that grow, features that only
the teacher reads; and kinds of the teacher's tables, where a table of one is exactly one of the other. So may the
columns of rows that others send (streaming/evolution.py). Input topics that others feed may have more partitions.
Students may join and leave, for nothing depends on them; one that has learned keeps its settings. All of it is planned
from the two configs alone and announced line by line before anything happens; the run directory remembers it
(lineage.py). What a checkpoint was made with (`made_with` in its meta) decides how it is fitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from exfm.errors import ModelError
from exfm.models.growth.kinds import changed_kinds
from exfm.models.growth.refit import MadeWith, feature_changes, fitted_teacher
from pipelines.core.config.identity import INPUTS, own_section
from pipelines.core.config.settings import Config, StudentSettings
from pipelines.core.run_dir.roster import Presence, Roster
from streaming.errors import BadInput
from streaming.evolution import schema_changes


class StudentChanges(NamedTuple):
    """The students of two configs, by name."""

    joining: tuple[str, ...]
    leaving: tuple[str, ...]
    changed: tuple[str, ...]
    """In both, with another section: their checkpoints do not fit it."""


def student_changes(before: Config, now: Config) -> StudentChanges:
    """Students who join, leave, or have a changed section; changes of features only are judged by `evolution`."""
    had, has = ({student.name: student for student in config.students} for config in (before, now))
    settings = [config.decisive for config in (before, now)]
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


def with_roster(config: Config, roster: Roster) -> Config:
    """The run's config with students that were spawned, and without those retired.

    Raises BadInput where a section no longer fits.
    """
    students = {student.name: student.model_dump(mode="json") for student in config.students}
    unchanged = dict(students)
    for desired in roster.standing:
        if desired.wanted is Presence.RETIRED:
            students.pop(desired.name, None)
        elif desired.section is not None:
            students.setdefault(desired.name, desired.section)
    if students == unchanged:
        return config
    return config.having(list(students.values()))


def made_with_teacher(config: Config) -> MadeWith:
    """Identity of the teacher's checkpoints and snapshots under this config."""
    return MadeWith.of(config.teacher.model, config.teacher_features, config.tasks, config.seed)


def made_with_student(config: Config, student: StudentSettings) -> MadeWith:
    """Identity of a student's checkpoints under this config."""
    return MadeWith.of(student.model, config.student_features(student), config.student_tasks(student), config.seed)


def decisive_for_all(config: Config) -> dict[str, Any]:
    """Settings that decide the whole run: everything but its students."""
    return {key: value for key, value in config.decisive.items() if key != "students"}


def evolution(before: Config, now: Config, drop: Collection[str] = ()) -> list[str]:
    """Effects of continuing a run of `before` under `now`, line by line. Both have the same students, whose sections
    say the same except for features.

    Raises BadInput where more than these differ, or there is no rule for what differs.
    """
    columns = _other_columns(before, now)
    if decisive_for_all(_but_what_may_differ(now, before)) != decisive_for_all(before):
        raise BadInput("more than features, kinds of the teacher's tables, columns and partitions differ")
    kinds = list[str]()
    try:
        changes = feature_changes(before.features, now.features)
        if now.follows is None:
            was, is_ = made_with_teacher(before), made_with_teacher(now)
            fitted_teacher({}, was, is_, drop=True)
            kinds = [
                f"`{name}` becomes `{kind.kind}`: the teacher's table is cut in chunks, and nothing it says changes"
                for name, kind in changed_kinds(was, is_).items()
            ]
    except ModelError as error:
        raise BadInput(str(error)) from None
    dropped = {change.feature for change in changes if change.kind == "dropped"}
    if unasked := sorted(dropped - set(drop)):
        raise BadInput(
            f"`{'`, `'.join(unasked)}` would be dropped, and what the teacher learned of it be lost; ask for it with "
            f"--drop {' --drop '.join(unasked)}, or put it back"
        )
    if idle := sorted(set(drop) - dropped):
        raise BadInput(f"--drop {idle[0]}: the config still has that feature, or the run never had it; leave it out")
    for old, new in zip(before.students, now.students, strict=True):
        _same_for_student(before, old, now, new)
    lines = [*columns, *_repartitioned(before, now), *(change.text for change in changes), *kinds]
    for change in changes:
        readers = [s.name for s in now.students if change.feature in now.student_features(s).names]
        if readers:
            lines.append(f"`{change.feature}` is read by students too: {', '.join(readers)}; theirs grows alike")
    return lines


def _but_what_may_differ(now: Config, before: Config) -> Config:
    """`now` with the features of `before`, the teacher's choice of them and its kinds of tables, its columns, and the
    partitions of its input topics."""
    model = now.teacher.model.model_copy(update={"embeddings": before.teacher.model.embeddings})
    teacher = now.teacher.model_copy(update={"only": before.teacher.only, "model": model})
    topics = {
        kind: getattr(now.kafka, kind).model_copy(update={"partitions": getattr(before.kafka, kind).partitions})
        for kind in INPUTS
    }
    kafka = now.kafka.model_copy(update=topics)
    as_before = {"features": before.features, "rows": before.rows, "teacher": teacher, "kafka": kafka}
    return now.model_copy(update=as_before)


def _other_columns(before: Config, now: Config) -> list[str]:
    """Raises BadInput where this run's own source fills the topics: it plays the columns that it began with."""
    lines = schema_changes(before.rows, now.rows)
    if lines and now.plays:
        raise BadInput(f"{lines[0]}; `source` fills the topics with the columns that the run began with: put them back")
    return lines


def _repartitioned(before: Config, now: Config) -> Iterator[str]:
    """Raises BadInput where this run's own source fills the topics: which partition a row is in follows from how many
    there are. Whether the topics have these partitions is for the broker to say."""
    for kind in INPUTS:
        had, has = getattr(before.kafka, kind).partitions, getattr(now.kafka, kind).partitions
        if had == has:
            continue
        if now.plays:
            raise BadInput(
                f"kafka.{kind}.partitions was {had}, and {has} are wanted; `source` fills them by a rule that the "
                "number is part of, so it stays"
            )
        if has < had:
            raise BadInput(
                f"kafka.{kind}.partitions was {had}, and {has} are wanted; a topic's partitions are never fewer, and "
                f"what lies in the others is not read to its end: put {had} back, or begin a new run"
            )
        yield (
            f"topic `{getattr(now.kafka, kind).topic}` is read in {has} partitions, {had} until now: what lies in "
            "those that were added is read from its beginning, from the last block on"
        )


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
