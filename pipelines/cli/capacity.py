"""`exfm capacity`: what a config takes at a rate of impressions, and where one machine ends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.tools.options import AsJson, Overrides, cores


def register(app: typer.Typer) -> None:
    app.command()(capacity)


def capacity(
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    impressions: Annotated[float, typer.Option("--impressions-per-s", help="Impressions a second, at the peak.")],
    students: Annotated[
        int | None, typer.Option("--students", min=0, help="How many students like the config's; default: those.")
    ] = None,
    feedback: Annotated[
        float | None, typer.Option("--feedback-per-s", help="Feedback a second; default: in proportion, as measured.")
    ] = None,
    requests: Annotated[
        float, typer.Option("--requests-per-s", help="Requests a second of 100 candidates, answered by exfm serve.")
    ] = 0.0,
    run: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="A finished run, here, whose rates are taken; default: the demo's."),
    ] = None,
    cores_per_machine: Annotated[
        float | None, typer.Option("--cores-per-machine", help="Cores of a machine; default: this machine's.")
    ] = None,
    memory_gb: Annotated[
        float | None, typer.Option("--memory-gb", help="Memory of a machine; default: this machine's.")
    ] = None,
    overrides: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Price a stream's rate: cores, memory, network and disk of every part, and which part is full first.

    Rates were measured, each by the command that is named beside it; a finished run of the same config on the same
    machine measures them best (--from). Nothing is started.

    Example: exfm capacity configs/demo.yaml --impressions-per-s 1000
    """
    import json
    import math

    from pipelines.capacity.price import Pricing
    from pipelines.capacity.rates import read_rates
    from pipelines.capacity.screen import sources, tables, verdict
    from pipelines.core.config.settings import load
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.data.doctor.machine import total_memory
    from pipelines.report.terminal import console, rendered
    from streaming.errors import BadInput

    for option, value in (("--cores-per-machine", cores_per_machine), ("--memory-gb", memory_gb)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadInput(f"{option} is {value:g}; give a machine more than 0")
    settings = load(config, overrides)
    rates = read_rates(None if run is None else RunDir(run))
    pricing = Pricing(settings, rates, students)
    memory = total_memory() if memory_gb is None else memory_gb * 1e9
    price = pricing.price(pricing.workload(impressions, feedback, requests), cores_per_machine or cores(), memory)
    if json_:
        typer.echo(json.dumps(price.as_json() | {"measured": [rates.run.measured, rates.measured]}, indent=2))
        return
    for table in tables(price):
        console().print(rendered(table))
    typer.echo("")
    typer.echo("\n".join([verdict(price), "", *sources(rates)]))
