"""`exfm plan`: where the tables of a config's teacher go, what that costs, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import Overrides


def register(app: typer.Typer) -> None:
    app.command()(plan)


def plan(
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    overrides: Overrides = None,
    scoring: Annotated[
        bool, typer.Option("--scoring", help="Plan the teacher that scores in augmentation, not the one that learns.")
    ] = False,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks; default: the config's.")] = None,
    ranks_per_host: Annotated[
        int | None, typer.Option(min=1, help="Ranks per host; default: the config's, or all on one host.")
    ] = None,
    memory_gb: Annotated[float | None, typer.Option(help="Memory of a rank; default: the config's.")] = None,
    device: Annotated[str | None, typer.Option(help="The device whose costs are predicted: cpu or cuda.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do not check this machine: for ranks and memory that it does not have.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The config's plan alone, without alternatives.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Plan how the teacher's tables are spread over ranks: bytes and predicted cost of each, and what does not fit.

    Nothing is started or allocated. Exit code 2 when the plan does not fit; every remedy it names was planned.

    Example: exfm plan configs/demo.yaml --ranks 4 --memory-gb 2
    """
    from rich.console import Console

    from pipelines.config import load
    from pipelines.planning import Part, ask, question_of, show_plan
    from pipelines.tools.doctor import total_memory

    settings = load(config, overrides)
    part: Part = "augmentation" if scoring else "teacher"
    question = question_of(
        settings, part, ranks=ranks, ranks_per_host=ranks_per_host, memory_gb=memory_gb, device=device
    )
    with Console(stderr=True).status("asking the planner"):
        report = ask(settings, question, look_around=not quick, memory_here=None if dry_run else total_memory())
    if json_:
        import json

        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        show_plan(report, Console())
    report.refuse()
