"""Exports of a student and of its twin, written with every checkpoint, and refused if they predict differently. Both
are of one size and are loaded alike: a twin can be served in the place of its student.

One that is refused is an alarm, and no reason to stop training: the checkpoint holds the model itself, and what was
exported before stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from exfm.errors import ModelError
from exfm.features.batch import Batch
from exfm.models.engine import StudentEngine
from exfm.models.served import check_logits, load_student, save_served
from exfm.snapshots.checkpoint import prune_checkpoints
from exfm.snapshots.named import under
from streaming.store.working_copy import put_tree

KEPT = 2

log = logging.getLogger(__name__)


class Exports:
    """Exports of every model of an engine, each into its own of `folders`, keeping the last two. `alarm`: which was
    refused last, and why; None once one is good again."""

    def __init__(self, engine: StudentEngine, folders: Mapping[str, Path]) -> None:
        self._engine, self._folders = engine, folders
        self.alarm: str | None = None
        self._served = {model: student.export() for model, student in engine.models.items()}

    def of(self, batch: Batch, name: str, tensors: Mapping[str, Tensor]) -> Callable[[], None]:
        """Prepare a deferred write of the exports `name` from the engine's state `tensors`. Each model, as it is
        now, says of `batch` what its export must say of it too; one that does not is not written."""
        logits = {model: student.score(batch) for model, student in self._engine.models.items()}

        def write() -> None:
            refused = None
            for model, served in self._served.items():
                load_student(served, under(model, tensors))
                try:
                    check_logits(logits[model], served, batch)
                except ModelError as error:
                    refused = f"export {name} of the {model} was refused: {error}"
                    log.error("%s", refused)
                    continue
                put_tree(save_served(served, self._folders[model], name))
                prune_checkpoints(self._folders[model], keep=KEPT)
            self.alarm = refused

        return write
