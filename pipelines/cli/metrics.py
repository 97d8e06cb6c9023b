"""`exfm metrics`, `silence`: a run for those who watch over it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.tools.options import Host, RunDirOption, TlsCert, TlsKey, TokenFile, access_of, takes_run


def register(app: typer.Typer) -> None:
    app.command()(takes_run(metrics))
    app.command()(takes_run(silence, beside="alarms"))


def metrics(
    run_dir: Annotated[Path | None, typer.Option("--run-dir", help="Folder of the run.")] = None,
    serve: Annotated[
        int | None,
        typer.Option("--serve", min=0, max=65535, help="Serve them at this port until Ctrl-C; 0: any that is free."),
    ] = None,
    host: Host = "127.0.0.1",
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    files: Annotated[
        Path | None,
        typer.Option("--files", help="No run: write rules for Prometheus and dashboards of Grafana into this folder."),
    ] = None,
) -> None:
    """Print the metrics of a run, in Prometheus' text format, whether it runs or not.

    A run serves them itself with tracking.metrics_port. They are made of status.json: no worker notices.

    --files DIR writes what fits this release: prometheus.yml, exfm.rules.yml (recording and alert rules), and
    grafana/*.json (dashboards of runs, students, servers and the lake).

    Example: exfm metrics runs/demo
    Example: exfm metrics runs/demo --serve 9464
    Example: exfm metrics --files monitoring
    """
    from contextlib import suppress

    from pipelines.track.dashboards import files as texts
    from pipelines.track.endpoint import MetricsEndpoint, run_exposition
    from streaming.errors import BadInput
    from streaming.store.files import write_text

    if files is not None:
        for name, text in texts().items():
            write_text(files / name, text)
            typer.echo(files / name)
        return
    if run_dir is None:
        raise BadInput("missing folder of a run: RUN as the last argument; or --files DIR, which needs none")
    text = run_exposition(run_dir)[0].decode()
    if serve is None:
        typer.echo(text, nl=False)
        return
    endpoint = MetricsEndpoint(run_dir, serve, access_of(host, token_file, tls_cert, tls_key))
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
