"""The last screen of a run: the verdict on every student, a next step, one table, and the paths of results."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.data.profile.column import ColumnProfile, columns_text
from pipelines.live.status.counts import counts_hold
from pipelines.report.results.advice import WARM_IMPRESSIONS
from pipelines.report.results.age import worse_by_age
from pipelines.report.results.figures import TaskFigures, clustered_by
from pipelines.report.results.summary import Summary
from pipelines.report.results.verdict import JUDGED, Outcome, outcome_of, verdict_on
from pipelines.report.screens.losses import account_text, warnings_text
from pipelines.report.screens.screen import duration
from pipelines.report.screens.tables import COLOURS, WINDOWS, Results, baselines_text, ne_table
from pipelines.report.terminal import rendered
from streaming.program import command

MOST_COLUMNS = 12
"""So many are shown."""

KEPT = "\N{NO-BREAK SPACE}"


def print_closing(console: Console, summary: Summary, run_dir: RunDir, config: Config) -> None:
    losses = summary.losses_under(config)
    console.print(warnings_text(losses))
    if too_short(summary):
        _print_short(console, summary, run_dir)
    else:
        print_verdicts(console, summary)
        results = Results(summary)
        console.print(rendered(ne_table(results)))
        print_baselines(console, results)
        _say(console, f"\nmore      {command('exfm', 'report', run_dir.root)}")
    _say(console, "\n" + counts_text(summary))
    console.print(account_text(losses.lines))
    if summary.run.source != "generated" and summary.columns:
        _say(console, "\n" + _columns_text(summary.columns, console.width))
    _say(console, "\n" + _places(run_dir, config))
    if config.plays:
        _say(console, f"again, with another seed\n  {_another_seed(run_dir, config)}")


def too_short(summary: Summary) -> bool:
    """True for a generated demonstration stream too short to learn from."""
    return summary.run.source == "generated" and summary.counts.impressions_read < WARM_IMPRESSIONS


def _print_short(console: Console, summary: Summary, run_dir: RunDir) -> None:
    longer = command(
        "exfm", "stream", run_dir.config, "--until-end", "--run-dir", f"{run_dir.root}-long",
        "--set", f"source.impressions={2 * WARM_IMPRESSIONS}",
    )  # fmt: skip
    console.print(
        f"\nEverything ran: {summary.counts.impressions_read:,} generated impressions went through broker, "
        "settlement, lake, teacher and students. That is what so short a stream is for: nothing can be learned from "
        f"it, so no figures are shown (below {WARM_IMPRESSIONS:,} impressions teacher and students are still cold).",
        highlight=False,
    )
    _say(console, f"\ntry a longer stream\n  {longer}")


def print_verdicts(console: Console, summary: Summary) -> None:
    """Each student's verdict in words, and the most useful next step."""
    console.print(
        f"\nVerdict on the {WINDOWS[JUDGED]}, as learned: each row predicted just before it was learned, when its "
        "label had settled. A gain is in % of the NE of the twin, the same student without a teacher; above 0 is good; "
        f"[95 % interval, clustered by {clustered_by(summary.run.cluster_by)}].",
        style="bold",
        highlight=False,
    )
    indent = " " * min(24, 2 + max((len(name) for name in summary.students), default=0))
    for name, tasks in summary.students.items():
        _paragraph(console, f"{name}: {verdict_on(tasks)}", indent, _colour(tasks))
        if (worse := worse_by_age(tasks)) is not None:
            _paragraph(console, f"{' ' * len(indent)}{worse}", indent, "yellow")
    if (step := summary.next_step) is not None:
        _paragraph(console, f"try {step}", indent)


def print_baselines(console: Console, results: Results) -> None:
    """NE of the baselines, where a run has them."""
    if (words := baselines_text(results)) is not None:
        _paragraph(console, words, "  ")


def _paragraph(console: Console, words: str, indent: str, style: str = "") -> None:
    """Words with a hanging indent; figures, intervals and counts are never broken inside."""
    kept = re.sub(r"\d %( \[.*?\])?|\(.*?\)", lambda found: found[0].replace(" ", KEPT), words)
    lines = textwrap.wrap(kept, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    console.print(Text("\n".join(lines).replace(KEPT, " "), style=style), soft_wrap=True)


def _colour(tasks: Mapping[str, TaskFigures]) -> str:
    """Colour of the outcome of all tasks; yellow where they differ."""
    outcomes = {outcome_of(result.last_half.gain) for result in tasks.values()}
    (outcome, *others) = outcomes or {Outcome.TOO_FEW}
    return "yellow" if others else COLOURS.get(outcome, "")


def counts_text(summary: Summary) -> str:
    """The counts of a run in one line, and whether they balance."""
    counts, workers = summary.counts, summary.workers
    pieces = [f"{counts.impressions_read:,} impressions in {duration(summary.run.wall_s)}"]
    outcomes = {"settled": counts.settled, "not applicable": counts.not_applicable, "pending": counts.pending}
    for words, by_group in outcomes.items():
        if any(by_group.values()):
            pieces.append(f"{words} " + ", ".join(f"{group} {n:,}" for group, n in by_group.items()))
    pieces.append(f"duplicates {counts.duplicates_dropped:,}")
    pieces.append(f"dead letters {counts.dead_letters:,}")
    left_out = {name: worker.quarantined_rows for name, worker in workers.items()}
    if any(left_out.values()):
        pieces.append("left out as not finite " + ", ".join(f"{name} {n:,}" for name, n in left_out.items() if n))
    sampled = {name: worker.left_out_by_sampling for name, worker in workers.items()}
    if any(sampled.values()):
        pieces.append("left out by sampling " + ", ".join(f"{name} {n:,}" for name, n in sampled.items() if n))
    hold = counts_hold(counts) and all(worker.holds for worker in workers.values())
    return " · ".join(pieces) + f" (the counts {'balance' if hold else 'DO NOT BALANCE'})"


def _columns_text(columns: Sequence[ColumnProfile], width: int) -> str:
    """Text on the columns that were read, those with refused values first."""
    first = sorted(columns, key=lambda column: -column.refused)[:MOST_COLUMNS]
    more = len(columns) - len(first)
    text = columns_text(first, width)
    return text + (f"\n{more:,} more columns: `columns` of summary.json" if more else "")


def _places(run_dir: RunDir, config: Config) -> str:
    store = config.tracking.uri or f"sqlite:///{run_dir.mlflow}"
    return (
        f"lake      {run_dir.lake}\n"
        f"summary   {run_dir.summary}\n"
        f"picture   {run_dir.picture}\n"
        f"MLflow    {command('mlflow', 'ui', '--backend-store-uri', store)}"
    )


def _another_seed(run_dir: RunDir, config: Config) -> str:
    """The run again in a folder of its own, with a seed that neither the models nor the stream had."""
    used = [config.seed]
    if config.source is not None and config.source.kind == "generated":
        used.append(config.source.seed)
    seed = max(used) + 1
    settings = [f"seed={seed}", f"source.seed={seed}"][: len(used)]
    options = [word for setting in settings for word in ("--set", setting)]
    where = re.sub(r"-seed-\d+$", "", str(run_dir.root)) + f"-seed-{seed}"
    return command("exfm", "stream", run_dir.config, "--until-end", "--run-dir", where, *options)


def _say(console: Console, words: str) -> None:
    """Words as they are, never broken inside: what is copied from here runs."""
    console.print(words, highlight=False, markup=False, soft_wrap=True)
