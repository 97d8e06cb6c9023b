"""The weights of another student's checkpoint, for one that begins with them."""

from __future__ import annotations

from pathlib import Path

from exfm.growth import MadeWith, warm_start
from exfm.models import StudentEngine
from exfm.tensors import open_checkpoint
from pipelines.config import Config, StudentSettings, made_with_student


def start_warm(engine: StudentEngine, checkpoint: Path, config: Config, student: StudentSettings) -> None:
    """Have a fresh engine begin with what fits of the checkpoint, by name and shape; wider tables keep their rows."""
    other = open_checkpoint(checkpoint)
    was, now = MadeWith.of_meta(other.meta["made_with"]), made_with_student(config, student)
    engine.start_from(other.tensors, lambda fresh, theirs: warm_start(fresh, theirs, was, now).state)
