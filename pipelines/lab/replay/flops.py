"""Training FLOPs of a replay's arms: the student's own, and those with its share of the teacher.

    own            = rows that it learns · FLOPs of learning a row
    teacher        = rows that it learns · FLOPs of learning a row + rows of the stream · FLOPs of scoring a row
    with teacher   = own + teacher / students of the config that distil

All are counted from shapes (exfm/parallel/planning/cost.py), as if every row had a logit and none were sampled away.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from exfm.interactions.interaction import widen
from exfm.parallel.planning.cost import flops_per_example, training_flops_per_example
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.lab.data import places_of
from pipelines.lab.replay.settings import Setting, setting_of
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.conditions import Condition
from streaming.errors import BadInput

TOLERANCE = 0.1
"""Equal FLOPs are no further apart than this."""


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


def of_equal_flops(workspace: Workspace, setting: Setting) -> Setting:
    """The setting with its width and MLPs as wide as its arm's budget asks; unchanged without one.

    Raises BadInput where whole sizes leave it more than 10 % away.
    """
    spec, student = workspace.spec, setting.student
    if (budget := spec.arms[setting.arm].budget) is None:
        return setting
    condition = spec.conditions[budget.condition or spec.tuned_under]
    like = setting_of(spec, workspace.config.student(student.name), budget.arm, 0, {}).student
    wanted = training_flops(workspace, condition, like, budget.arm).with_teacher
    if wanted is None:
        raise BadInput(f"arm `{setting.arm}`: the budget's teacher is a twin, which is no share of any; name another")

    def flops(times: float) -> int:
        return training_flops(workspace, condition, _widened(student, times), setting.arm).own

    low, high = 2.0**-6, 2.0**8
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if flops(middle) < wanted else (low, middle)
    best = min((low, high), key=lambda times: abs(flops(times) / wanted - 1))
    if abs(flops(best) / wanted - 1) > TOLERANCE:
        raise BadInput(
            f"arm `{setting.arm}` is to train with {wanted:,} FLOPs, and the nearest that `{student.name}` can has "
            f"{flops(best):,}; give `budget` to an arm with MLPs to widen, or leave it out"
        )
    wide = _widened(student, best)
    sizes = {"width": wide.model.width, "trunk.mlp": wide.model.trunk.mlp, "trunk.bottom": wide.model.trunk.bottom}
    return setting._replace(student=wide, tuned=setting.tuned | sizes)


def _widened(student: StudentSettings, times: float) -> StudentSettings:
    """The student with embeddings and MLPs so many times as wide, embeddings in steps of four."""
    model = student.model
    trunk = {"mlp": widen(model.trunk.mlp, times), "bottom": widen(model.trunk.bottom, times)}
    sizes = {"width": 4 * max(1, round(model.width * times / 4)), "trunk": model.trunk.model_copy(update=trunk)}
    return student.model_copy(update={"model": model.model_copy(update=sizes)})


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
