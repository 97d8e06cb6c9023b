"""The figures of a run's students as cells: a window of the stream is the condition, a model the arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from exfm.metrics.paired import PairedGain
from pipelines.report.cells import Cell, Key, Measure, cells, lack
from pipelines.report.results.figures import MODELS, TaskFigures, WindowFigures
from pipelines.report.results.verdict import JUDGED

WHOLE = "whole stream"
ALL = ""
"""The arm of what is of the rows, not of a model."""


def summary_cells(students: Mapping[str, Mapping[str, TaskFigures]]) -> list[Cell]:
    """Cells from the part `students` of summary.json; those of the rows come first, so that a student without a row has
    some, too.

    >>> from pipelines.report.results.figures import ModelFigures
    >>> half = WindowFigures(rows=900, positives=90, student=ModelFigures(ne=0.9))
    >>> task = TaskFigures(rows=1800, positives=200, student=ModelFigures(ne=1.0), last_half=half)
    >>> [c.value for c in summary_cells({"feed": {"ctr": task}}) if c.metric == "ne"]
    [1.0, 0.9]
    """
    summary: list[Cell] = []
    for student, tasks in students.items():
        for task, result in tasks.items():
            for window, figures in ((WHOLE, result), (JUDGED, result.last_half)):
                summary += cells(Key(window, student, task, ALL), _of_rows(figures))
                for model in MODELS:
                    measures = [*_of_model(model, figures), *(_by_tenth(model, result) if window == WHOLE else ())]
                    summary += cells(Key(window, student, task, model), measures)
    return summary


def _of_rows(window: WindowFigures) -> Iterator[Measure]:
    yield from (Measure("rows", window.rows), Measure("positives", window.positives))
    if window.too_few is not None:
        yield lack("rows", window.too_few)
    if window.gauc_groups is not None:
        yield Measure("gauc/groups", window.gauc_groups, n=window.gauc_rows)


def _of_model(model: str, window: WindowFigures) -> Iterator[Measure]:
    if model in window.models:
        for name, value in asdict(window.models[model]).items():
            yield Measure(name, value, n=window.rows)
    if model == "student":
        yield from _gain("gain", window.gain)
        yield from _gain("gain/by group", window.gain_by_group)
        if window.transfer_ratio is not None:
            yield Measure("transfer/teacher", window.transfer_ratio)
    if model == "teacher":
        yield from _gain("gain", window.lead)


def _gain(metric: str, gain: PairedGain | None) -> Iterator[Measure]:
    if gain is not None:
        yield Measure(metric, gain.difference, gain.low, gain.high, gain.rows)
        if gain.too_few is not None:
            yield lack(metric, gain.too_few)


def _by_tenth(model: str, task: TaskFigures) -> Iterator[Measure]:
    for n, tenth in enumerate(task.by_tenth):
        if model in tenth.ne:
            yield Measure(f"ne/tenth/{n}", tenth.ne[model], n=tenth.rows)
