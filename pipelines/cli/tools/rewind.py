"""Plan of a rewind, shown without doing it."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from pipelines.live.status.stored import last_status
from pipelines.report.screens.screen import duration
from pipelines.report.table import TextTable
from pipelines.report.terminal import console, rendered
from pipelines.report.words import count
from pipelines.teacher.replace.rewind import Excluded, Rewind


def show_plan(rewind: Rewind, found: Excluded, back_to: int | None, run_dir: Path, *, as_json: bool) -> None:
    """Print rows that are left out, and what each model learns again; seconds at the rates of the run so far."""
    status = last_status(run_dir)
    speeds = {} if status is None else {n: w.rows / w.busy_s for n, w in status.workers.items() if w.busy_s}
    costs = rewind.costs(found.first if back_to is None else min(found.first, back_to + 1), speeds)
    if as_json:
        plan = {"excluded": found._asdict(), "costs": [cost._asdict() for cost in costs]}
        typer.echo(json.dumps(plan, indent=2))
        return
    first_ms, last_ms = found.event_times_ms
    typer.echo(
        f"{found.rows:,} rows are left out: lake_seq {found.first:,} to {found.last:,}, "
        f"{duration((last_ms - first_ms) / 1000)} of event time"
    )
    rows = [[c.name, count(c.after + 1), count(c.rows), duration(c.seconds), count(c.bytes / 2**20)] for c in costs]
    console().print(rendered(TextTable("", ["learns again", "from", "rows", "takes", "MB"], rows)))
