"""The block agreed on by the ranks, and the learned part of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exfm.models.engine import PreparedBatch
from pipelines.live.feeds.teacher import Portion
from streaming.position import Positions


@dataclass
class AgreedBlock:
    """A block of which every rank has its part. `cuts`, (S + 1, P): of all partitions' rows; `positions`: of all.
    `next_step` is the step that comes next; `sent`: its batch, where its ids are on their way."""

    portion: Portion
    cuts: np.ndarray
    positions: Positions
    next_step: int = 0
    sent: PreparedBatch | None = None

    @property
    def steps(self) -> int:
        return len(self.cuts) - 1

    @property
    def done(self) -> bool:
        return self.next_step == self.steps

    def rows_of(self, step: int) -> int:
        """Rows of a step on all ranks."""
        return int((self.cuts[step + 1] - self.cuts[step]).sum())

    def place_of(self, mine: range, step: int) -> int:
        """Start of the rows of the partitions `mine` among all rows of a step."""
        start, stop = self.cuts[step : step + 2, : mine.start].sum(1).tolist()
        return int(stop - start)
