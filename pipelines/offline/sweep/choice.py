"""Which of its settings an arm is judged with, for each student: the best one on the part that is not judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from exfm.metrics import normalise_loss
from pipelines.offline.sweep.settings import Setting


class Chosen(NamedTuple):
    """A setting, and the mean NE over seeds and tasks of all that were tried; None where there was only one. `edges`:
    tuned numbers that are the smallest or largest of three or more tried."""

    setting: Setting
    ne: list[float | None]
    edges: list[str]


def choose(settings: Sequence[Setting], sums: Mapping[int, Sequence[Mapping[str, np.ndarray]]]) -> Chosen:
    """`sums`: for every trial, by seed, Σ w·h, Σ w and Σ w·y of each task on the part that settings are chosen on."""
    if len(settings) == 1:
        return Chosen(settings[0], [None], [])
    ne = [_mean_ne(sums[setting.trial]) for setting in settings]
    best = settings[int(np.argmin([np.inf if value is None else value for value in ne]))]
    return Chosen(best, ne, _edges(best, settings))


def _mean_ne(seeds: Sequence[Mapping[str, np.ndarray]]) -> float | None:
    """The mean over seeds and tasks; None where a loss was not finite. A task with a single class is left out.

    >>> sums = {"loss": np.array([0.5, 3.0]), "weight": np.array([1.0, 4.0]), "positive": np.array([0.0, 2.0])}
    >>> round(_mean_ne([sums]), 4), round(float(0.75 / np.log(2)), 4)
    (1.082, 1.082)
    """
    found = []
    for sums in seeds:
        for loss, weight, positive in zip(sums["loss"], sums["weight"], sums["positive"], strict=True):
            if not np.isfinite(loss):
                return None
            if weight > 0 and (ne := normalise_loss(loss / weight, positive / weight)) is not None:
                found.append(ne)
    return float(np.mean(found)) if found else None


def _edges(best: Setting, settings: Sequence[Setting]) -> list[str]:
    found = []
    for path, value in best.tuned.items():
        tried: set[Any] = {s.tuned.get(path) for s in settings}
        numbers = [x for x in tried if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(numbers) == len(tried) >= 3 and value in (min(numbers), max(numbers)):
            found.append(path)
    return found
