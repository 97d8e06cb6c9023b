"""A replay's report on a terminal and in Markdown: what was run, what is wrong with the data, verdicts, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.report.curves import curves
from pipelines.lab.report.tables import every_table
from pipelines.report.markdown import markdown as markdown_of
from pipelines.report.table import TextTable
from pipelines.report.terminal import rendered

STYLES = {"ship": "bold green", "do not ship": "bold red"}


def markdown(report: ReplayReport) -> str:
    """The whole report."""
    kind = "Sweep" if report.tuned else "Replay"
    lines = [f"# {kind} of `{report.about.config}`, {report.about.date}", "", preface(report), ""]
    for words in _data_problems(report):
        lines += [f"> **Data.** {words}", ""]
    for verdict in report.verdicts:
        lines += [f"**{verdict.words}**", ""]
    for note in report.notes:
        lines += [f"> **Note.** {note}", ""]
    return "\n".join(lines) + "\n" + "\n".join(map(markdown_of, _tables(report)))


def show(console: Console, report: ReplayReport) -> None:
    """The same on a terminal; colour marks intervals that exclude 0."""
    console.print(preface(report), highlight=False, markup=False)
    for words in _data_problems(report):
        console.print(f"\n{words}", style="bold red", highlight=False, markup=False)
    for verdict in report.verdicts:
        console.print(f"\n{verdict.words}", style=STYLES.get(verdict.decision, "bold yellow"), markup=False)
    for table in _tables(report):
        console.print(rendered(table))
    for note in report.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False)


def _tables(report: ReplayReport) -> Iterator[TextTable]:
    yield from (figure.behind for figure in curves(report) if figure.behind is not None)
    yield from every_table(report)


def _data_problems(report: ReplayReport) -> list[str]:
    """Problems of the rows, the gravest first."""
    findings = (report.data or {}).get("findings", ())
    return [f"{f['where']}: {f['seen']}" for f in findings if f["severity"] == "stop"]


def preface(report: ReplayReport) -> str:
    """Preface of a report: the settings, and how to read its figures."""
    about, spec = report.about, report.spec
    rows = sorted(set(about.rows.values()))
    count = f"{rows[0]:,}" if len(rows) == 1 else f"{rows[0]:,} to {rows[-1]:,}"
    stream = "the same for every seed" if about.one_stream else "a stream of its own for each seed"
    start = spec.judged_from
    part = "the second half" if start == 0.5 else f"the stream from {start:.0%} on" if start else "the whole stream"
    judged = f"judged on {part} with seeds {_list(spec.seeds)}"
    judged = f"{_choice(report)}; {judged} ({_unseen(report)})" if report.tuned else judged.capitalize()
    return (
        f"{count} settled rows, {stream}. {judged}, each row as it was predicted when it was shown, by what had "
        f"settled by then. Gain: per cent of the NE of {_base(report)}, above 0 is better; errors: {about.errors}. As "
        "learned, as in a live run: predicted when its label had settled, as teachers do; so are leads and transfer. "
        "Calibration-free: after the best scale and shift by vertical, fitted on the rows before. "
        "Rows/s are of one core. "
        f"Config {about.config_hash}, torch {about.versions.get('torch', '?')}."
    )


def _choice(report: ReplayReport) -> str:
    spec = report.spec
    low, high = spec.chosen_on
    trials = {arm: len(made.trials) for arm, made in spec.arms.items()}
    equal = len(set(trials.values())) == 1
    effort = f"{next(iter(trials.values()))} settings tried by every arm" if equal else f"Settings tried: {trials}"
    beyond = ", and more beyond the edge of a grid" if spec.extend else ""
    return (
        f"{effort}{beyond}, chosen by NE on {low:.0%} to {high:.0%} of the stream under the first condition, with "
        f"seeds {_list(spec.tuned_with)}"
    )


def _list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _unseen(report: ReplayReport) -> str:
    spec = report.spec
    unseen = [seed for seed in spec.seeds if seed not in spec.tuned_with]
    if unseen == list(spec.seeds):
        return "none of them seen in tuning"
    return f"unseen in tuning: {_list(unseen)}" if unseen else "none of them unseen in tuning"


def _base(report: ReplayReport) -> str:
    if len(report.spec.baselines) == 1:
        return f"`{report.spec.baselines[0]}`"
    twins = ", ".join(f"{student} `{arm}`" for student, arm in report.about.best_twins.items())
    return f"the student's best twin, the baseline that is better where settings are chosen ({twins})"
