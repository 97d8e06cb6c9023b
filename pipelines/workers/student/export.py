"""Exports of a student and of its twin: what is served, written with every checkpoint, and refused where it is not that
model. Both are of one size and are loaded alike: a twin can be served in the place of its student."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from exfm.data import Batch
from exfm.models import StudentEngine, check_logits, load_student, save_served, under
from exfm.tensors import prune_checkpoints

KEPT = 2


class Exports:
    """Exports of every model of an engine, each into its own of `folders`, the last two of them."""

    def __init__(self, engine: StudentEngine, folders: Mapping[str, Path]) -> None:
        self._engine, self._folders = engine, folders
        self._served = {model: student.export() for model, student in engine.models.items()}

    def of(self, batch: Batch, name: str, tensors: Mapping[str, Tensor]) -> Callable[[], None]:
        """What writes the exports `name` of the engine's state `tensors`, later, in another thread. Each model, as it
        is now, says of `batch` what its export must say of it too; otherwise writing raises ModelError."""
        logits = {model: student.score(batch) for model, student in self._engine.models.items()}

        def write() -> None:
            for model, served in self._served.items():
                load_student(served, under(model, tensors))
                check_logits(logits[model], served, batch)
                save_served(served, self._folders[model], name)
                prune_checkpoints(self._folders[model], keep=KEPT)

        return write
