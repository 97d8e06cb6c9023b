"""NE of students, their twins, champions and the teacher by event time, from the logs of predictions.

Each part of a log is read once: sums by minute of event time are kept, and parts that came since are added. NE of an
interval is the mean log loss of its rows over the entropy of its base rate, all models on the same rows. A champion is
asked only while a candidate is compared with it: it has a point where it scored every row of the interval.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from exfm.metrics.limits import MIN_POSITIVES
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.predictions import CHAMPION, parts_of
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import Ledger

MODELS = ("student", "no_teacher", "teacher", "constant", CHAMPION)
MINUTE_MS = 60_000
POINTS = 60
"""At most so many points of a curve; fewer where they would hold too few positives."""

Sums = dict[int, np.ndarray]
"""By minute: rows, positives, and the summed log loss of each model, in the order of its `Curve.models`; NaN of a
champion that did not score them all."""


class Curve:
    """Sums of one student and task, by minute of event time. `trained`: the models without the champion."""

    def __init__(self, trained: Sequence[str]) -> None:
        self.trained = tuple(trained)
        self.models = (*self.trained, CHAMPION)
        self._parts: dict[str, Sums] = {}

    def add(
        self,
        part: str,
        event_time_ms: np.ndarray,
        labels: np.ndarray,
        logits: Mapping[str, np.ndarray],
        weights: np.ndarray | None = None,
    ) -> None:
        """Add the rows of a part, (N,) each: those with a label and with the logit of every model but the champion.
        `weights`: how many rows each stands for; None: one."""
        trained = [logits[model] for model in self.trained]
        columns = [*trained, logits.get(CHAMPION, np.full(len(labels), np.nan))]
        whole = np.isfinite(labels) & np.logical_and.reduce([np.isfinite(z) for z in trained])
        y, minutes = labels[whole], event_time_ms[whole] // MINUTE_MS
        found, place = np.unique(minutes, return_inverse=True)
        w = np.ones(len(y)) if weights is None else weights[whole]
        with np.errstate(invalid="ignore"):  # of the champion
            values = [np.ones(len(y)), y, *(np.logaddexp(0.0, z[whole]) - y * z[whole] for z in columns)]
        sums = np.stack([np.bincount(place, w * value, len(found)) for value in values], axis=1)
        self._parts[part] = dict(zip(found.tolist(), sums, strict=True))

    def keep(self, parts: Sequence[str]) -> None:
        """Forget parts that are gone: a restart makes the last one again."""
        self._parts = {name: sums for name, sums in self._parts.items() if name in parts}

    def __contains__(self, part: str) -> bool:
        return part in self._parts

    def points(self) -> dict[str, Any]:
        """NE by interval: its middle in event time, and the NE of each model there; None where it has one class only.

        >>> curve = Curve(["student"])
        >>> curve.add("a", np.array([0, 10, 60_000]), np.array([0.0, 1.0, 0.0]), {"student": np.zeros(3)})
        >>> curve.points()
        {'t': [60000], 'rows': [3], 'positives': [1], 'ne': {'student': [1.089]}}
        """
        if not any(self._parts.values()):
            return {"t": [], "rows": [], "positives": [], "ne": {model: [] for model in self.trained}}
        minutes = np.concatenate([np.array(list(sums), np.int64) for sums in self._parts.values()])
        rows = np.stack([row for sums in self._parts.values() for row in sums.values()])
        order = np.argsort(minutes, kind="stable")
        minutes, rows = minutes[order], rows[order]
        count = int(np.clip(rows[:, 1].sum() // MIN_POSITIVES, 1, POINTS))
        edges = np.searchsorted(rows[:, 0].cumsum(), np.linspace(0, rows[:, 0].sum(), count + 1)[1:-1])
        starts = np.unique(np.concatenate([[0], edges + 1]))
        starts = starts[starts < len(minutes)]
        sums = np.add.reduceat(rows, starts, axis=0)
        first, last = minutes[starts], minutes[np.append(starts[1:] - 1, len(minutes) - 1)]
        rate = np.clip(sums[:, 1] / sums[:, 0], 1e-12, 1 - 1e-12)
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
        known = (sums[:, 1] > 0) & (sums[:, 1] < sums[:, 0])
        ne = np.where(known[:, None], sums[:, 2:] / sums[:, :1] / entropy[:, None], np.nan)
        return {
            "t": ((first + last + 1) * MINUTE_MS // 2).tolist(),
            "rows": sums[:, 0].astype(int).tolist(),
            "positives": sums[:, 1].astype(int).tolist(),
            "ne": {
                model: [round(value, 4) if isfinite(value) else None for value in values]
                for model, values in zip(self.models, ne.T.tolist(), strict=True)
                if model != CHAMPION or any(map(isfinite, values))
            },
        }


class Curves:
    """Curves of the students of a run, each read when it is first asked for."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._curves: dict[str, dict[str, Curve]] = {}
        self._reading = threading.Lock()

    def of(self, student: str, tasks: Sequence[str]) -> dict[str, Any]:
        """The student's curves by task, with the parts that have come since, and when a version became champion."""
        with self._reading:  # one student at a time: the page asks for those that are seen
            _, parts = parts_of(self._run_dir.predictions(student))
            curves = self._curves.setdefault(student, {})
            for curve in curves.values():
                curve.keep([part.name for part in parts])
            for part in parts:
                if not all(task in curves and part.name in curves[task] for task in tasks):
                    with suppress(FileNotFoundError):  # pruned, or made again by a restart
                        self._add(part, tasks, curves)
            found = {task: curve.points() for task, curve in curves.items()}
        return {"student": student, "tasks": found, "champions": champions_of(self._run_dir, student)}

    def _add(self, part: Path, tasks: Sequence[str], curves: dict[str, Curve]) -> None:
        names = pq.read_schema(part).names
        wanted = [f"{kind}_{task}" for task in tasks for kind in ("label", "weight", *MODELS)]
        rows = pq.read_table(part, columns=["event_time_ms", *(name for name in wanted if name in names)])
        values = {name: rows[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in rows.column_names}
        event_time_ms = rows["event_time_ms"].to_numpy()
        for task in tasks:
            logits = {model: values[f"{model}_{task}"] for model in MODELS if f"{model}_{task}" in values}
            curve = curves.setdefault(task, Curve([model for model in logits if model != CHAMPION]))
            if logits.keys() >= {*curve.trained}:
                curve.add(part.name, event_time_ms, values[f"label_{task}"], logits, values.get(f"weight_{task}"))


def champions_of(run_dir: RunDir, student: str) -> list[dict[str, Any]]:
    """When which version became champion, by the event time of the version's last row; without those of no known
    time."""
    entries = Ledger(run_dir, student).entries()
    times = {each["version"]: each.get("event_time_ms") for each in entries if each["action"] == Action.PUBLISHED}
    promoted = [each["version"] for each in entries if each["action"] in (Action.PROMOTED, Action.ROLLED_BACK)]
    return [{"version": each, "t": times[each]} for each in promoted if times.get(each) is not None]
