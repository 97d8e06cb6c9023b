"""`exfm check`: a config and its data, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import AsJson, Overrides


def check(
    what: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    sample: Annotated[
        int, typer.Option("--sample", min=3, help="Rows, or messages of a topic, that are looked at in every column.")
    ] = 100_000,
    overrides: Overrides = None,
    local: Annotated[bool, typer.Option("--local", help="As for a run with --local: one process.")] = False,
    json_: AsJson = False,
) -> None:
    """Check a config and its data: columns, times, labels, delays, verticals, tables, memory. Nothing is started.

    `exfm stream` does the same first. Exit code 2 where something stops a run, 0 with warnings.

    Example: exfm check configs/demo.yaml
    """
    import json
    import shutil

    from pipelines.checks import check_config, report_text
    from pipelines.config import load

    report = check_config(load(what, overrides), rows=sample, local=local)
    if json_:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        typer.echo(report_text(report, min(100, shutil.get_terminal_size().columns)))
    if report.stops:
        raise typer.Exit(2)


def register(app: typer.Typer) -> None:
    app.command()(check)
