"""`exfm metrics`: the metrics of a run for Prometheus."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.tools.options import RunDirOption, takes_run


def register(app: typer.Typer) -> None:
    app.command()(takes_run(metrics))


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
