"""`exfm metrics`, `silence`: a run for those who watch over it."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.tools.options import RunDirOption, takes_run


def register(app: typer.Typer) -> None:
    app.command()(takes_run(metrics))
    app.command()(takes_run(silence, beside="alarms"))


def metrics(
    run_dir: RunDirOption,
    serve: Annotated[
        int | None,
        typer.Option("--serve", min=0, max=65535, help="Serve them at this port of 127.0.0.1 until Ctrl-C; 0: any."),
    ] = None,
) -> None:
    """Print the metrics of a run, in Prometheus' text format, whether it runs or not.

    A run serves them itself with tracking.metrics_port. They are made of status.json: no worker notices.

    Example: exfm metrics runs/demo
    Example: exfm metrics runs/demo --serve 9464
    """
    from contextlib import suppress

    from pipelines.track.endpoint import MetricsEndpoint, run_exposition

    text = run_exposition(run_dir)[0].decode()
    if serve is None:
        typer.echo(text, nl=False)
        return
    endpoint = MetricsEndpoint(run_dir, serve)
    typer.echo(f"serving {endpoint.url}; Ctrl-C ends it", err=True)
    with suppress(KeyboardInterrupt):
        endpoint.serve()


def silence(
    run_dir: RunDirOption,
    alarms: Annotated[
        list[str] | None, typer.Argument(metavar="[ALARM]...", help="Names, such as stalled; none: all of them.")
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", min=0, help="For so long; 0: end a silence.")] = 60.0,
) -> None:
    """Call nobody for alarms of a run, for a while. They stay in status, metrics and log.

    An alarm that is still there when the silence ends is sent then.

    Example: exfm silence runs/live stalled "lag growing" --minutes 120
    """
    from datetime import UTC, datetime

    from pipelines.core.run_dir.paths import RunDir
    from pipelines.live.status.stored import read_status
    from pipelines.track.webhooks import silence as silenced

    read_status(run_dir)
    ends = silenced(RunDir(run_dir).silences, alarms or [], minutes, datetime.now(UTC))
    for name, until in ends.items():
        typer.echo(f"{name}: silent until {until}")
    if not ends:
        typer.echo("no alarm is silenced")
