"""A student's exports: what is served, written with every checkpoint, and refused where it is not that student."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from exfm.data import Batch
from exfm.models import STUDENT, ServedStudent, StudentEngine, check_logits, load_student, save_served, under
from exfm.tensors import prune_checkpoints

KEPT = 2


class Export:
    """Exports of one student into `folder`, the last two of them."""

    def __init__(self, served: ServedStudent, folder: Path) -> None:
        self._served, self._folder = served, folder

    def of(self, engine: StudentEngine, batch: Batch, name: str, tensors: Mapping[str, Tensor]) -> Callable[[], None]:
        """What writes the export `name` of an engine's state `tensors`, later, in another thread. The student, as it is
        now, says of `batch` what the export must say of it too; otherwise writing raises ModelError."""
        logits = engine.score(batch)

        def write() -> None:
            load_student(self._served, under(STUDENT, tensors))
            check_logits(logits, self._served, batch)
            save_served(self._served, self._folder, name)
            prune_checkpoints(self._folder, keep=KEPT)

        return write
