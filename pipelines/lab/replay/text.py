"""A replay's report as text: Markdown for a README or a review, rich tables for the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pipelines.lab.judging.decisions import WORTH, worth_of
from pipelines.lab.judging.summaries import LABELS, counted, labels_learned, own_counts

FIGURES = ("ne", "auc", "gauc", "calibration")
COUNTS = ["rows", "positives"]
GAIN = ["gain %, 95 %", "sd of seeds"]
STYLES = {"ship": "bold green", "do not ship": "bold red"}
LEFT = ("student", "arm", "where", "segment", "condition", "task")
LATER = ["p", "transfer", "first 5 %"]
TextTable = tuple[str, list[str], list[list[str]]]
"""A table: its title, its head, its rows."""


def markdown(report: dict[str, Any]) -> str:
    """The whole report."""
    kind = "Sweep" if _tuned(report["sweep"]) else "Replay"
    lines = [
        f"# {kind} of `{report['sweep']['config']}`, {report['sweep']['date']}",
        "",
        *_preface(report),
        "",
        *_markdown_verdicts(report),
    ]
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
    for loud in _loud(report):
        console.print(f"\n{loud}", style="bold red", highlight=False, markup=False)
    for verdict in report.get("verdicts", ()):
        console.print(f"\n{verdict['words']}", style=STYLES.get(verdict["decision"], "bold yellow"), markup=False)
    for title, head, rows in _tables(report):
        table = Table(
            title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1)
        )
        for name in head:
            table.add_column(name, justify="left" if name in LEFT else "right", overflow="fold")
        for row in rows:
            table.add_row(*(_coloured(cell) if "%" in name else cell for name, cell in zip(head, row, strict=True)))
        console.print(table)
    for note in report["notes"]:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)


def _markdown_verdicts(report: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for loud in _loud(report):
        lines += [f"> **Data.** {loud}", ""]
    for verdict in report.get("verdicts", ()):
        lines += [f"**{verdict['words']}**", ""]
    return lines


def _loud(report: dict[str, Any]) -> list[str]:
    """What is wrong with the rows, the gravest first."""
    found = report.get("data_checks", {}).get("findings", ())
    return [f"{f['where']}: {f['seen']}" for f in found if f["severity"] == "stop"]


def _preface(report: dict[str, Any]) -> list[str]:
    about = report["sweep"]
    rows = sorted(set(about["rows"].values()))
    count = f"{rows[0]:,}" if len(rows) == 1 else f"{rows[0]:,} to {rows[-1]:,}"
    start = about.get("judged_from", 0.5)
    part = "the second half" if start == 0.5 else f"the stream from {start:.0%} on" if start else "the whole stream"
    judged = f"judged on {part} with seeds {_list(about['seeds'])}"
    judged = f"{_choice(about)}; {judged} ({_unseen(about)})" if _tuned(about) else judged.capitalize()
    return [
        f"{count} settled rows, {_stream(about)}. {judged}, each row before it is learned. Gain: "
        f"per cent of the NE of {_base(about)}, above 0 is better; errors: {about['errors']}. Rows/s are of one core. "
        f"Config {about['config_hash']}, torch {about['versions'].get('torch', '?')}.",
    ]


def _stream(about: dict[str, Any]) -> str:
    return "the same for every seed" if about["stream"] == "one for all seeds" else "a stream of its own for each seed"


def _tuned(about: dict[str, Any]) -> bool:
    """Whether anything was chosen: among settings, or among baselines."""
    return max(about["trials"].values()) > 1 or len(about["baselines"]) > 1


def _choice(about: dict[str, Any]) -> str:
    low, high = about["chosen_on"]
    trials = sorted(set(about["trials"].values()))
    effort = f"{trials[0]} settings tried by every arm" if len(trials) == 1 else f"Settings tried: {about['trials']}"
    beyond = ", and more beyond the edge of a grid" if about["extend"] else ""
    return (
        f"{effort}{beyond}, chosen by NE on {low:.0%} to {high:.0%} of the stream under the first condition, with "
        f"seeds {_list(about['tuning_seeds'])}"
    )


def _list(seeds: list[int]) -> str:
    return ", ".join(map(str, seeds))


def _unseen(about: dict[str, Any]) -> str:
    """
    >>> _unseen({"seeds": [1, 2, 3], "unseen_seeds": [3]}), _unseen({"seeds": [1], "unseen_seeds": []})
    ('unseen in tuning: 3', 'none of them unseen in tuning')
    """
    seeds, unseen = about["seeds"], about["unseen_seeds"]
    if seeds == unseen:
        return "none of them seen in tuning"
    return f"unseen in tuning: {_list(unseen)}" if unseen else "none of them unseen in tuning"


def _base(about: dict[str, Any]) -> str:
    if len(about["baselines"]) == 1:
        return f"`{about['baselines'][0]}`"
    twins = ", ".join(f"{student} `{arm}`" for student, arm in about["best_twins"].items())
    return f"the student's best twin, the baseline that is better where settings are chosen ({twins})"


def _tables(report: dict[str, Any]) -> Iterator[TextTable]:
    for condition in report["conditions"]:
        yield from _of_condition(report, condition)
    if report.get("labels"):
        yield "What students learn of the labels", list(LABELS), labels_learned(report["labels"])
    yield from _segments(report)
    yield from _choices(report)


def _of_condition(report: dict[str, Any], condition: str) -> Iterator[TextTable]:
    """For every task, the mean over students, and each student."""
    about, value = report["sweep"], report["conditions"][condition]
    over = about["baselines"] if len(about["baselines"]) > 1 else []
    shown = ["as shown %"] if about["as_shown"] else []
    gains = [*GAIN, *shown, *(f"over {name} %" for name in over)]
    controls = list(about["controls"][condition])
    lost = [f"gain lost to {'the fault' if kind == 'fresh' else 'age'}" for kind in controls]
    for task, arms in value["overall"].items():
        each = [tasks[task] for tasks in value["students"].values() if task in tasks]
        rows = [
            _overall(arm, _counts(each, arm), figures, over, controls, shown)
            for arm, figures in arms.items()
            if over or "gain" in figures
        ]
        head = ["arm", *COUNTS, *gains, *LATER, *lost, "worst student, 95 %"]
        yield f"{condition} · {task}: mean over students{_explained(about['conditions'][condition])}", head, rows
    for task in value["overall"]:
        rows = []
        for student, tasks in value["students"].items():
            if task in tasks:
                rows += _student(student, tasks[task], over, shown)
        head = ["student", "arm", *COUNTS, "NE", "AUC", "GAUC", "calibration", *gains, *LATER, "rows/s", "cost ×"]
        yield f"{condition} · {task}: by student", head, rows


def _choices(report: dict[str, Any]) -> Iterator[TextTable]:
    """What arms' choices are worth, where propensities were logged, by seed."""
    rows = [
        [f"{student} · {task}", arm, f"{seed}", *worth_of(one)]
        for student, tasks in next(iter(report["conditions"].values()))["students"].items()
        for task, seen in tasks.items()
        for arm, figures in seen["arms"].items()
        for seed, one in zip(report["sweep"]["seeds"], figures.get("ranking") or (), strict=False)
    ]
    if rows:
        yield "What choices are worth, by request", ["where", "arm", "seed", *WORTH], rows


def _segments(report: dict[str, Any]) -> Iterator[TextTable]:
    """Those segments that are more than luck."""
    rows = [
        [
            f"{condition} · {student} · {task}",
            arm,
            name,
            f"{of['rows']:,}",
            f"{of['positives']:,}",
            _interval(of["gain"]),
        ]
        for condition, value in report["conditions"].items()
        for student, tasks in value["students"].items()
        for task, seen in tasks.items()
        for arm, figures in seen["arms"].items()
        for name, of in figures.get("segments", {}).items()
        if of["found"]
    ]
    if rows:
        title = f"Segments that e-BH finds among {report['comparisons']['count']:,} comparisons (all: report.html)"
        yield title, ["where", "arm", "segment", *COUNTS, GAIN[0]], rows


def _explained(setting: dict[str, Any]) -> str:
    parts = []
    if setting["teacher"] is not None:
        parts.append(f"teacher: {setting['teacher']}")
    if setting["born"]:
        parts.append(f"the teacher begins {setting['born']} blocks later")
    if setting["behind"]:
        parts.append(f"scored by snapshots {setting['behind']} blocks older")
    if (setting["scale"], setting["shift"]) != (1.0, 0.0):
        parts.append(f"students see {setting['scale']:g} · logit {setting['shift']:+g}")
    shares = {"missing": "logits missing of", "lost": "feedback lost of", "unknown": "labels unknown of"}
    parts += [f"{words} {setting[name]:.0%}" for name, words in shares.items() if setting.get(name)]
    if setting.get("window_s"):
        parts.append(f"feedback counts within {setting['window_s']:g} s")
    if setting["start"]:
        parts.append(f"students are born at {setting['start']:.0%} of the stream")
    return f" ({', '.join(parts)})" if parts else ""


def _counts(seen: Sequence[dict[str, Any]], arm: str) -> list[str]:
    """COUNTS of an arm, over seeds and students."""
    rows, positives = zip(*(own_counts(one, arm) for one in seen), strict=True)
    return [counted([n for each in of for n in each]) for of in (rows, positives)]


def _overall(
    arm: str, counts: list[str], figures: dict[str, Any], over: list[str], controls: list[str], shown: list[str]
) -> list[str]:
    worst = figures.get("worst")
    return [
        arm,
        *counts,
        *_gains(figures, over, shown),
        _p(figures.get("gain")),
        _transfers(figures.get("transfer", {})),
        _interval(figures.get("early_gain")),
        *(_share(figures.get("lost_to", {}).get(kind)) for kind in controls),
        "–" if worst is None else f"{worst['student']} {_interval(worst)}",
    ]


def _student(student: str, value: dict[str, Any], over: list[str], shown: list[str]) -> list[list[str]]:
    rows, few = [], value["too_few"] is not None
    for arm, figures in value["arms"].items():
        rows.append(
            [
                student,
                arm,
                *_counts([value], arm),
                *(_figure(figures[name], few) for name in FIGURES),
                *_gains(figures, over, shown),
                _p(figures.get("gain")),
                _transfers(figures.get("transfer", {})),
                _interval(figures.get("early_gain")),
                "–" if figures["rows_per_s"] is None else f"{figures['rows_per_s']:,.0f}",
                "–" if figures["cost_ratio"] is None else f"{figures['cost_ratio']:.2f}",
            ]
        )
    for name, figures in value["others"].items():
        cells = [_figure(figures[key], few) for key in FIGURES]
        rows.append(
            [
                student,
                f"*{name}*",
                *_counts([value], name),
                *cells,
                *_gains(figures, over, shown),
                _p(figures["gain"]),
                *["–"] * 4,
            ]
        )
    return rows


def _gains(figures: dict[str, Any], over: list[str], shown: list[str]) -> list[str]:
    """Over the best twin, how much that differs from seed to seed, the same as shown, and over each baseline."""
    gain, gains = figures.get("gain"), figures.get("gain_over", {})
    as_shown = [_interval(figures.get("as_shown", {}).get("gain")) for _ in shown]
    return [_interval(gain), _spread(gain), *as_shown, *(_interval(gains.get(name)) for name in over)]


def _spread(estimate: dict[str, Any] | None) -> str:
    if estimate is None or estimate["seed_sd"] is None or estimate["too_few"] is not None:
        return "–"
    return f"{estimate['seed_sd']:.2f}"


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
