"""The figures of a run's students as cells: a window of the stream is the condition, a model the arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.report.cells import Cell, Key, Measure, cells, lack
from pipelines.report.results.figures import MODELS
from pipelines.report.results.verdict import JUDGED

WHOLE = "whole stream"
ALL = ""
"""The arm of what is of the rows, not of a model."""


def summary_cells(students: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """Cells from the part `students` of summary.json; those of the rows come first, so that a student without a row has
    some, too.

    >>> rows = dict.fromkeys(("gauc_groups", "gauc_rows", "gain", "gain_by_group", "lead", "transfer_ratio", *MODELS))
    >>> rows |= {"rows": 900, "positives": 90, "too_few": None, "student": {"ne": 0.9}}
    >>> [c.value for c in summary_cells({"feed": {"ctr": rows | {"last_half": rows}}}) if c.metric == "ne"]
    [0.9, 0.9]
    """
    summary: list[Cell] = []
    for student, tasks in students.items():
        for task, result in tasks.items():
            for window, figures in ((WHOLE, result), (JUDGED, result[JUDGED])):
                summary += cells(Key(window, student, task, ALL), _of_rows(figures))
                for model in MODELS:
                    measures = [*_of_model(model, figures), *_by_tenth(model, figures)]
                    summary += cells(Key(window, student, task, model), measures)
    return summary


def _of_rows(figures: Mapping[str, Any]) -> Iterator[Measure]:
    yield from (Measure(name, figures[name]) for name in ("rows", "positives"))
    if figures["too_few"] is not None:
        yield lack("rows", figures["too_few"])
    if figures["gauc_groups"] is not None:
        yield Measure("gauc/groups", figures["gauc_groups"], n=figures["gauc_rows"])


def _of_model(model: str, figures: Mapping[str, Any]) -> Iterator[Measure]:
    for name, value in (figures.get(model) or {}).items():
        yield Measure(name, value, n=figures["rows"])
    if model == "student":
        yield from _gain("gain", figures["gain"])
        yield from _gain("gain/by group", figures["gain_by_group"])
        if figures["transfer_ratio"] is not None:
            yield Measure("transfer/teacher", figures["transfer_ratio"])
    if model == "teacher":
        yield from _gain("gain", figures["lead"])


def _gain(metric: str, gain: Mapping[str, Any] | None) -> Iterator[Measure]:
    if gain is not None:
        yield Measure(metric, gain["difference"], gain["low"], gain["high"], gain["rows"])
        if gain["too_few"] is not None:
            yield lack(metric, gain["too_few"])


def _by_tenth(model: str, figures: Mapping[str, Any]) -> Iterator[Measure]:
    for n, tenth in enumerate(figures.get("by_tenth", ())):
        if tenth.get(model) is not None:
            yield Measure(f"ne/tenth/{n}", tenth[model], n=tenth["rows"])
