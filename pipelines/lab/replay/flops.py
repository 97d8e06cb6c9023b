"""Training FLOPs of a replay's arms: the student's own, and those with its share of the teacher.

    own            = rows that it learns · FLOPs of learning a row
    teacher        = rows that it learns · FLOPs of learning a row + rows of the stream · FLOPs of scoring a row
    with teacher   = own + teacher / students of the config that distil

All are counted from shapes (exfm/parallel/planning/cost.py), as if every row had a logit and none were sampled away.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from exfm.parallel.planning.cost import flops_per_example, training_flops_per_example
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.lab.replay.data import places_of
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.conditions import Condition


class TrainingFlops(NamedTuple):
    """FLOPs over the whole stream of the first seed. `with_teacher`: None where the teacher is the student's twin."""

    own: int
    with_teacher: int | None


def training_flops(workspace: Workspace, condition: Condition, student: StudentSettings, arm: str) -> TrainingFlops:
    """Training FLOPs of a student with an arm's features, under a condition."""
    config = workspace.of(workspace.spec.seeds[0], arm)
    features, tasks = config.student_features(student), len(config.student_tasks(student))
    rows = round(_learned_rows(workspace, student) * (1 - condition.start))
    own = rows * training_flops_per_example(student.model, features, tasks)
    if not student.model.arm.distils:
        return TrainingFlops(own, own)
    if (teacher := teacher_flops(workspace, condition)) is None:
        return TrainingFlops(own, None)
    readers = sum(one.model.arm.distils for one in workspace.config.students)
    return TrainingFlops(own, own + teacher // max(1, readers))


def teacher_flops(workspace: Workspace, condition: Condition) -> int | None:
    """FLOPs of a condition's teacher, which learns and scores the stream once for all students; None for the twin."""
    if (source := condition.logit_source) is None:
        return None
    features, model = workspace.teacher(source.teacher)
    rows, tasks = workspace.rows(workspace.spec.seeds[0]).num_rows, len(workspace.config.tasks)
    learned = max(0, rows - source.born * workspace.config.pace.block_rows)
    learning, scoring = (of(model, features, tasks) for of in (training_flops_per_example, flops_per_example))
    return learned * learning + rows * scoring


def _learned_rows(workspace: Workspace, student: StudentSettings) -> int:
    """Rows that are in the student's batches: its own, or those of every vertical."""
    if student.learns_from_others:
        return _settled_rows(workspace, "all", None, student.tasks)
    return _settled_rows(workspace, student.row_filter or "all", student.where, student.tasks)


@lru_cache(maxsize=64)
def _settled_rows(
    workspace: Workspace, verticals: tuple[str, ...] | Literal["all"], where: str | None, tasks: tuple[str, ...]
) -> int:
    reader = StudentSettings(name="reader", verticals=verticals, where=where, tasks=tasks)
    seed = workspace.spec.seeds[0]
    return len(places_of(workspace.rows(seed), workspace.of(seed), reader, workspace.folder))
