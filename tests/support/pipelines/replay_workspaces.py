"""Places of a replay that tests work in."""

from __future__ import annotations

import numpy as np

from pipelines.lab.replay.jobs import train_together
from pipelines.lab.replay.store import TrainRequest
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.conditions import Condition


class AsItIs(Workspace):
    """A replay of one seed, that of the run; its stream has another."""

    def of(self, seed, arm=None):
        return self.config


def result_of(logits, absent=None, first=0):
    """What is stored of a student with these logits."""
    absent = np.zeros(len(logits), bool) if absent is None else absent
    return {
        "logits": logits,
        "absent": absent,
        "as_learned": logits,
        "first": first,
        "seconds": 1.0,
        "left_out": 0,
        "rows": len(logits),
    }


def learned_alone(workspace, seed, student, data, *, regression=False):
    """What comes of a student, or of a regression in its place, that learns all of `data` by itself."""
    asked = TrainRequest(seed, student, Condition(), workspace.folder / "alone.npz", regression=regression)
    (found,) = train_together(workspace, [asked], data, lambda count: None)
    return found
