"""`exfm plan`: where the tables of a config's teacher would go, what that costs, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(plan)


def plan(
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: path=value. May be repeated.")
    ] = None,
    scoring: Annotated[
        bool, typer.Option("--scoring", help="The teacher that scores in augmentation, not the one that learns.")
    ] = False,
    ranks: Annotated[int | None, typer.Option(min=1, help="Instead of the config's.")] = None,
    ranks_per_host: Annotated[
        int | None, typer.Option(min=1, help="Instead of the config's; default: one host.")
    ] = None,
    memory_gb: Annotated[float | None, typer.Option(help="Of a rank, instead of the config's.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda: whose costs are predicted.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="For ranks and memory you do not have: this machine is not looked at.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="The config's plan alone, without what else was possible.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Plan how the teacher's tables are spread over ranks: bytes and predicted cost of each, and what does not fit.

    Nothing is started or allocated. Exit code 2 when it does not fit; every remedy named is a plan the planner made.

    Example: exfm plan configs/demo.yaml --dry-run --ranks 64 --ranks-per-host 8 --memory-gb 80 --device cuda
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
