"""Names of a replay's parts: files that are named after all that decides their content."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from exfm.distillation.arm import Arm
from exfm.models.student_config import StudentConfig
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.lab.logits.starts import start_of
from pipelines.lab.parts import part_name
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.conditions import Condition, LogitSource
from streaming.lake.logit_set import LogitSet

NOT_DECISIVE = {"name", "twin", "checkpoint_every_rows"}
"""Settings of a student that do not change what it learns. Its name stands for its row filter, which does count."""


class TrainRequest(NamedTuple):
    """A student to train, and the file its result goes to.

    student     with its model as an arm sets it
    twin        the part with the logits of a student without a teacher, where those teach it
    drawn_anew  whether its initial weights are others than those of the seed
    arm         the arm whose features it reads; None: the config's
    regression  train a logistic regression over its features and rows in its place
    """

    seed: int
    student: StudentSettings
    condition: Condition
    path: Path
    twin: Path | None = None
    drawn_anew: bool = False
    arm: str | None = None
    regression: bool = False


def requested(
    workspace: Workspace,
    seed: int,
    student: StudentSettings,
    condition: Condition,
    *,
    tuning: bool = False,
    twin: Path | None = None,
    drawn_anew: bool = False,
    arm: str | None = None,
    regression: bool = False,
) -> TrainRequest:
    """The request for a student's logits with this setting, or, with `tuning`, for its losses on the tuning part."""
    config, spec = workspace.of(seed, arm), workspace.spec
    if regression:  # no setting of a student's model is its own
        student = student.model_copy(update={"model": StudentConfig(arm=Arm(kind="none"))})
    decisive = {
        "rows": workspace.rows(seed).name,
        "logits": _logits(workspace, seed, condition, twin) if student.model.arm.distils else None,
        "student": student.model_dump(mode="json", exclude=NOT_DECISIVE) | {"verticals": student.row_filter},
        "features": config.student_features(student).model_dump(mode="json"),
        "tasks": config.student_tasks(student),
        "seed": seed,
        "drawn_anew": drawn_anew,
        "blocks": config.pace.blocks,
        "batches": student.batches,
        "start": condition.start,
        "chosen_on": spec.chosen_on if tuning else None,
    }
    if condition.label_faults:
        decisive["learned labels"] = condition.label_faults  # `labels`: with 0 where given feedback is lost
    if condition.late_s:
        decisive["late_s"] = condition.late_s
    if regression:
        decisive["regression"] = True
    if (checkpoint := start_of(student, workspace.run_dir, workspace.folder)) is not None:
        decisive["starts_from"] = [student.starts_from, read_manifest(checkpoint)["meta"]["lake_seq"]]
    kind = "trials" if tuning else "students"
    path = workspace.folder / kind / f"{student.name}-seed{seed}-{part_name(decisive)}.npz"
    return TrainRequest(seed, student, condition, path, twin, drawn_anew, arm, regression)


def _logits(workspace: Workspace, seed: int, condition: Condition, twin: Path | None) -> list[Any]:
    source = condition.logit_source
    part = twin
    if source is not None:
        part = None if workspace.is_logged(source) else teacher_part(workspace, seed, source)
    missing = [condition.missing] if condition.missing else []
    return [part and part.name, condition.scale, condition.shift, *missing]


def teacher_part(workspace: Workspace, seed: int, source: LogitSource) -> Path:
    """The file with the logits of a teacher that the replay trains, or of a run's stored snapshots."""
    folder, rows = workspace.folder / "logits", workspace.rows(seed).name
    if source.stored is not None:
        there: object = [[s.path.name, s.lake_seq] for s in workspace.snapshots]
        if (name := source.stored.logit_set) is not None:
            assert workspace.run_dir is not None
            there = LogitSet(workspace.run_dir.side_tables, name).id
        return folder / f"stored-{part_name({'rows': rows, 'stored': source.stored, 'there': there})}.npz"
    config = workspace.of(seed)
    features, model = workspace.teacher(source.teacher)
    decisive = {
        "rows": rows,
        "until": workspace.taught_until(seed),
        "features": features.model_dump(mode="json"),
        "model": model.model_dump(mode="json"),
        "tasks": config.tasks,
        "seed": seed,
        "batches": config.teacher.batches,
        "score_rows": config.augmentation.score_rows,
        "pace": [config.pace.blocks, config.pace.lag, config.kafka.examples.partitions],
        "born": source.born,
        "behind": source.behind,
    }
    return folder / f"seed{seed}-behind{source.behind}-{part_name(decisive)}.npz"
