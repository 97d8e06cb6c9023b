"""`exfm rewind`: teacher and students without rows that they should not have learned."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import typer

from pipelines.cli.tools.options import AsJson, RunDirOption, private_files, takes_run


def register(app: typer.Typer) -> None:
    app.command()(takes_run(rewind, leads=True))


def rewind(
    run_dir: RunDirOption,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="RANGE|WHERE",
            help="Rows to leave out: a range of lake_seq (120000:139999), a condition on rows, or one of each.",
        ),
    ] = None,
    back_to: Annotated[
        int | None,
        typer.Option(
            "--to", metavar="SEQ", min=-1, help="Begin from a checkpoint up to this row; default: before the rows."
        ),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded.")] = "rewound by hand",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and change nothing.")] = False,
    untried: Annotated[
        bool, typer.Option("--untried", help="Take over as soon as the lake is learned, without a comparison.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Train teacher and students again, beside those of the run, without rows that nobody should have learned.

    The rows stay in the lake; a record says that they are left out, by students that join and replays that begin later,
    too. The new teacher is compared with the run's own on rows behind those; then all take the place of the run's, at
    one recorded position: a live run by a restart of its workers, another at its next start. Ctrl-C stops the command;
    the same command resumes it, and `exfm teacher replace RUN --drop` gives it up.

    Example: exfm rewind runs/demo --exclude 120000:139999 --dry-run
    """
    from pipelines.cli.tools.rewind import show_plan
    from pipelines.cli.tools.stopping import resumable
    from pipelines.cli.tools.stored_config import config_of
    from pipelines.core.config.evolve import with_roster
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.live.status.stored import run_lives
    from pipelines.report.screens.progress import rows_bar
    from pipelines.teacher.replace.replacement import only_one
    from pipelines.teacher.replace.rewind import Rewind, excluded, exclusion_of

    run = RunDir(run_dir)
    config, asked = with_roster(config_of(run), run.roster), exclusion_of(exclude or [])
    found, rewinding = excluded(config, run, asked), Rewind(run, config)
    if dry_run:
        show_plan(rewinding, found, back_to, run_dir, as_json=json_)
        return
    private_files()

    with resumable(), only_one(run):
        rewinding.begin(asked, found, reason, back_to, live=run_lives(run_dir))
        decided = rewinding.replacement.decided
        if decided is None:
            with rows_bar("teacher", 0) as advance, rows_bar("students", 0) as advance_students:
                decided = rewinding.train(
                    live=partial(run_lives, run_dir),
                    untried=untried,
                    advance=advance,
                    advance_students=advance_students,
                )
    if decided is None:
        words = "not decided: the lake has no more rows to compare; give the same command when it has, or --untried"
    elif decided.promoted:
        words = f"teacher and students take over {'now' if run_lives(run_dir) else 'at the next start'}: {decided.why}"
    else:
        words = f"teacher and students of {run_dir} stay: {decided.why}"
    outcome = {"promoted": None, "why": words} if decided is None else decided._asdict()
    typer.echo(json.dumps(outcome | {"rows": found.rows}, indent=2) if json_ else words)
