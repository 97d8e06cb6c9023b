"""All figures of a finished run, from its summary."""

from __future__ import annotations

from rich.console import Console

from pipelines.report.results.advice import WARM_IMPRESSIONS
from pipelines.report.results.cells import WHOLE
from pipelines.report.results.summary import Summary
from pipelines.report.results.verdict import JUDGED
from pipelines.report.screens.closing import counts_text, print_baselines, print_verdicts, too_short
from pipelines.report.screens.losses import account_text, warnings_text
from pipelines.report.screens.tables import (
    Results,
    auc_table,
    gauc_table,
    ne_table,
    teaching_table,
    tenths_table,
    workers_table,
)
from pipelines.report.terminal import rendered


def print_report(console: Console, summary: Summary, *, whole: bool) -> None:
    """Print all figures; `whole`: including the tables of the whole stream."""
    if too_short(summary):
        console.print(
            f"A generated stream of under {WARM_IMPRESSIONS:,} impressions shows that everything runs. Teacher and "
            "students are cold at its end, so what follows says nothing about them.",
            style="yellow",
        )
    console.print(warnings_text(summary.losses))
    print_verdicts(console, summary)
    for window in (JUDGED, WHOLE) if whole else (JUDGED,):
        results = Results(summary, window)
        console.print(rendered(ne_table(results)))
        print_baselines(console, results)
        for table in (auc_table, teaching_table, *([gauc_table] if results.group_by is not None else [])):
            console.print(rendered(table(results)))
    console.print(rendered(tenths_table(summary)))
    console.print(rendered(workers_table(summary)))
    console.print("\n" + counts_text(summary), highlight=False, markup=False)
    console.print(account_text(summary.losses.lines))
