"""One student and task, judged: every arm against the baseline, on rows that were scored before they were learned.

All models are judged on the same rows: those of the second half of the stream (and of the student's life) with a label
and every teacher's logit. l is a row's log-loss, w its weight, per seed s; b the baseline, a the arm, t a teacher:

    gain         g_s = 100 · Σ w (l_b − l_a) / Σ w l_b          per cent of the baseline's NE; its mean over seeds
    transfer     gain of the arm / gain of the teacher          the share of the teacher's lead that the student got
    lost         1 − gain under a condition / gain under the first one

Errors: exfm/metrics/estimates.py. Generated streams, one per seed: the seeds are the pieces. A stream that all seeds
share: the seeds, and the clusters of rows, whose influence on the mean over seeds is, with l̄ a row's mean over seeds,

    ψ_c = 100 · Σ_{i in c} w_i ( (Σ w l̄_a / Σ w l̄_b) · l̄_b,i − l̄_a,i ) / Σ w l̄_b
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.metrics import (
    Estimate,
    auc,
    calibration,
    cross_entropy,
    estimate_ratio,
    gauc,
    mean_of_seeds,
    normalised_entropy,
)
from pipelines.config import Student
from pipelines.offline import OPTIMUM, Tell, load_part
from pipelines.offline.sweep.data import places_of
from pipelines.offline.sweep.place import Place
from pipelines.offline.sweep.settings import CHOICE_ENDS
from pipelines.results import CLUSTER_ROWS
from streaming.schema import SAMPLE_WEIGHT

EARLY = 0.05
"""Of a student's life: its first rows, judged by themselves."""
WINDOWS = 24
FIGURES = ("ne", "auc", "gauc", "calibration")


class Rows(NamedTuple):
    """The rows of one seed that can be judged, in order, (n,) each: `at` is their place among the student's rows,
    `places` in the stream; `logits` are those of all but students, by name."""

    at: np.ndarray
    places: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    clusters: np.ndarray
    logits: dict[str, np.ndarray]
    student_rows: int
    stream_rows: int
    left_out: int


Losses = Sequence[np.ndarray]
"""Of every seed, (n,) float64."""

Parts = Mapping[tuple[str, str, int], Path]
"""Condition, arm and seed -> the logits of a life."""


@dataclass(frozen=True)
class JudgeJob:
    place: Place
    student: Student
    task: str
    parts: Parts

    def run(self, tell: Tell) -> tuple[str, str, dict[str, Any]]:
        judged = Judged(self.place, self.student, self.task, self.parts)
        found = {}
        for condition in self.place.sweep.conditions:
            found[condition] = judged.under(condition)
            tell(1)
        return self.student.name, self.task, found


class Judged:
    def __init__(self, place: Place, student: Student, task: str, parts: Parts) -> None:
        self._place, self._sweep, self._parts = place, place.sweep, parts
        self._student, self._task = student, task
        self._own = place.config.student_tasks(student).index(task)
        self._seeds = place.sweep.seeds
        self._read: dict[Path, dict[str, np.ndarray]] = {}  # of the condition that is being judged
        rows = [self._rows(seed) for seed in self._seeds]
        if place.one_stream:  # the same rows for all seeds
            common = np.logical_and.reduce([r.at for r in rows])
        self._rows_of = [_kept(r, common if place.one_stream else r.at) for r in rows]

    def _rows(self, seed: int) -> Rows:
        """`at`: which of the student's rows can be judged, (n,) bool; the rest of all of them."""
        place, config = self._place, self._place.of(seed)
        table, t = place.rows(seed).table, config.tasks.index(self._task)
        places = places_of(table, config, self._student)
        label = table[f"label_{self._task}"].take(pa.array(places)).combine_chunks()
        logits = {f"behind {b}": place.teacher_logits(seed, b)[places, t] for b in self._sweep.behinds}
        for name, reference in self._sweep.references.items():
            logits[name] = place.teacher_logits(seed, 0, reference)[places, t]
        if OPTIMUM + self._task in table.schema.names:
            optimum = table[OPTIMUM + self._task].to_numpy()[places]
            if np.isfinite(optimum).any():
                logits["optimum"] = optimum
        weights = np.ones(len(places))
        if config.rows.weighted:
            weights = table[SAMPLE_WEIGHT].to_numpy()[places].astype(np.float64)
        labelled = label.is_valid().to_numpy(zero_copy_only=False)
        complete = np.logical_and.reduce([labelled, *(np.isfinite(z) for z in logits.values())])
        return Rows(
            at=complete,
            places=places,
            labels=label.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64),
            weights=weights,
            clusters=_clusters(table, self._sweep.cluster)[places],
            logits=logits,
            student_rows=len(places),
            stream_rows=table.num_rows,
            left_out=int((labelled & ~complete).sum()),
        )

    def under(self, condition: str) -> dict[str, Any]:
        """Everything there is to say of one condition. Estimates are still estimates."""
        setting, baseline = self._sweep.conditions[condition], self._sweep.baseline
        self._read.clear()
        windows, early = self._windows(condition)
        base = self._losses(self._arm_logits(condition, baseline))
        teachers = {"teacher": f"behind {setting.behind}"} | {name: name for name in self._sweep.references}
        leads = {
            name: self._gain(base, self._losses([r.logits[key] for r in self._rows_of]), windows)
            for name, key in teachers.items()
        }
        arms: dict[str, Any] = {}
        for arm in self._sweep.arms:
            logits = self._arm_logits(condition, arm)
            found: dict[str, Any] = {"figures": self._figures(logits, windows), "cost": self._cost(condition, arm)}
            if arm != baseline:
                own = self._losses(logits)
                found["gain"] = gain = self._gain(base, own, windows)
                found["early_gain"] = self._gain(base, own, early)
                found["transfer"] = {name: gain and lead and estimate_ratio(gain, lead) for name, lead in leads.items()}
                found["over_time"] = self._over_time(base, own)
            arms[arm] = found
        others = {name: [r.logits[key] for r in self._rows_of] for name, key in teachers.items()}
        if not setting.honest:
            others["teacher, as seen"] = [setting.scale * z + setting.shift for z in others["teacher"]]
        if all("optimum" in r.logits for r in self._rows_of):
            others["optimum"] = [r.logits["optimum"] for r in self._rows_of]
        return {
            "rows": [int(w.sum()) for w in windows],
            "positives": [int(r.labels[w].sum()) for r, w in zip(self._rows_of, windows, strict=True)],
            "rows_left_out": [r.left_out for r in self._rows_of],
            "early_rows": [int(w.sum()) for w in early],
            "others": {
                name: {"figures": self._figures(z, windows), "gain": leads.get(name)} for name, z in others.items()
            },
            "arms": arms,
        }

    # --- rows --------------------------------------------------------------------------------------------------------

    def _windows(self, condition: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """By seed, which rows are judged: of the second half, and the first ones of the student's life."""
        judged, early = [], []
        for rows, seed in zip(self._rows_of, self._seeds, strict=True):
            life = rows.at >= int(self._part(condition, self._sweep.baseline, seed)["first"])
            judged.append(life & (rows.places >= CHOICE_ENDS * rows.stream_rows))
            early.append(life & (np.cumsum(life) <= EARLY * life.sum()))
        return judged, early

    def _part(self, condition: str, arm: str, seed: int) -> dict[str, np.ndarray]:
        path = self._parts[condition, arm, seed]
        if path not in self._read:
            part = load_part(path)
            assert part is not None
            self._read[path] = part
        return self._read[path]

    def _arm_logits(self, condition: str, arm: str) -> list[np.ndarray]:
        """By seed, of the rows that can be judged; NaN before the student's birth."""
        found = []
        for rows, seed in zip(self._rows_of, self._seeds, strict=True):
            part = self._part(condition, arm, seed)
            logits = np.full(rows.student_rows, np.nan)
            logits[int(part["first"]) :] = part["logits"][:, self._own]
            found.append(logits[rows.at])
        return found

    def _losses(self, logits: Losses) -> list[np.ndarray]:
        return [cross_entropy(z, r.labels) for z, r in zip(logits, self._rows_of, strict=True)]

    # --- figures -----------------------------------------------------------------------------------------------------

    def _figures(self, logits: Sequence[np.ndarray], windows: Sequence[np.ndarray]) -> dict[str, Any]:
        """{figure: {mean, se, seeds}}; None where it is not defined under some seed."""
        each: dict[str, list[float | None]] = {name: [] for name in FIGURES}
        for z, rows, window in zip(logits, self._rows_of, windows, strict=True):
            arguments = z[window], rows.labels[window], rows.weights[window]
            finite = bool(window.any()) and bool(np.isfinite(arguments[0]).all())
            each["ne"].append(normalised_entropy(*arguments) if finite else None)
            each["auc"].append(auc(*arguments) if finite else None)
            groups = rows.clusters[window]
            grouped = finite and self._sweep.cluster is not None
            each["gauc"].append(gauc(*arguments[:2], groups, arguments[2]).value if grouped else None)
            each["calibration"].append(calibration(*arguments) if finite else None)
        return {name: _mean(values) for name, values in each.items()}

    def _cost(self, condition: str, arm: str) -> dict[str, Any]:
        parts = [self._part(condition, arm, seed) for seed in self._seeds]
        seconds, rows = (float(sum(p[key] for p in parts)) for key in ("seconds", "rows"))
        left_out = int(sum(p["left_out"] for p in parts))
        return {"seconds": seconds, "rows": int(rows), "rows_not_learned": left_out}

    def _over_time(self, base: Losses, own: Losses) -> list[Any]:
        """[share of the stream, mean gain, its s.e.] in windows of equally many rows of the student's life."""
        places, gains = [], []
        for b, a, rows in zip(base, own, self._rows_of, strict=True):
            alive = np.flatnonzero(np.isfinite(b) & np.isfinite(a))
            pieces = [p for p in np.array_split(alive, WINDOWS) if len(p)]
            places.append([float(rows.places[p].mean()) / rows.stream_rows for p in pieces])
            w = rows.weights
            gains.append([100 * (1 - float((w[p] * a[p]).sum() / (w[p] * b[p]).sum())) for p in pieces])
        count = min(map(len, gains))
        at, g = (np.array([each[:count] for each in x]) for x in (places, gains))
        spread = g.std(0, ddof=1) / len(g) ** 0.5 if len(g) > 1 else np.zeros(count)
        return [[round(float(x), 5) for x in triple] for triple in zip(at.mean(0), g.mean(0), spread, strict=True)]

    # --- estimates ---------------------------------------------------------------------------------------------------

    @cached_property
    def _by_rows(self) -> bool:
        """Whether rows are pieces of the error: one draw of them for all seeds, or one seed alone."""
        return self._place.one_stream or len(self._seeds) == 1

    def _gain(self, base: Losses, own: Losses, windows: Sequence[np.ndarray]) -> Estimate | None:
        b, a = self._sums(base, windows), self._sums(own, windows)
        if not (np.isfinite(a).all() and np.isfinite(b).all() and (b > 0).all()):
            return None
        found = mean_of_seeds(100 * (1 - a / b))
        if not self._by_rows:
            return found
        b_rows, a_rows = self._seed_mean(base, windows), self._seed_mean(own, windows)
        apart = a_rows - (a.sum() / b.sum()) * b_rows
        return found._replace(clusters=self._clustered(-100 * apart / b.mean(), windows))

    def _sums(self, losses: Losses, windows: Sequence[np.ndarray]) -> np.ndarray:
        """Σ w l of each seed, (S,)."""
        triples = zip(losses, self._rows_of, windows, strict=True)
        return np.array([(r.weights[w] * x[w]).sum() for x, r, w in triples])

    def _seed_mean(self, losses: Losses, windows: Sequence[np.ndarray]) -> np.ndarray:
        """w · l of every judged row, the mean over seeds; all seeds have the same rows."""
        return np.mean(losses, axis=0)[windows[0]] * self._rows_of[0].weights[windows[0]]

    def _clustered(self, influence: np.ndarray, windows: Sequence[np.ndarray]) -> np.ndarray:
        """Summed by cluster, (G,); NaN where a cluster has no row."""
        clusters = self._rows_of[0].clusters
        count = self._cluster_count
        found = np.bincount(clusters[windows[0]], weights=influence, minlength=count)
        rows = np.bincount(clusters[windows[0]], minlength=count)
        return np.where(rows > 0, found, np.nan)

    @cached_property
    def _cluster_count(self) -> int:
        table = self._place.rows(self._seeds[0]).table
        return int(_clusters(table, self._sweep.cluster).max()) + 1


def _kept(rows: Rows, which: np.ndarray) -> Rows:
    at = np.flatnonzero(which)
    return Rows(
        at,
        rows.places[at],
        rows.labels[at],
        rows.weights[at],
        rows.clusters[at],
        {name: z[at].astype(np.float64) for name, z in rows.logits.items()},
        rows.student_rows,
        rows.stream_rows,
        rows.left_out,
    )


def _clusters(table: pa.Table, column: str | None) -> np.ndarray:
    """The cluster of every row of the stream, from 0: one per value, or stretches of consecutive rows."""
    if column is None:
        return np.arange(table.num_rows) // CLUSTER_ROWS
    codes = pc.dictionary_encode(table[column].combine_chunks(), null_encoding="encode").indices
    return codes.to_numpy(zero_copy_only=False).astype(np.int64)


def _mean(values: Sequence[float | None]) -> dict[str, Any] | None:
    if any(value is None for value in values):
        return None
    x = np.array(values, dtype=np.float64)
    se = float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else None
    return {"mean": float(x.mean()), "se": se}
