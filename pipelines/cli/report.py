"""`exfm report`: what came of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import AsJson


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that ended, such as runs/demo.")],
    json_: AsJson = False,
    all_: Annotated[bool, typer.Option("--all", help="Figures of the whole stream, too.")] = False,
) -> None:
    """Show what came of a finished run: verdicts, NE and gains, AUC, calibration, the teacher's lead, time, counts.

    Figures are those of the last half of the stream, each row predicted before it was learned; --all adds the whole
    stream. --json prints summary.json with the verdicts.

    Example: exfm report runs/demo
    """
    import json

    from rich.console import Console

    from pipelines.display import print_report
    from pipelines.results import next_step, read_summary, verdict_on
    from pipelines.run_dir import RunDir

    summary = read_summary(RunDir(run_dir))
    if json_:
        verdicts = {name: verdict_on(tasks) for name, tasks in summary["students"].items()}
        typer.echo(json.dumps(summary | {"verdicts": verdicts, "try": next_step(summary)}, indent=2))
    else:
        print_report(Console(), summary, whole=all_)


def register(app: typer.Typer) -> None:
    app.command()(report)
