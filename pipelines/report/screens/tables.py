"""Tables of a finished run, each as wide as 80 columns allow: long names fold, figures never do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from pipelines.report.results.figures import MODELS
from pipelines.report.results.verdict import JUDGED, NO_ROW, Outcome, outcome_of, saw_no_row
from pipelines.report.screens.screen import duration

HEADS = {
    "student": "student",
    "no_teacher": "twin",
    "teacher": "teacher",
    "optimum": "optimum",
    "ftrl": "FTRL",
    "constant": "rate",
}
BASELINES = ("ftrl", "constant")
COMPARED = ("student", "no_teacher", "teacher")
COLOURS = {Outcome.GAINED: "green", Outcome.LOST: "red", Outcome.UNDECIDED: "yellow", Outcome.EQUAL: "yellow"}
WINDOWS = {JUDGED: "last half of the stream", None: "whole stream"}
"""Where the figures of a window are in a task's result: under a key of its own, or in the result itself."""


def _table(title: str, *first: str) -> Table:
    table = Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in first:
        table.add_column(name, overflow="fold", min_width=len(name))
    table.columns[0].style, table.columns[0].min_width = "bold", 10
    return table


def _figures_table(title: str) -> Table:
    """A row for each student and task; how many positives its figures are of comes first."""
    table = _table(title, "student", "task")
    table.add_column("positives", justify="right", no_wrap=True)
    return table


def ne_table(summary: dict[str, Any], window: str | None = JUDGED) -> Table:
    """Student × task: positives, NE of every model, and the student's gain over its twin with its 95 % interval."""
    there = {m for _, _, figures in _cells(summary, window) if figures for m in MODELS if figures.get(m)}
    models = [m for m in MODELS if m in there and m not in BASELINES]  # which have a line of their own
    table = _figures_table(f"{WINDOWS[window]}: NE (lower is better); gain in % of the twin's NE")
    for head in (HEADS[model] for model in models):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("gain, 95 %", justify="right", min_width=20)
    for name, task, figures in _cells(summary, window):
        if figures is None:
            table.add_row(name, task, "0", *("–" for _ in models), NO_ROW)
            continue
        ne = (_figure(figures, model, "ne") for model in models)
        table.add_row(name, task, *_counts(figures, "positives"), *ne, gain_text(figures["gain"]))
    return table


def baselines_text(summary: dict[str, Any], window: str | None = JUDGED) -> str | None:
    """NE of a logistic regression and of the label rate so far, in one sentence each; None where there are none.

    >>> result = {"rows": 9, "last_half": {"ftrl": {"ne": 0.94321}, "constant": {"ne": 1.0004}, "too_few": None}}
    >>> baselines_text({"students": {"feed": {"ctr": result}}})
    'NE of FTRL (a logistic regression): feed ctr 0.9432; of the label rate so far: feed ctr 1.0004'
    """
    found: dict[str, list[str]] = {}
    for name, task, figures in _cells(summary, window):
        for model in BASELINES:
            if figures is not None and figures.get(model) is not None:
                found.setdefault(model, []).append(f"{name} {task} {_figure(figures, model, 'ne')}")
    words = {"ftrl": "FTRL (a logistic regression)", "constant": "the label rate so far"}
    return "NE " + "; ".join(f"of {words[m]}: {', '.join(cells)}" for m, cells in found.items()) if found else None


def auc_table(summary: dict[str, Any], window: str | None = JUDGED) -> Table:
    """Student × task: rows, AUC and calibration."""
    table = _figures_table(f"{WINDOWS[window]}: AUC (higher is better), calibration (1 is right)")
    for figure in ("AUC", "cal."):
        for model in COMPARED:
            table.add_column(f"{figure}\n{HEADS[model]}", justify="right", no_wrap=True)
    for name, task, figures in _cells(summary, window):
        if figures is not None:
            auc = (_figure(figures, model, "auc") for model in COMPARED)
            calibration = (_figure(figures, model, "calibration", 3) for model in COMPARED)
            table.add_row(name, task, *_counts(figures, "positives"), *auc, *calibration)
    return table


def teaching_table(summary: dict[str, Any], window: str | None = JUDGED) -> Table:
    """Student × task: the teacher's lead over the twin and the share of it that the student got; where rows have
    groups, also the gain with groups as clusters."""
    group_by = summary["run"].get("group_by")
    table = _figures_table(
        f"{WINDOWS[window]}: the teacher's lead, in % of the twin's NE, and the student's share of it"
    )
    table.add_column("lead, 95 %", justify="right", min_width=20)
    table.add_column("share", justify="right", no_wrap=True)
    if group_by is not None:
        table.add_column(f"gain, 95 %\nby {group_by}", justify="right", min_width=20)
    for name, task, figures in _cells(summary, window):
        if figures is not None:
            ratio = figures["transfer_ratio"]
            by_group = [gain_text(figures["gain_by_group"])] if group_by is not None else []
            share = "–" if ratio is None else f"{ratio:.2f}"
            table.add_row(name, task, *_counts(figures, "positives"), gain_text(figures["lead"]), share, *by_group)
    return table


def gauc_table(summary: dict[str, Any], window: str | None = JUDGED) -> Table:
    """Student × task: AUC within groups, and how many groups and rows have both labels."""
    table = _figures_table(f"{WINDOWS[window]}: AUC within {summary['run']['group_by']} (GAUC)")
    for head in ("groups", "rows", *(HEADS[model] for model in COMPARED)):
        table.add_column(head, justify="right", no_wrap=True)
    for name, task, figures in _cells(summary, window):
        if figures is not None:
            counts = _counts(figures, "positives", "gauc_groups", "gauc_rows")
            table.add_row(name, task, *counts, *(_figure(figures, model, "gauc") for model in COMPARED))
    return table


def tenths_table(summary: dict[str, Any]) -> Table:
    """Student × task × model: NE by tenth of the stream."""
    table = _table("NE by tenth of the stream: 10 is its first 10 % (lower is better)", "student", "task", "model")
    for n in range(10):
        table.add_column(f"{10 * (n + 1)}", justify="right", no_wrap=True)
    for name, tasks in summary["students"].items():
        for task, result in tasks.items():
            tenths = result["by_tenth"]
            for model in MODELS:
                if any(tenth.get(model) is not None for tenth in tenths):
                    table.add_row(name, task, HEADS[model], *(_four_wide(tenth.get(model)) for tenth in tenths))
                    name = task = ""
    return table


def _four_wide(ne: float | None) -> str:
    """A figure in 4 places.

    >>> _four_wide(0.81234), _four_wide(1.11), _four_wide(57.12), _four_wide(None)
    ('.812', '1.11', '57.1', '–')
    """
    if ne is None:
        return "–"
    return f"{ne:.3f}"[1:] if ne < 0.9995 else f"{ne:.2f}" if ne < 9.995 else f"{ne:.1f}" if ne < 99.95 else f"{ne:.0f}"


def _cells(summary: dict[str, Any], window: str | None) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """Student, task and its figures; None for a student that saw no row."""
    for name, tasks in summary["students"].items():
        if saw_no_row(tasks):
            for task in tasks or ("–",):
                yield name, task, None
            continue
        for task, result in tasks.items():
            yield name, task, result if window is None else result[window]


def _counts(figures: dict[str, Any], *keys: str) -> Iterator[str]:
    return ("–" if figures[key] is None else f"{figures[key]:,}" for key in keys)


def _figure(figures: dict[str, Any], model: str, key: str, digits: int = 4) -> str:
    """A figure of a model; a dash where it is undefined, or of too few rows to mean anything."""
    found = (figures[model] or {}).get(key)
    return "–" if found is None or figures["too_few"] is not None else f"{found:.{digits}f}"


def gain_text(gain: dict[str, Any] | None) -> Text:
    """A gain with its interval, green above 0 and red below; or of what there is too little."""
    outcome = outcome_of(gain)
    if gain is None:
        return Text("–")
    if outcome is Outcome.TOO_FEW:
        return Text(f"too few {gain['too_few']} to tell", style="yellow")
    words = f"{gain['difference']:+.2f} [{gain['low']:+.2f}, {gain['high']:+.2f}]"
    return Text(words, style=COLOURS[outcome])


def workers_table(summary: dict[str, Any]) -> Table:
    """Where each worker's time went."""
    table = _table("where the time went, by worker", "worker")
    for head in ("rows", "busy", "rows/s", "MB"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("of its time", min_width=20)
    for name, worker in summary["workers"].items():
        phases = sorted(worker["phases_s"].items(), key=lambda item: -item[1])
        total_s = sum(worker["phases_s"].values()) or 1.0
        shares = ", ".join(f"{seconds / total_s:.0%} {phase}" for phase, seconds in phases[:5])
        table.add_row(
            name,
            f"{worker['rows']:,}",
            duration(worker["busy_s"]),
            f"{worker['rows_per_s']:,.0f}",
            f"{worker['peak_rss_bytes'] / 2**20:,.0f}",
            shares,
        )
    return table
