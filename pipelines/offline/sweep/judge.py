"""One student and task, judged: every arm against the baseline, on rows that were scored before they were learned.

All models are judged on the same rows: those of the second half of the stream (and of the student's life) with a label
and every teacher's logit.

    gain         per cent of the baseline's NE (figures.py)
    transfer     gain of the arm / gain of the teacher          the share of the teacher's lead that the student got
    lost         1 − gain under a condition / gain under the first one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.metrics import Estimate, estimate_ratio, too_few
from pipelines.config import StudentSettings
from pipelines.offline import OPTIMUM, Tell, load_part
from pipelines.offline.sweep.data import places_of
from pipelines.offline.sweep.figures import BySeed, JudgedRows, gain, losses, metrics, over_time
from pipelines.offline.sweep.place import Place
from pipelines.offline.sweep.settings import CHOICE_ENDS
from pipelines.results import CLUSTER_ROWS
from streaming.schema import SAMPLE_WEIGHT

EARLY = 0.05
"""The share of a student's life, its first rows, that is also judged by itself."""

Parts = Mapping[tuple[str, str, int], Path]
"""Condition, arm and seed -> the logits of a life."""


@dataclass(frozen=True)
class JudgeJob:
    place: Place
    student: StudentSettings
    task: str
    parts: Parts

    def run(self, tell: Tell) -> tuple[str, str, dict[str, Any]]:
        judge = Judge(self.place, self.student, self.task, self.parts)
        found = {}
        for condition in self.place.sweep.conditions:
            found[condition] = judge.under(condition)
            tell(1)
        return self.student.name, self.task, found


class _Seen(NamedTuple):
    """What all arms of a condition are compared with and on."""

    base: BySeed
    leads: dict[str, Estimate | None]
    windows: BySeed
    early: BySeed


class Judge:
    def __init__(self, place: Place, student: StudentSettings, task: str, parts: Parts) -> None:
        self._place, self._sweep, self._parts = place, place.sweep, parts
        self._student, self._task = student, task
        self._own = place.config.student_tasks(student).index(task)
        self._seeds = place.sweep.seeds
        self._read: dict[Path, dict[str, np.ndarray]] = {}  # of the condition that is being judged
        every = [self._complete(seed) for seed in self._seeds]
        if place.one_stream:  # the same rows for all seeds
            common = np.logical_and.reduce([complete for _, complete in every])
            every = [(rows, common) for rows, _ in every]
        self.rows = [rows.only(complete) for rows, complete in every]

    def _complete(self, seed: int) -> tuple[JudgedRows, np.ndarray]:
        """All of the student's rows, and which of them can be judged, (n,) bool."""
        place, config = self._place, self._place.of(seed)
        table = place.rows(seed).table
        places = places_of(table, config, self._student)
        label = table[f"label_{self._task}"].take(pa.array(places)).combine_chunks()
        logits = self._known_logits(table, seed, places)
        weights = np.ones(len(places))
        if config.rows.weighted:
            weights = table[SAMPLE_WEIGHT].to_numpy()[places].astype(np.float64)
        labelled = label.is_valid().to_numpy(zero_copy_only=False)
        complete = np.logical_and.reduce([labelled, *(np.isfinite(z) for z in logits.values())])
        rows = JudgedRows(
            at=np.arange(len(places)),
            places=places,
            labels=label.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64),
            weights=weights,
            clusters=_clusters(table, self._sweep.cluster)[places],
            logits=logits,
            student_rows=len(places),
            stream_rows=table.num_rows,
            left_out=int((labelled & ~complete).sum()),
        )
        return rows, complete

    def _known_logits(self, table: pa.Table, seed: int, places: np.ndarray) -> dict[str, np.ndarray]:
        """Logits of teachers, references and the truth on the student's rows, by name."""
        place, t = self._place, self._place.of(seed).tasks.index(self._task)
        logits = {f"behind {b}": place.teacher_logits(seed, b)[places, t] for b in self._sweep.behinds}
        for name, reference in self._sweep.references.items():
            logits[name] = place.teacher_logits(seed, 0, reference)[places, t]
        if OPTIMUM + self._task in table.schema.names:
            optimum = table[OPTIMUM + self._task].to_numpy()[places]
            if np.isfinite(optimum).any():
                logits["optimum"] = optimum
        return logits

    def under(self, condition: str) -> dict[str, Any]:
        """Everything that is known of one condition. Estimates are still estimates."""
        self._read.clear()
        windows, early = self.windows(condition)
        base = losses(self.arm_logits(condition, self._sweep.baseline), self.rows)
        teachers = self._teachers(condition)
        leads = {name: self._gain(base, losses(z, self.rows), windows) for name, z in teachers.items()}
        seen = _Seen(base, leads, windows, early)
        others = teachers | self._further(condition, teachers["teacher"])
        return {
            "rows": [int(w.sum()) for w in windows],
            "positives": [int(r.labels[w].sum()) for r, w in zip(self.rows, windows, strict=True)],
            "too_few": self._too_few(windows),
            "early_too_few": self._too_few(early),
            "rows_left_out": [r.left_out for r in self.rows],
            "early_rows": [int(w.sum()) for w in early],
            "others": {
                name: {"figures": self._metrics(z, windows), "gain": leads.get(name)} for name, z in others.items()
            },
            "arms": {arm: self._arm(condition, arm, seen) for arm in self._sweep.arms},
        }

    def _too_few(self, windows: BySeed) -> str | None:
        """Of what there is too little for an interval; streams of one seed each are all evidence together."""
        if self._cluster_count is None:
            positives = sum(int(r.labels[w].sum()) for r, w in zip(self.rows, windows, strict=True))
            return too_few(positives, sum(int(w.sum()) for w in windows) - positives)
        positive, clusters = self.rows[0].labels[windows[0]] > 0, self.rows[0].clusters[windows[0]]
        positives, negatives = int(positive.sum()), int((~positive).sum())
        rarer = positive if positives <= negatives else ~positive
        return too_few(positives, negatives, len(np.unique(clusters[rarer])))

    def _arm(self, condition: str, arm: str, seen: _Seen) -> dict[str, Any]:
        """Figures of one arm; for all but the baseline, what it gains."""
        logits = self.arm_logits(condition, arm)
        found: dict[str, Any] = {"figures": self._metrics(logits, seen.windows), "cost": self._cost(condition, arm)}
        if arm == self._sweep.baseline:
            return found
        own = losses(logits, self.rows)
        found["gain"] = own_gain = self._gain(seen.base, own, seen.windows)
        found["early_gain"] = self._gain(seen.base, own, seen.early)
        found["transfer"] = {
            name: own_gain and lead and estimate_ratio(own_gain, lead) for name, lead in seen.leads.items()
        }
        found["over_time"] = over_time(seen.base, own, self.rows)
        return found

    def _metrics(self, logits: BySeed, windows: BySeed) -> dict[str, Any]:
        return metrics(logits, self.rows, windows, grouped=self._sweep.cluster is not None)

    def _gain(self, base: BySeed, own: BySeed, windows: BySeed) -> Estimate | None:
        return gain(base, own, self.rows, windows, self._cluster_count)

    # --- logits ------------------------------------------------------------------------------------------------------

    def _teachers(self, condition: str) -> dict[str, BySeed]:
        """Honest logits of the condition's teacher and of the references."""
        own = f"behind {self._sweep.conditions[condition].behind}"
        keys = {"teacher": own} | {name: name for name in self._sweep.references}
        return {name: [r.logits[key] for r in self.rows] for name, key in keys.items()}

    def _further(self, condition: str, teacher: BySeed) -> dict[str, BySeed]:
        """The teacher as students see it, where that differs, and the best possible logits, where they are known."""
        setting = self._sweep.conditions[condition]
        found: dict[str, BySeed] = {}
        if not setting.honest:
            found["teacher, as seen"] = [setting.scale * z + setting.shift for z in teacher]
        if all("optimum" in r.logits for r in self.rows):
            found["optimum"] = [r.logits["optimum"] for r in self.rows]
        return found

    def arm_logits(self, condition: str, arm: str) -> list[np.ndarray]:
        """An arm's logits of the rows that can be judged, by seed; NaN before the student's birth."""
        found = []
        for rows, seed in zip(self.rows, self._seeds, strict=True):
            part = self._part(condition, arm, seed)
            logits = np.full(rows.student_rows, np.nan)
            logits[int(part["first"]) :] = part["logits"][:, self._own]
            found.append(logits[rows.at])
        return found

    # --- rows and parts ----------------------------------------------------------------------------------------------

    def windows(self, condition: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Which rows are judged, by seed: those of the second half, and the first ones of the student's life."""
        judged, early = [], []
        for rows, seed in zip(self.rows, self._seeds, strict=True):
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

    def _cost(self, condition: str, arm: str) -> dict[str, Any]:
        parts = [self._part(condition, arm, seed) for seed in self._seeds]
        seconds, rows = (float(sum(p[key] for p in parts)) for key in ("seconds", "rows"))
        left_out = int(sum(p["left_out"] for p in parts))
        return {"seconds": seconds, "rows": int(rows), "rows_not_learned": left_out}

    @cached_property
    def _cluster_count(self) -> int | None:
        """How many clusters of rows there are; None where rows are no units of the error, each seed having its own."""
        if not (self._place.one_stream or len(self._seeds) == 1):
            return None
        table = self._place.rows(self._seeds[0]).table
        return int(_clusters(table, self._sweep.cluster).max()) + 1


def _clusters(table: pa.Table, column: str | None) -> np.ndarray:
    """The cluster of every row of the stream, from 0: one per value, or stretches of consecutive rows."""
    if column is None:
        return np.arange(table.num_rows) // CLUSTER_ROWS
    codes = pc.dictionary_encode(table[column].combine_chunks(), null_encoding="encode").indices
    return codes.to_numpy(zero_copy_only=False).astype(np.int64)
