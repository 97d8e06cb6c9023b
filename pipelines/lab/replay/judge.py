"""One student and task, judged: every arm against the baselines, on rows that were scored before they were learned.

All models are judged on the same rows: those of the second half of the stream (and of the student's life) with a label
and every teacher's logit.

    gain         per cent of a baseline's NE (figures.py), and of the best twin's: of that baseline which was better
                 where settings are chosen
    transfer     gain of the arm / gain of the teacher          the share of the teacher's lead that the student got
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.metrics.clusters import Clusters
from exfm.metrics.estimates import Estimate, estimate_ratio
from exfm.metrics.paired import consecutive_blocks
from pipelines.core.config.models import StudentSettings
from pipelines.data.profile.codes import codes_of_values
from pipelines.lab.judging.evidence import power, too_little
from pipelines.lab.judging.figures import BySeed, Ids, JudgedRows, by_tenth, gain, losses, metrics, own_clusters
from pipelines.lab.parts import load_part
from pipelines.lab.pool import AddDone
from pipelines.lab.replay.data import places_of
from pipelines.lab.replay.details import Details
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.rows import OPTIMUM
from pipelines.lab.spec.conditions import TWIN, LogitSource
from pipelines.report.cells import Cell, Estimated, Key, Measure, cells, lack, part
from pipelines.report.results.figures import CLUSTER_ROWS
from streaming.schema import SAMPLE_WEIGHT

EARLY = 0.05
"""The share of a student's life, its first rows, that is also judged by itself."""

Parts = Mapping[tuple[str, str, int], Path]
"""Condition, arm and seed -> the part with the logits of a trained student."""


class JudgedStudent(NamedTuple):
    """Figures of one student and task under one condition. `estimates`: by arm and metric, what means over students and
    ratios are made of; `clusters`: ids of their clusters."""

    condition: str
    student: str
    task: str
    cells: list[Cell]
    estimates: dict[str, dict[str, Estimated]]
    clusters: Ids


@dataclass(frozen=True)
class JudgeJob:
    """`student`: as the config has it, whose rows all parts lie on. `best_twin`: the baseline that is best for this
    student where settings are chosen. `learned_upto`: as `Judge` takes it."""

    workspace: Workspace
    student: StudentSettings
    task: str
    best_twin: str
    parts: Parts
    learned_upto: Mapping[str, int]

    def run(self, add_done: AddDone) -> list[JudgedStudent]:
        judge = Judge(self.workspace, self.student, self.task, self.best_twin, self.parts, self.learned_upto)
        judged = []
        for condition in self.workspace.spec.conditions:
            judged.append(judge.under(condition))
            add_done(1)
        return judged


class _Compared(NamedTuple):
    """Common base of a condition's arms: losses of each baseline, losses and leads of teachers, and the rows that are
    judged, of the whole life and of its beginning."""

    bases: Mapping[str, BySeed]
    teachers: Mapping[str, BySeed]
    leads: Mapping[str, Estimate | None]
    windows: BySeed
    early: BySeed


class Judge:
    """Judges arms; `learned_upto`: arm -> the last `lake_seq` learned by its initial weights, unless these are the
    seed's. Rows up to there are not judged, though they are part of its life."""

    def __init__(
        self,
        workspace: Workspace,
        student: StudentSettings,
        task: str,
        best_twin: str,
        parts: Parts,
        learned_upto: Mapping[str, int] | None = None,
    ) -> None:
        self._workspace, self._spec, self._parts, self._learned_upto = (
            workspace,
            workspace.spec,
            parts,
            learned_upto or {},
        )
        self._student, self._task, self._best_twin = student, task, best_twin
        self._own = workspace.config.student_tasks(student).index(task)
        self._seeds = workspace.spec.seeds
        self._read: dict[Path, dict[str, np.ndarray]] = {}  # of the condition that is being judged
        every = [self._complete(seed) for seed in self._seeds]
        if workspace.one_stream:  # the same rows for all seeds
            common = np.logical_and.reduce([complete for _, complete in every])
            every = [(rows, common) for rows, _ in every]
        self.rows = [rows.only(complete) for rows, complete in every]
        self._clustered = workspace.one_stream or len(self._seeds) == 1
        clusters, self._ids = own_clusters(self.rows[0].clusters)
        if self._clustered:
            self.rows = [rows._replace(clusters=clusters) for rows in self.rows]
        self._details = Details(workspace, self.rows, clustered=self._clustered)

    def _complete(self, seed: int) -> tuple[JudgedRows, np.ndarray]:
        """All of the student's rows, and which of them can be judged, (n,) bool."""
        workspace, config = self._workspace, self._workspace.of(seed)
        table = workspace.rows(seed).table
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
            clusters=_clusters(table, self._spec.clustered_by).take(places),
            logits=logits,
            student_rows=len(places),
            stream_rows=table.num_rows,
            left_out=int((labelled & ~complete).sum()),
        )
        return rows, complete

    def _known_logits(self, table: pa.Table, seed: int, places: np.ndarray) -> dict[Any, np.ndarray]:
        """Logits of teachers and the truth on the student's rows."""
        workspace, t = self._workspace, self._workspace.of(seed).tasks.index(self._task)
        logits: dict[Any, np.ndarray] = {}
        for snapshots in self._spec.logit_sources(seed):
            logits[snapshots] = workspace.teacher_logits(seed, snapshots)[places, t]
        if OPTIMUM + self._task in table.schema.names:
            optimum = table[OPTIMUM + self._task].to_numpy()[places]
            if np.isfinite(optimum).any():
                logits[OPTIMUM] = optimum
        return logits

    def under(self, condition: str) -> JudgedStudent:
        """Judge every arm under one condition."""
        self._read.clear()
        windows, early = self.windows(condition)
        bases = {name: losses(self.arm_logits(condition, name), self.rows) for name in self._spec.baselines}
        logits = self._teachers(condition)
        teachers = {name: losses(z, self.rows) for name, z in logits.items()}
        common = _Compared(bases, teachers, self._leads(bases, teachers, windows), windows, early)
        found = JudgedStudent(condition, self._student.name, self._task, [], {}, self._ids)
        for arm in self._spec.arms:
            self._arm(found, arm, common)
        for name, z in (logits | self._other_logits(condition, logits["teacher"])).items():
            measures = [*self._metrics(z, windows), *by_tenth(z, self.rows), *self._evidence(windows)]
            if name in common.leads:
                lacking = too_little(self.rows, windows, clustered=self._clustered)
                lead = Estimated("gain", common.leads[name], int(windows[0].sum()), lacking)
                measures += lead.measures()
            found.cells.extend(cells(self._key(condition, f"({name})"), measures))
        return found

    def _key(self, condition: str, arm: str) -> Key:
        return Key(condition, self._student.name, self._task, arm)

    def _leads(
        self, bases: Mapping[str, BySeed], teachers: Mapping[str, BySeed], windows: BySeed
    ) -> dict[str, Estimate | None]:
        """Gain of each teacher over the best twin."""
        best = bases[self._best_twin]
        return {name: self._gain(best, of, windows) for name, of in teachers.items()}

    def _evidence(self, windows: BySeed) -> Iterator[Measure]:
        """Amounts of evidence, by seed."""
        for seed, rows, window in zip(self._seeds, self.rows, windows, strict=True):
            yield Measure(f"rows/{seed}", int(window.sum()))
            yield Measure(f"positives/{seed}", int(rows.labels[window].sum()))
        if (lacking := too_little(self.rows, windows, clustered=self._clustered)) is not None:
            yield lack("rows", lacking)

    def _arm(self, found: JudgedStudent, arm: str, common: _Compared) -> None:
        """Figures of one arm, and what it gains over each baseline; for all but the baselines, over the best twin."""
        condition = found.condition
        logits, compared = self.arm_logits(condition, arm), self._of_both(condition, arm, common)
        own, n = losses(logits, self.rows), int(compared.windows[0].sum())
        lacking = too_little(self.rows, compared.windows, clustered=self._clustered)
        over = {name: self._gain(base, own, compared.windows) for name, base in compared.bases.items() if name != arm}
        estimates = [Estimated(f"gain/over/{part(name)}", gain, n, lacking) for name, gain in over.items()]
        measures = [*self._evidence(compared.windows), *self._metrics(logits, compared.windows)]
        measures += [*by_tenth(logits, self.rows), *self._cost(condition, arm)]
        measures += self._details_of(condition, arm, logits, compared.windows)
        if arm not in compared.bases:
            estimates += self._over_best(condition, arm, own, over[self._best_twin], compared)
            measures += power(next(e for e in estimates if e.metric == "gain"))
        measures += (measure for estimated in estimates for measure in estimated.measures())
        found.cells.extend(cells(self._key(condition, arm), measures))
        found.estimates[arm] = {estimated.metric: estimated for estimated in estimates}

    def _over_best(
        self, condition: str, arm: str, own: BySeed, gain: Estimate | None, compared: _Compared
    ) -> Iterator[Estimated]:
        """Gains over the best twin, and the share of each teacher's lead that the arm got."""
        windows, early = compared.windows, compared.early
        n, lacking = int(windows[0].sum()), too_little(self.rows, windows, clustered=self._clustered)
        yield Estimated("gain", gain, n, lacking)
        of_early = self._gain(compared.bases[self._best_twin], own, early)
        early_lacking = too_little(self.rows, early, clustered=self._clustered)
        yield Estimated("gain/early", of_early, int(early[0].sum()), early_lacking)
        if self._spec.as_shown:
            shown, base = (self.arm_logits(condition, name, "shown") for name in (arm, self._best_twin))
            both = zip(windows, shown, base, strict=True)  # weights of a warm start may know too much of a row
            fair = [rows & np.isfinite(z) & np.isfinite(twin) for rows, z, twin in both]
            gained = self._gain(losses(base, self.rows), losses(shown, self.rows), fair)
            yield Estimated("gain/as_shown", gained, int(fair[0].sum()), lacking)
        for name, lead in compared.leads.items():
            share = estimate_ratio(gain, lead) if gain and lead and lacking is None else None
            yield Estimated(f"transfer/{part(name)}", share, n)

    def _of_both(self, condition: str, arm: str, common: _Compared) -> _Compared:
        """Comparison of an arm with a filter, a birth or first weights of its own: on rows that both judge."""
        has = self._judged_by(condition, arm)
        windows, early = ([w & own for w, own in zip(of, has, strict=True)] for of in (common.windows, common.early))
        before = [*common.windows, *common.early]
        if all(np.array_equal(own, w) for own, w in zip([*windows, *early], before, strict=True)):
            return common
        leads = self._leads(common.bases, common.teachers, windows)
        return common._replace(leads=leads, windows=windows, early=early)

    def _judged_by(self, condition: str, arm: str) -> BySeed:
        """Masks of the rows that an arm has judged before it knew them, by seed."""
        found = []
        for seed, rows in zip(self._seeds, self.rows, strict=True):
            stored = self._part(condition, arm, seed)
            has = rows.at >= int(stored["first"])
            if "absent" in stored:
                has &= ~stored["absent"][rows.at]
            if (upto := self._learned_upto.get(arm, -1)) >= 0:
                has &= self._workspace.rows(seed).table["lake_seq"].to_numpy()[rows.places] > upto
            found.append(has)
        return found

    def _details_of(self, condition: str, arm: str, logits: BySeed, windows: BySeed) -> Iterator[Measure]:
        details, first = self._details, condition == self._spec.tuned_under
        base = None if arm == self._best_twin else self.arm_logits(condition, self._best_twin)
        if first:
            yield from details.alone(logits, base, windows)
        if base is not None and arm not in self._spec.baselines:
            yield from details.by_segment(base, logits, windows)
            if first:
                yield from details.over_time(base, logits, windows)

    def _metrics(self, logits: BySeed, windows: BySeed) -> Iterator[Measure]:
        return metrics(logits, self.rows, windows, grouped=self._spec.cluster is not None)

    def _gain(self, base: BySeed, own: BySeed, windows: BySeed) -> Estimate | None:
        return gain(base, own, self.rows, windows, clustered=self._clustered)

    # --- logits ------------------------------------------------------------------------------------------------------

    def _teachers(self, condition: str) -> dict[str, BySeed]:
        """Honest logits: of the condition's teacher, and of each other teacher as it would be without a fault."""
        own = self._spec.conditions[condition].logit_source
        found = {
            "teacher": [r.logits[own] for r in self.rows] if own else self.arm_logits(self._spec.tuned_under, TWIN)
        }
        fresh = {name: LogitSource(name) for name in self._spec.teachers}
        return found | {name: [r.logits[s] for r in self.rows] for name, s in fresh.items() if s != own}

    def _other_logits(self, condition: str, teacher: BySeed) -> dict[str, BySeed]:
        """The teacher as students see it, where that differs, and the best possible logits, where they are known."""
        setting = self._spec.conditions[condition]
        found: dict[str, BySeed] = {}
        if not setting.honest:
            found["teacher, as seen"] = [setting.scale * z + setting.shift for z in teacher]
        if all(OPTIMUM in r.logits for r in self.rows):
            found["optimum"] = [r.logits[OPTIMUM] for r in self.rows]
        return found

    def arm_logits(self, condition: str, arm: str, which: str = "logits") -> list[np.ndarray]:
        """An arm's logits of the rows that can be judged, by seed; NaN before the student's birth. `which`: those as
        settled, or as `shown`."""
        found = []
        for rows, seed in zip(self.rows, self._seeds, strict=True):
            stored = self._part(condition, arm, seed)
            logits = np.full(rows.student_rows, np.nan)
            logits[int(stored["first"]) :] = stored[which][:, self._own]
            found.append(logits[rows.at])
        return found

    # --- rows and parts ----------------------------------------------------------------------------------------------

    def windows(self, condition: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Judged rows by seed: those of the second half, and the first ones of the student's life. Every baseline
        has judged them."""
        judged, early = [], []
        of_bases = [self._judged_by(condition, name) for name in self._spec.baselines]
        for rows, *has in zip(self.rows, *of_bases, strict=True):
            life = np.logical_and.reduce(has)
            judged.append(life & (rows.places >= self._spec.judged_from * rows.stream_rows))
            early.append(life & (np.cumsum(life) <= EARLY * life.sum()))
        return judged, early

    def _part(self, condition: str, arm: str, seed: int) -> dict[str, np.ndarray]:
        path = self._parts[condition, arm, seed]
        if path not in self._read:
            stored = load_part(path)
            assert stored is not None
            self._read[path] = stored
        return self._read[path]

    def _cost(self, condition: str, arm: str) -> Iterator[Measure]:
        stored = [self._part(condition, arm, seed) for seed in self._seeds]
        seconds, rows = (float(sum(p[key] for p in stored)) for key in ("seconds", "rows"))
        yield Measure("rows_not_learned", float(sum(p["left_out"] for p in stored)))
        yield Measure("rows_left_out", float(sum(r.left_out for r in self.rows)))
        if seconds and rows:
            yield Measure("seconds_per_row", seconds / rows, n=int(rows))


def _clusters(table: pa.Table, columns: Sequence[str]) -> Clusters:
    """The clusters of the stream's rows: by one column or two, or stretches of consecutive rows."""
    if not columns:
        return Clusters.of(consecutive_blocks(table.num_rows, CLUSTER_ROWS))
    return Clusters.of(*(codes_of_values(table[name].combine_chunks()) for name in columns))
