"""Choice of each arm's setting, for each student: the best one on the part that is not judged.

Where the best is at the edge of a grid, the next value beyond it is tried, too, by the same rule for all arms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from exfm.metrics.classification import normalise_loss
from pipelines.lab.replay.settings import Setting


class Chosen(NamedTuple):
    """The chosen setting, and the mean NE over seeds and tasks of all trials; None if unknown. `edges`: tuned
    numbers that are the smallest or largest of three or more tried."""

    setting: Setting
    ne: list[float | None]
    edges: list[str]

    @property
    def best_ne(self) -> float:
        """NE of the chosen setting; infinite if unknown."""
        ne = self.ne[self.setting.trial]
        return np.inf if ne is None else ne


Choices = Mapping[tuple[str, str], Chosen]
"""Student and arm -> the setting that was chosen."""


def choose(settings: Sequence[Setting], sums: Mapping[int, Sequence[Mapping[str, np.ndarray]]]) -> Chosen:
    """`sums`: for every trial, by seed, Σ w·h, Σ w and Σ w·y of each task on the part that settings are chosen on; none
    where a single setting need not be chosen."""
    ne = [_mean_ne(sums.get(setting.trial, ())) for setting in settings]
    best = settings[int(np.argmin([np.inf if value is None else value for value in ne]))]
    return Chosen(best, ne, _edges(best, settings))


def best_of(chosen: Mapping[str, Chosen]) -> str:
    """The arm with the lowest NE; the first one of equals."""
    return min(chosen, key=lambda arm: chosen[arm].best_ne)


def beyond(chosen: Chosen, settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """Suggest values beyond the grid if the best setting is at its edge. Nothing where a geometric step leads nowhere.

    >>> settings = [Setting("a", n, {"lr": lr, "w": 1}, None) for n, lr in enumerate((0.1, 0.2, 0.4))]
    >>> beyond(Chosen(settings[2], [], ["lr"]), settings)
    [{'lr': 0.8, 'w': 1}]
    """
    more = []
    for path in chosen.edges:
        value = _next(chosen.setting.tuned[path], {s.tuned[path] for s in settings})
        tuned = chosen.setting.tuned | {path: value}
        if value is not None and all(tuned != s.tuned for s in settings):
            more.append(tuned)
    return more


def _next(value: float, tried: Collection[float]) -> float | None:
    """One step beyond an edge, as large as the last one, in proportion.

    >>> _next(0.1, {0.1, 0.2, 0.4}), _next(512, {128, 256, 512}), _next(0.24, {0.06, 0.12, 0.24})
    (0.05, 1024, 0.48)
    >>> _next(1, {1, 2, 4}), _next(0, {0, 1, 2})
    (None, None)
    """
    neighbour = min((other for other in tried if other != value), key=lambda other: abs(other - value))
    if value <= 0 or neighbour <= 0:
        return None
    step = float(f"{value * value / neighbour:.6g}")
    if all(isinstance(number, int) for number in tried):
        return round(step) if round(step) not in (0, value) else None
    return step


def _mean_ne(seeds: Sequence[Mapping[str, np.ndarray]]) -> float | None:
    """The mean over seeds and tasks; None where a loss was not finite. A task with a single class is left out.

    >>> sums = {"loss": np.array([0.5, 3.0]), "weight": np.array([1.0, 4.0]), "positive": np.array([0.0, 2.0])}
    >>> round(_mean_ne([sums]), 4), round(float(0.75 / np.log(2)), 4)
    (1.082, 1.082)
    """
    every = []
    for sums in seeds:
        for loss, weight, positive in zip(sums["loss"], sums["weight"], sums["positive"], strict=True):
            if not np.isfinite(loss):
                return None
            if weight > 0 and (ne := normalise_loss(loss / weight, positive / weight)) is not None:
                every.append(ne)
    return float(np.mean(every)) if every else None


def _edges(best: Setting, settings: Sequence[Setting]) -> list[str]:
    edges = []
    for path, value in best.tuned.items():
        tried: set[Any] = {s.tuned.get(path) for s in settings}
        numbers = [x for x in tried if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(numbers) == len(tried) >= 3 and value in (min(numbers), max(numbers)):
            edges.append(path)
    return edges
