"""Warm start: a student begins with the weights of another student's checkpoint."""

from __future__ import annotations

from pathlib import Path

from exfm.models.engine import StudentEngine
from exfm.models.growth.refit import MadeWith
from exfm.models.growth.warm import warm_start
from exfm.snapshots.checkpoint import open_checkpoint
from pipelines.core.config.evolve import made_with_student
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings


def start_warm(engine: StudentEngine, checkpoint: Path, config: Config, student: StudentSettings) -> None:
    """Initialise a fresh engine with matching tensors of the checkpoint, by name and shape; wider tables keep their
    rows."""
    other = open_checkpoint(checkpoint)
    was, now = MadeWith.of_meta(other.meta["made_with"]), made_with_student(config, student)
    engine.start_from(other.tensors, lambda fresh, theirs: warm_start(fresh, theirs, was, now).state)
