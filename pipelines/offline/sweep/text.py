"""A sweep's report as text: Markdown for a README or a review, rich tables for the console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

FIGURES = ("ne", "auc", "gauc", "calibration")
HEAD = ["student", "positives", "arm", "NE", "AUC", "GAUC", "calibration", "gain %, 95 %", "p", "transfer", "first 5 %"]
HEAD += ["rows/s", "cost ×"]
OVERALL = ["arm", "positives", "gain %, 95 %", "p", "transfer", "first 5 %", "of the gain lost", "worst student, 95 %"]


def markdown(report: dict[str, Any]) -> str:
    """The whole report."""
    lines = [f"# Sweep of `{report['sweep']['config']}`, {report['sweep']['date']}", "", *_preface(report), ""]
    for note in report["notes"]:
        lines += [f"> **Note.** {note}", ""]
    for title, head, rows in _tables(report):
        lines += [f"## {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        lines.append("")
    lines += ["## The settings chosen", "", "| student | arm | setting | of |", "|---|---|---|---|"]
    for student, arms in report["chosen"].items():
        for arm, chosen in arms.items():
            lines.append(f"| {student} | {arm} | {_setting(chosen)} | {len(chosen['ne_of_trials'])} |")
    return "\n".join(lines) + "\n"


def show(console: Console, report: dict[str, Any]) -> None:
    """The same tables on a terminal; colour marks intervals that exclude 0."""
    console.print("\n".join(_preface(report)), highlight=False)
    for title, head, rows in _tables(report):
        table = Table(
            title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1)
        )
        for name in head:
            table.add_column(name, justify="left" if name in ("student", "arm") else "right", overflow="fold")
        for row in rows:
            table.add_row(*(_coloured(cell) if "%" in name else cell for name, cell in zip(head, row, strict=True)))
        console.print(table)
    for note in report["notes"]:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)


def _preface(report: dict[str, Any]) -> list[str]:
    about = report["sweep"]
    rows = sorted(set(about["rows"].values()))
    count = f"{rows[0]:,}" if len(rows) == 1 else f"{rows[0]:,} to {rows[-1]:,}"
    low, high = about["chosen_on"]
    trials = sorted(set(about["trials"].values()))
    effort = f"{trials[0]} settings tried by every arm" if len(trials) == 1 else f"settings tried: {about['trials']}"
    seeds = ", ".join(map(str, about["seeds"]))
    return [
        f"{count} settled rows, {about['stream']}; seeds {seeds}. {effort[0].upper()}{effort[1:]}, chosen by NE on "
        f"{low:.0%} to {high:.0%} of the stream under the first condition; judged on the second half, each row before "
        f"it is learned. Gain: per cent of the NE of `{about['baseline']}`, above 0 is better; "
        f"errors: {about['errors']}. Rows/s are of one core. "
        f"Config {about['config_hash']}, torch {about['versions'].get('torch', '?')}.",
    ]


def _tables(report: dict[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    for condition, value in report["conditions"].items():
        setting = report["sweep"]["conditions"][condition]
        for task, arms in value["overall"].items():
            counts = [n for s in value["students"].values() if task in s for n in s[task]["positives"]]
            rows = [_overall(arm, _range(counts), figures) for arm, figures in arms.items()]
            yield f"{condition} · {task}: mean over students{_explained(setting)}", OVERALL, rows
        for task in value["overall"]:
            rows = []
            for student, tasks in value["students"].items():
                if task in tasks:
                    rows += _student(student, tasks[task])
            yield f"{condition} · {task}: by student", HEAD, rows


def _explained(setting: dict[str, Any]) -> str:
    parts = []
    if setting["behind"]:
        parts.append(f"scored by snapshots {setting['behind']} blocks older")
    if (setting["scale"], setting["shift"]) != (1.0, 0.0):
        parts.append(f"students see {setting['scale']:g} · logit {setting['shift']:+g}")
    if setting["start"]:
        parts.append(f"students are born at {setting['start']:.0%} of the stream")
    return f" ({', '.join(parts)})" if parts else ""


def _range(counts: list[int]) -> str:
    """Positives of every seed.

    >>> _range([1200, 9, 30]), _range([77, 77])
    ('9 to 1,200', '77')
    """
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _overall(arm: str, positives: str, figures: dict[str, Any]) -> list[str]:
    worst = figures["worst"]
    return [
        arm,
        positives,
        _interval(figures["gain"]),
        _p(figures["gain"]),
        _transfers(figures["transfer"]),
        _interval(figures["early_gain"]),
        _share(figures["lost"]),
        "–" if worst is None else f"{worst['student']} {_interval(worst)}",
    ]


def _student(student: str, value: dict[str, Any]) -> list[list[str]]:
    rows, positives, few = [], _range(value["positives"]), value["too_few"] is not None
    for arm, figures in value["arms"].items():
        rows.append(
            [
                student,
                positives,
                arm,
                *(_figure(figures[name], few) for name in FIGURES),
                _interval(figures.get("gain")),
                _p(figures.get("gain")),
                _transfers(figures.get("transfer", {})),
                _interval(figures.get("early_gain")),
                "–" if figures["rows_per_s"] is None else f"{figures['rows_per_s']:,.0f}",
                "–" if figures["cost_ratio"] is None else f"{figures['cost_ratio']:.2f}",
            ]
        )
    for name, figures in value["others"].items():
        cells = [_figure(figures[key], few) for key in FIGURES]
        parts = [_interval(figures["gain"]), _p(figures["gain"])]
        rows.append([student, positives, f"*{name}*", *cells, *parts, *["–"] * (len(HEAD) - 9)])
    return rows


def _figure(figure: dict[str, Any] | None, few: bool) -> str:
    if figure is None or few:
        return "–"
    return f"{figure['mean']:.4f}" + ("" if figure["se"] is None else f" ± {figure['se']:.4f}")


def _interval(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return "–"
    if estimate.get("too_few") is not None:
        return f"too few {estimate['too_few']} to tell"
    interval = "" if estimate["low"] is None else f" [{estimate['low']:+.2f}, {estimate['high']:+.2f}]"
    return f"{estimate['value']:+.2f}{interval}"


def _share(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return "–"
    interval = "" if estimate["low"] is None else f" [{estimate['low']:.0%}, {estimate['high']:.0%}]"
    return f"{estimate['value']:.0%}{interval}"


def _p(estimate: dict[str, Any] | None) -> str:
    if estimate is None or estimate["p"] is None:
        return "–"
    return f"{estimate['p']:.3f}" if estimate["p"] >= 0.001 else f"{estimate['p']:.0e}"


def _transfers(transfer: dict[str, Any]) -> str:
    parts = [
        f"{'' if name == 'teacher' else name + ' '}{t['value']:.2f}" + ("" if t["se"] is None else f" ± {t['se']:.2f}")
        for name, t in transfer.items()
        if t is not None
    ]
    return ", ".join(parts) or "–"


def _setting(chosen: dict[str, Any]) -> str:
    edges = chosen["at_the_edge"]
    parts = [f"{path} {value}" + (" (edge)" if path in edges else "") for path, value in chosen["tuned"].items()]
    return ", ".join(parts) or "as it is"


def _coloured(cell: str) -> str:
    """Green where the interval lies above 0, red where it lies below."""
    if "[" not in cell:
        return cell
    low, high = cell[cell.rindex("[") + 1 :].rstrip("]").split(", ")
    escaped = cell.replace("[", "\\[")
    if low.startswith("+") and high.startswith("+"):
        return f"[green]{escaped}[/green]"
    return f"[red]{escaped}[/red]" if low.startswith("-") and high.startswith("-") else escaped
