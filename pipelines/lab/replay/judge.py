"""One student and task, judged: every arm against the baselines, by predictions that were made when rows were shown.

All models are judged on the same rows: those of the second half of the stream (and of the student's life) with a label
and every teacher's logit.

    gain         per cent of a baseline's NE (comparison.py), and of the best twin's: of that baseline which was better
                 where settings are chosen
    transfer     gain of the arm / gain of the teacher          the share of the teacher's lead that the student got
    …/upto/N     the same, had the stream ended after N rows

Beside NE stands that of calibration-free logits, `ne/calibration_free`, and the gain in it: what a constant or slowly
drifting error of scale or shift costs is not in it.

A teacher scores a row when it has settled. So its lead is over the best twin *as learned*, by predictions of that
moment, and so is the gain in `transfer`: as a live run's figures are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.metrics.classification import normalised_entropy
from exfm.metrics.clusters import Clusters
from exfm.metrics.estimates import Estimate, estimate_ratio
from exfm.metrics.paired import consecutive_blocks
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.data.profile.codes import codes_of_values
from pipelines.lab.data import places_of
from pipelines.lab.judging.comparison import (
    BySeed,
    Comparison,
    Ids,
    JudgedRows,
    Sample,
    by_tenth,
    calibration_free,
    losses,
    metrics,
    own_clusters,
)
from pipelines.lab.judging.decisions import Stakes, decided
from pipelines.lab.judging.evidence import by_segment, calibrated, over_windows, power, watched
from pipelines.lab.judging.segments import SegmentColumns, segments_of
from pipelines.lab.parts import load_part
from pipelines.lab.pool import AddDone
from pipelines.lab.replay.stream import teacher_logits
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.rows import OPTIMUM
from pipelines.lab.spec.conditions import TWIN, LogitSource
from pipelines.report.cells import Cell, Estimated, Key, Measure, cells, lack, over_seeds, part
from pipelines.report.results.figures import CLUSTER_ROWS
from streaming.schema import SAMPLE_WEIGHT

AS_LEARNED = "as_learned"
"""The array of a part with predictions as a live student makes them."""

OWN = "teacher"
"""A condition's own teacher, among all that are compared."""

REGRESSION = "(ftrl)"
"""The logistic regression over what the first baseline reads, in the place of an arm."""

EARLY = 0.05
"""The share of a student's life, its first rows, that is also judged by itself."""


class JudgedStudent(NamedTuple):
    """Figures of one student and task under one condition. `estimates`: by arm and metric, what means over students and
    ratios are made of; `clusters`: ids of their clusters."""

    condition: str
    student: str
    task: str
    cells: list[Cell]
    estimates: dict[str, dict[str, Estimated]]
    clusters: Ids


class _Common(NamedTuple):
    """Common base of a condition's arms: losses of each baseline and teacher, of the best twin as learned, and of its
    calibration-free logits, leads of teachers over the twin as learned, and the rows that are judged: of the whole
    life, of its beginning, and up to each point."""

    condition: str
    bases: Mapping[str, BySeed]
    twin_as_learned: BySeed
    calibration_free: BySeed
    teachers: Mapping[str, BySeed]
    leads: Mapping[str, Estimate | None]
    judged: Sample
    early: Sample
    points: Mapping[int, Sample]


@dataclass(frozen=True, eq=False)
class Judge:
    """Judge of one student and task, a job of its own.

    student    as the config has it, whose rows all parts lie on
    best_twin  the baseline that is best for this student where settings are chosen
    parts      condition, arm and seed -> the part with the logits of a trained student
    """

    workspace: Workspace
    student: StudentSettings
    task: str
    best_twin: str
    parts: Mapping[tuple[str, str, int], Path]

    def run(self, add_done: AddDone) -> list[JudgedStudent]:
        judged = []
        for condition in self.workspace.spec.conditions:
            judged.append(self.under(condition))
            add_done(1)
        return judged

    def under(self, condition: str) -> JudgedStudent:
        """Judge every arm under one condition."""
        self._stored.clear()
        spec, (judged, early, points) = self.workspace.spec, self.samples(condition)
        bases = {name: losses(self.arm_logits(condition, name), self.rows) for name in spec.baselines}
        logits = self._teachers(condition)
        teachers = {name: losses(z, self.rows) for name, z in logits.items()}
        twin = losses(self.arm_logits(condition, self.best_twin, AS_LEARNED), self.rows)
        free = losses(calibration_free(self.arm_logits(condition, self.best_twin), self.rows), self.rows)
        of_teachers = _leads(twin, teachers, judged)
        common = _Common(condition, bases, twin, free, teachers, of_teachers, judged, early, points)
        result = JudgedStudent(condition, self.student.name, self.task, [], {}, self._clusters[1])
        for arm in spec.arms:
            estimates, measures = self._arm(arm, common)
            result.cells.extend(cells(self._key(condition, arm), measures))
            result.estimates[arm] = {estimated.metric: estimated for estimated in estimates}
        leads = [p.estimated(f"gain/upto/{n}", Comparison(twin, teachers[OWN], p).gain()) for n, p in points.items()]
        result.estimates[f"({OWN})"] = {estimated.metric: estimated for estimated in leads}
        if (condition, REGRESSION, spec.seeds[0]) in self.parts:
            linear = self.arm_logits(condition, REGRESSION)
            gain = Comparison(bases[self.best_twin], losses(linear, self.rows), judged).gain()
            measures = [*self._figures(linear, judged), *judged.estimated("gain", gain).measures()]
            result.cells.extend(cells(self._key(condition, REGRESSION), measures))
        for name, z in (logits | self._other_logits(condition, logits[OWN])).items():
            measures = [*self._figures(z, judged)]
            if name == OWN:
                measures += (measure for estimated in leads for measure in estimated.measures())
            if name in common.leads:
                measures += judged.estimated("gain", common.leads[name]).measures()
            result.cells.extend(cells(self._key(condition, f"({name})"), measures))
        return result

    def _key(self, condition: str, arm: str) -> Key:
        return Key(condition, self.student.name, self.task, arm)

    # --- figures -----------------------------------------------------------------------------------------------------

    def _arm(self, arm: str, common: _Common) -> tuple[list[Estimated], list[Measure]]:
        """Figures of one arm, and what it gains over each baseline; for all but the baselines, over the best twin."""
        condition, common = common.condition, self._of_both(arm, common)
        judged, first = common.judged, condition == self.workspace.spec.tuned_under
        logits = self.arm_logits(condition, arm)
        own = losses(logits, self.rows)
        over = {name: Comparison(b, own, judged).gain() for name, b in common.bases.items() if name != arm}
        estimates = [judged.estimated(f"gain/over/{part(name)}", gain) for name, gain in over.items()]
        as_learned, free = self.arm_logits(condition, arm, AS_LEARNED), calibration_free(logits, self.rows)
        measures = [*self._figures(logits, judged, free), _ne("ne/as_learned", as_learned, judged)]
        measures += self._cost(condition, arm)
        if first:
            twin = None if arm == self.best_twin else self.arm_logits(condition, self.best_twin)
            if calibration := list(calibrated(logits, judged)):  # none where a logit is not finite
                measures += [*calibration, *decided(twin, logits, judged, self._stakes, self.workspace.spec)]
        if arm not in common.bases:
            compared = Comparison(common.bases[self.best_twin], own, judged)
            measures += by_segment(compared, logits, self._segments)
            if first:
                measures += [*watched(compared), *over_windows(compared, self._times)]
            best = list(_over_best(over[self.best_twin], compared, losses(as_learned, self.rows), common))
            measures += power(best[0])
            without = Comparison(common.calibration_free, losses(free, self.rows), judged).gain()
            estimates += [*best, judged.estimated("gain/calibration_free", without)]
            estimates += self._upto_points(own, losses(as_learned, self.rows), common)
        measures += (measure for estimated in estimates for measure in estimated.measures())
        return estimates, measures

    def _upto_points(self, own: BySeed, as_learned: BySeed, common: _Common) -> Iterator[Estimated]:
        """Gain over the best twin and share of the teacher's lead up to each point."""
        twin = common.bases[self.best_twin]
        for rows, sample in common.points.items():
            yield sample.estimated(f"gain/upto/{rows}", Comparison(twin, own, sample).gain())
            live = Comparison(common.twin_as_learned, as_learned, sample).gain()
            lead = Comparison(common.twin_as_learned, common.teachers[OWN], sample).gain()
            share = estimate_ratio(live, lead) if live and lead and sample.lacking is None else None
            yield Estimated(f"transfer/{OWN}/upto/{rows}", share, sample.n)

    def _figures(self, logits: BySeed, judged: Sample, free: BySeed | None = None) -> Iterator[Measure]:
        """Metrics of a model, and the amounts of evidence, by seed. `free`: its calibration-free logits, if they are
        known."""
        yield from metrics(logits, judged, grouped=self.workspace.spec.cluster is not None)
        yield _ne("ne/calibration_free", calibration_free(logits, self.rows) if free is None else free, judged)
        yield from by_tenth(logits, self.rows)
        for seed, (rows, window) in zip(self.workspace.spec.seeds, judged, strict=True):
            yield Measure(f"rows/{seed}", int(window.sum()))
            yield Measure(f"positives/{seed}", int(rows.labels[window].sum()))
        if judged.lacking is not None:
            yield lack("rows", judged.lacking)

    def _cost(self, condition: str, arm: str) -> Iterator[Measure]:
        stored = [self._part(condition, arm, seed) for seed in self.workspace.spec.seeds]
        seconds, rows = (float(sum(p[key] for p in stored)) for key in ("seconds", "rows"))
        yield Measure("rows_not_learned", float(sum(p["left_out"] for p in stored)))
        yield Measure("rows_left_out", float(sum(r.left_out for r in self.rows)))
        if seconds and rows:
            yield Measure("seconds_per_row", seconds / rows, n=int(rows))

    # --- rows --------------------------------------------------------------------------------------------------------

    @property
    def _clustered(self) -> bool:
        return self.workspace.one_stream or len(self.workspace.spec.seeds) == 1

    @cached_property
    def _complete(self) -> list[JudgedRows]:
        """The rows that can be judged, by seed, with the stream's clusters."""
        every = [self._all_rows(seed) for seed in self.workspace.spec.seeds]
        if self.workspace.one_stream:  # the same rows for all seeds
            common = np.logical_and.reduce([complete for _, complete in every])
            every = [(rows, common) for rows, _ in every]
        return [rows.only(complete) for rows, complete in every]

    @cached_property
    def _clusters(self) -> tuple[Clusters, Ids]:
        return own_clusters(self._complete[0].clusters)

    @cached_property
    def rows(self) -> list[JudgedRows]:
        """The rows that can be judged, by seed."""
        if not self._clustered:
            return self._complete
        return [rows._replace(clusters=self._clusters[0]) for rows in self._complete]

    def _all_rows(self, seed: int) -> tuple[JudgedRows, np.ndarray]:
        """All of the student's rows, and which of them can be judged, (n,) bool."""
        workspace, config = self.workspace, self.workspace.of(seed)
        table = workspace.rows(seed).table
        places = places_of(table, config, self.student)
        label = table[f"label_{self.task}"].take(pa.array(places)).combine_chunks()
        logits: dict[Any, np.ndarray] = {}
        for source in workspace.spec.logit_sources(seed):
            logits[source] = teacher_logits(workspace, seed, source)[places, config.tasks.index(self.task)]
        if OPTIMUM + self.task in table.schema.names:
            optimum = table[OPTIMUM + self.task].to_numpy()[places]
            if np.isfinite(optimum).any():
                logits[OPTIMUM] = optimum
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
            clusters=_clusters_of(table, workspace.spec.clustered_by).take(places),
            logits=logits,
            student_rows=len(places),
            stream_rows=table.num_rows,
            left_out=int((labelled & ~complete).sum()),
            verticals=codes_of_values(table["vertical"].combine_chunks())[places],
        )
        return rows, complete

    def samples(self, condition: str) -> tuple[Sample, Sample, dict[int, Sample]]:
        """Judged rows: those of the second half, the first ones of the student's life, and those of the second half of
        the rows up to each point. Every baseline has judged them."""
        judged, early, spec = [], [], self.workspace.spec
        points: dict[int, list[np.ndarray]] = {point: [] for point in spec.points}
        by_base = [self._judged_by(condition, name) for name in self.workspace.spec.baselines]
        for rows, *masks in zip(self.rows, *by_base, strict=True):
            life = np.logical_and.reduce(masks)
            judged.append(life & (rows.places >= spec.judged_from * rows.stream_rows))
            early.append(life & (np.cumsum(life) <= EARLY * life.sum()))
            for point, windows in points.items():
                windows.append(life & (rows.places >= spec.judged_from * point) & (rows.places < point))
        first, second, *more = (Sample(self.rows, of, self._clustered) for of in (judged, early, *points.values()))
        return first, second, dict(zip(points, more, strict=True))

    def _of_both(self, arm: str, common: _Common) -> _Common:
        """Comparison of an arm with a filter, a birth or first weights of its own: on rows that both judge."""
        masks = self._judged_by(common.condition, arm)
        judged, early = common.judged.within(masks), common.early.within(masks)
        pairs = zip([*judged.windows, *early.windows], [*common.judged.windows, *common.early.windows], strict=True)
        if all(np.array_equal(own, window) for own, window in pairs):
            return common
        leads = _leads(common.twin_as_learned, common.teachers, judged)
        points = {point: sample.within(masks) for point, sample in common.points.items()}
        return common._replace(leads=leads, judged=judged, early=early, points=points)

    def _judged_by(self, condition: str, arm: str) -> BySeed:
        """Masks of the rows that an arm predicted when they were shown, by seed."""
        masks = []
        for seed, rows in zip(self.workspace.spec.seeds, self.rows, strict=True):
            stored = self._part(condition, arm, seed)
            mask = np.zeros(rows.student_rows, bool)
            mask[int(stored["first"]) :] = ~stored["absent"]
            masks.append(mask[rows.at])
        return masks

    # --- logits ------------------------------------------------------------------------------------------------------

    def _teachers(self, condition: str) -> dict[str, BySeed]:
        """Honest logits: of the condition's teacher, and of each other teacher as it would be without a fault."""
        spec = self.workspace.spec
        own = spec.conditions[condition].logit_source
        teacher = [r.logits[own] for r in self.rows] if own else self.arm_logits(spec.tuned_under, TWIN, AS_LEARNED)
        fresh = {name: LogitSource(name) for name in spec.teachers}
        return {OWN: teacher} | {name: [r.logits[s] for r in self.rows] for name, s in fresh.items() if s != own}

    def _other_logits(self, condition: str, teacher: BySeed) -> dict[str, BySeed]:
        """The teacher as students see it, where that differs, and the best possible logits, where they are known."""
        setting = self.workspace.spec.conditions[condition]
        others: dict[str, BySeed] = {}
        if not setting.honest:
            others["teacher, as seen"] = [setting.scale * z + setting.shift for z in teacher]
        if all(OPTIMUM in r.logits for r in self.rows):
            others["optimum"] = [r.logits[OPTIMUM] for r in self.rows]
        return others

    def arm_logits(self, condition: str, arm: str, which: str = "logits") -> list[np.ndarray]:
        """An arm's logits of the rows that can be judged, by seed; NaN before the student's birth. `which`: those made
        when rows were shown, or AS_LEARNED."""
        task, by_seed = self.workspace.config.student_tasks(self.student).index(self.task), []
        for rows, seed in zip(self.rows, self.workspace.spec.seeds, strict=True):
            stored = self._part(condition, arm, seed)
            logits = np.full(rows.student_rows, np.nan)
            logits[int(stored["first"]) :] = stored[which][:, task]
            by_seed.append(logits[rows.at])
        return by_seed

    @cached_property
    def _stored(self) -> dict[Path, dict[str, np.ndarray]]:
        """Parts of the condition that is being judged."""
        return {}

    def _part(self, condition: str, arm: str, seed: int) -> dict[str, np.ndarray]:
        path = self.parts[condition, arm, seed]
        if path not in self._stored:
            stored = load_part(path)
            assert stored is not None
            self._stored[path] = stored
        return self._stored[path]

    # --- columns -----------------------------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> list[SegmentColumns]:
        workspace, seeds = self.workspace, zip(self.workspace.spec.seeds, self.rows, strict=True)
        return [SegmentColumns(workspace.rows(seed).table, r.places, workspace.config.rows) for seed, r in seeds]

    @cached_property
    def _segments(self) -> dict[str, BySeed]:
        """Masks of each segment, by seed."""
        spec = self.workspace.spec
        segments = segments_of(spec.segments, self._columns[0], spec.clustered_by)
        return {segment.name: [segment.mask(columns) for columns in self._columns] for segment in segments}

    @cached_property
    def _times(self) -> BySeed:
        return [columns["event_time_ms"].to_numpy() for columns in self._columns]

    @cached_property
    def _stakes(self) -> Stakes:
        values, prices = (
            None if name is None else [_numbers(columns[name]) for columns in self._columns]
            for name in (self.workspace.spec.value, self.workspace.spec.price)
        )
        return Stakes(values, prices)


def _leads(twin: BySeed, teachers: Mapping[str, BySeed], judged: Sample) -> dict[str, Estimate | None]:
    """Gain of each teacher over the best twin, by losses as learned."""
    return {name: Comparison(twin, of, judged).gain() for name, of in teachers.items()}


def _over_best(gain: Estimate | None, compared: Comparison, as_learned: BySeed, common: _Common) -> Iterator[Estimated]:
    """Gains over the best twin, and the share of each teacher's lead that the arm got. `as_learned`: its losses."""
    judged = common.judged
    yield judged.estimated("gain", gain)
    yield common.early.estimated("gain/early", compared._replace(sample=common.early).gain())
    live = Comparison(common.twin_as_learned, as_learned, judged).gain()
    yield judged.estimated("gain/as_learned", live)
    for name, lead in common.leads.items():
        share = estimate_ratio(live, lead) if live and lead and judged.lacking is None else None
        yield Estimated(f"transfer/{part(name)}", share, judged.n)


def _ne(metric: str, logits: BySeed, judged: Sample) -> Measure:
    """NE of further logits of a model; unknown where one is not finite."""
    by_seed: list[float | None] = []
    for z, (rows, window) in zip(logits, judged, strict=True):
        finite = bool(window.any()) and bool(np.isfinite(z[window]).all())
        scored = z[window], rows.labels[window], rows.weights[window]
        by_seed.append(normalised_entropy(*scored) if finite else None)
    return over_seeds(metric, by_seed, judged.n)


def _numbers(column: pa.Array) -> np.ndarray:
    return np.nan_to_num(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def _clusters_of(table: pa.Table, columns: Sequence[str]) -> Clusters:
    """The clusters of the stream's rows: by one column or two, or stretches of consecutive rows."""
    if not columns:
        return Clusters.of(consecutive_blocks(table.num_rows, CLUSTER_ROWS))
    return Clusters.of(*(codes_of_values(table[name].combine_chunks()) for name in columns))
