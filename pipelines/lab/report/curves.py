"""Curves of a gain: over rows of the stream, over the teacher's FLOPs, over one setting of conditions; and arm by arm.

Gains are over the best twin, in the mean over students. Three places or more make a curve; points of the stream, two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.report.figures import GAIN, looks, point
from pipelines.lab.report.tables import tasks
from pipelines.report.cells import MEAN
from pipelines.report.figure import Figure, Point, Series
from pipelines.report.table import Entry, TextTable
from pipelines.report.words import billions, count

LEAST = 3
TEACHER = "(teacher)"
SETTINGS = {
    "behind": "blocks by which the teacher's snapshots are older",
    "late_s": "seconds by which rows reach students later",
    "missing": "share of impressions without logits",
    "lost": "share of positives whose feedback is lost",
    "unknown": "share of impressions without labels",
}
"""Numbers of a condition that make a curve."""


class _Place(NamedTuple):
    """One place of a curve: figures of a condition, at its end or `upto` so many rows."""

    x: float
    condition: str
    upto: int | None = None

    def metric(self, of: str) -> str:
        return of if self.upto is None else f"{of}/upto/{self.upto}"


def curves(report: ReplayReport) -> Iterator[Figure]:
    """Every curve of every task, and arms side by side where there is one."""
    for task in tasks(report, report.spec.tuned_under):
        drawn = [*_over_rows(report, task), *_over_flops(report, task), *_over_settings(report, task)]
        figures = [*drawn, *([_arms(report, task)] if drawn else [])]
        yield from (figure for figure in figures if any(series.points for series in figure.series))


def _over_rows(report: ReplayReport, task: str) -> Iterator[Figure]:
    places = [_Place(rows, report.spec.tuned_under, rows) for rows in sorted(report.spec.points)]
    if len(places) > 1:
        yield _curve(report, task, places, "rows of the stream", log=True)


def _over_flops(report: ReplayReport, task: str) -> Iterator[Figure]:
    """Conditions that differ from the first in their teacher alone."""
    first, places = report.spec.conditions[report.spec.tuned_under], []
    for name, condition in report.spec.conditions.items():
        students = [student for student, of in report.table.students(name) if of == task]
        flops = report.table.of(name, students[0], task, TEACHER).value("training_flops")
        if flops and condition == first.model_copy(update={"teacher": condition.teacher}):
            places.append(_Place(flops / 1e9, name))
    if len(places) >= LEAST:
        yield _curve(report, task, sorted(places), "GFLOP of the teacher, training and inference", log=True)


def _over_settings(report: ReplayReport, task: str) -> Iterator[Figure]:
    """Conditions that differ from the first in one number alone."""
    first = report.spec.conditions[report.spec.tuned_under]
    for setting, x_name in SETTINGS.items():
        places = [
            _Place(float(getattr(condition, setting)), name)
            for name, condition in report.spec.conditions.items()
            if condition == first.model_copy(update={setting: getattr(condition, setting)})
        ]
        if len(places) >= LEAST:
            yield _curve(report, task, sorted(places), x_name)


def _curve(report: ReplayReport, task: str, places: list[_Place], x_name: str, *, log: bool = False) -> Figure:
    series: list[Series] = []
    rows: list[list[Entry]] = []
    for arm, look in (looks(report) | {TEACHER: None}).items():
        points: list[Point] = []
        for place in places:
            of, gain = report.table.of(place.condition, MEAN, task, arm), place.metric("gain")
            if (cell := of.cell(gain)) is None or of.lacking(gain) is not None:
                continue
            points.append(point(place.x, cell))
            share = 1.0 if place.upto is None else place.upto / next(iter(report.about.rows.values()))
            flops = (of.value(metric) for metric in ("training_flops", "training_flops_with_teacher"))
            spent = [None if value is None else billions(value * share) for value in flops]
            transfer = of.interval(place.metric("transfer/teacher"), sign="")
            rows.append([arm, count(place.x), of.interval(gain), transfer, *spent])
        if points:
            series.append(Series("the teacher's lead" if arm == TEACHER else arm, look, points))
    title = f"{task}: gain over {x_name}"
    head = ["arm", x_name, GAIN, "transfer", "training GFLOP", "with the teacher"]
    table = TextTable(title, head, rows, names=2)
    return Figure(task, series, x_name, GAIN, x_scale="log" if log else "number", level=0.0, behind=table)


def _arms(report: ReplayReport, task: str) -> Figure:
    """Arms under the first condition, one below the other."""
    names: list[str] = []
    rows: list[list[Entry]] = []
    points: list[Point] = []
    for arm in looks(report):
        of = report.table.of(report.spec.tuned_under, MEAN, task, arm)
        if (cell := of.cell("gain")) is not None and of.lacking("gain") is None:
            points.append(point(len(names), cell))
            names.append(arm)
            spent = (billions(of.value(metric)) for metric in ("training_flops", "training_flops_with_teacher"))
            rows.append([arm, of.interval("gain"), of.interval("transfer/teacher", sign=""), *spent])
    title = f"{task}: arms"
    head = ["arm", GAIN, "transfer", "training GFLOP", "with the teacher"]
    series = [Series("gain", 0, points, "points")]
    return Figure(title, series, GAIN, "", rows=names, level=0.0, behind=TextTable(title, head, rows))
