"""`exfm ui`: a read-only page over a run."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.tools.options import Host, RunDirOption, TlsCert, TlsKey, TokenFile, access_of, takes_run


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: exfm ui runs/demo --port 8090")(takes_run(ui))


def ui(
    run_dir: RunDirOption,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8090,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Show a run on a web page: its flow with rates and lags, alarms, students and their NE over event time, dead
    letters, and what `exfm why` answers. Ctrl-C ends it.

    The page is a process of its own that reads the files of a run, live or ended, and asks nothing of its workers. It
    is for this machine only, unless --host says otherwise; then a token is needed (EXFM_TOKEN or --token-file), which
    a browser gives once: open /?token=TOKEN.

    Example: exfm ui runs/demo
    """
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.ui.server import RunPage, serve_page

    def ready(taken: int) -> None:
        typer.echo(f"the page of {run_dir} is on {access.scheme}://{host}:{taken}/ (Ctrl-C ends it)", err=True)

    access = access_of(host, token_file, tls_cert, tls_key)
    serve_page(RunPage(RunDir(run_dir)), access, port, ready)
