"""`exfm promote`, `rollback`, `serve`, `score`: versions of a student, its champion, and predictions."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from pipelines.cli.tools.options import AsJson, Host, RunDirOption, TlsCert, TlsKey, TokenFile, access_of, takes_run

if TYPE_CHECKING:
    from pipelines.serve.sources import Follow

Name = Annotated[str, typer.Argument(metavar="NAME", help="The student.")]
Reason = Annotated[str, typer.Option("--reason", help="Why: it stays in the ledger and on the version in MLflow.")]
FollowOption = Annotated[
    str,
    typer.Option(
        "--follow",
        help="champion or candidate of the registry; newest, of the last checkpoint; or live, as the student learns.",
    ),
]

RunDirOrNone = Annotated[Path | None, typer.Option("--run-dir", help="Folder of the run, for students of it.")]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri", envvar="MLFLOW_TRACKING_URI", help="MLflow's store, for models:/…: sqlite:///…, http://…."
    ),
]


def register(app: typer.Typer) -> None:
    for command in (promote, rollback, score):
        app.command()(takes_run(command))
    app.command()(takes_run(serve, beside="names"))


def promote(
    name: Name,
    run_dir: RunDirOption,
    reason: Reason,
    version: Annotated[
        str | None, typer.Option("--version", help="As in the ledger, v00050000; default: the candidate.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a version of a student its champion, on a live run or a finished one.

    A live run takes it up before its next batch, and ends the comparison that is on; the version that was champion is
    `previous` from now on. Asked for again, it changes nothing.

    Example: exfm promote feed --run-dir runs/demo --reason "seen live"
    """
    from pipelines.cli.tools.versions import mirrored, promote

    done = promote(run_dir, name, version, reason)
    _show(done | {"mlflow": mirrored(run_dir, name)}, as_json)


def rollback(name: Name, run_dir: RunDirOption, reason: Reason, as_json: AsJson = False) -> None:
    """Restore the previous champion, on a live run or a finished one.

    There is no `previous` from then on: asked for again, it changes nothing. Further back leads `exfm promote NAME
    --version …`.

    Example: exfm rollback feed --run-dir runs/demo --reason "bad ads"
    """
    from pipelines.cli.tools.versions import mirrored, rollback

    done = rollback(run_dir, name, reason)
    _show(done | {"mlflow": mirrored(run_dir, name)}, as_json)


def _show(value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(value, indent=2))
        return
    now = "is champion" if value["changed"] else "was champion already, nothing was changed"
    typer.echo(f"{value['student']}: {value['champion']} {now} (by {value['by']}, {value['at']}: {value['reason']})")
    typer.echo(f"previous: {value['previous'] or 'none'}; candidate: {value['candidate'] or 'none'}")
    typer.echo(f"MLflow: {value['mlflow']}")


def serve(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME…]", help="Students of --run-dir, default: all; or models:/NAME@ALIAS, /NAME/N."),
    ] = None,
    run_dir: RunDirOrNone = None,
    follow: FollowOption = "champion",
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8080,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Each uses a core and holds the models.")] = 1,
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, help="Of one request.")] = 4096,
    max_mb: Annotated[float, typer.Option("--max-mb", min=0.001, help="Of one request's body.")] = 8.0,
    access_log: Annotated[bool, typer.Option(help="A line of JSON for each request, on standard output.")] = True,
    tracking_uri: TrackingUri = None,
    tables: Annotated[
        str, typer.Option("--tables", help="fp32; or int8, int4: smaller, judged on the lake's newest rows first.")
    ] = "fp32",
    max_ne_loss: Annotated[
        float, typer.Option("--max-ne-loss", min=0, help="By how much of itself --tables may raise the NE of a task.")
    ] = 0.001,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Serve compiled code; it is made once, in a minute, by a C++ compiler.")
    ] = False,
    log_topic: Annotated[
        str | None, typer.Option("--log-topic", help="A topic for requests and predictions; it must exist.")
    ] = None,
    log_share: Annotated[
        float, typer.Option("--log-share", min=0, max=1, help="Of the impressions, by a hash of impression_id.")
    ] = 0.01,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", help="HOST:PORT of the Kafka that has --log-topic.")
    ] = None,
) -> None:
    """Serve students of a run, or registered models, over HTTP. A version that becomes champion answers within a
    second, without a failed request; a damaged one is refused, and the old one stays.

    POST /v1/models/NAME:predict takes JSON rows or columns, or an Arrow IPC stream; GET /v1/models, /healthz, /readyz,
    /metrics (Prometheus) and /openapi.json say the rest. No cluster and no broker are needed. Ctrl-C ends it.
    On another --host than loopback a token is needed (EXFM_TOKEN or --token-file); health checks need none.

    Example: exfm serve feed --run-dir runs/demo
    Example: exfm serve models:/demo-feed@champion
    """
    gc.disable()  # a sixth of the start is spent looking through what is imported; `server_of` has it on again
    from pipelines.serve.app import RequestLimits
    from pipelines.serve.processes import ServerSettings
    from pipelines.serve.processes import serve as serve_until_stopped
    from pipelines.serve.tables import TableSettings

    kind = TableSettings(cast("Any", _chosen(tables, "--tables", ("fp32", "int8", "int4"))), max_ne_loss)
    access = access_of(host, token_file, tls_cert, tls_key)
    limits = RequestLimits(max_bytes=round(max_mb * 1e6), max_rows=max_rows)
    server = ServerSettings(
        run_dir, tuple(names or ()), _follow(follow), access, port, limits, access_log, tracking_uri, kind
    )
    server = server._replace(compiled=compiled)
    if log_topic is not None:
        from pipelines.serve.logged import LogSettings
        from streaming.kafka.settings import KafkaSettings

        settings = KafkaSettings.of_servers(bootstrap_servers)
        server = server._replace(logged=LogSettings(settings, log_topic, log_share))

    def ready(taken: int) -> None:
        at = f"{access.scheme}://{host}:{taken}"
        token = "" if access.token is None else '-H "Authorization: Bearer $EXFM_TOKEN" '
        typer.echo(f"serving on {at}; try: curl {token}{at}/v1/models", err=True)

    serve_until_stopped(server, processes, ready)


def score(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The student; or models:/NAME@ALIAS, models:/NAME/N.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rows, in every form that exfm init takes.")],
    run_dir: RunDirOrNone = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=".parquet or .csv; default: FILE.scored.parquet.")
    ] = None,
    follow: FollowOption = "champion",
    tracking_uri: TrackingUri = None,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a file with a student, in constant memory: its columns, and prediction_TASK for each task.
    Rows that ingestion would refuse have null there, and are counted by reason. Exit code 2 where all are refused.
    As-of features that the file lacks are looked up in the run's newest state; a line says so.

    Example: exfm score feed ads.parquet --run-dir runs/demo
    """
    from pipelines.report.screens.progress import rows_bar
    from pipelines.serve.batch import rows_of, score_file
    from pipelines.serve.model_store import open_model_store
    from pipelines.serve.sources import model_sources
    from streaming.errors import BadInput

    model_store = open_model_store(model_sources([name], run_dir, _follow(follow), tracking_uri))
    (model,) = model_store.models
    version = model_store.version(model)
    model_store.close()
    if version is None:
        why = model_store.refused(model) or f"it has no {follow}; --follow newest takes its last checkpoint's"
        raise BadInput(f"`{name}` cannot predict: {why}")
    target = out or file.with_name(f"{file.stem}.scored.parquet")
    target.parent.mkdir(parents=True, exist_ok=True)
    with rows_of(version, file, target.parent) as rows, rows_bar("predicting", rows.metadata.num_rows) as advance:
        assumed = version.asof.assumed(rows.schema_arrow.names)
        done = score_file(version, rows, file, target, advance)
    refused = sum(done.refused.values())
    if as_json:
        typer.echo(
            json.dumps(
                {"version": version.name, "rows": done.rows, "refused": done.refused, "out": str(target)}
                | ({"asof": assumed} if assumed else {})
            )
        )
    else:
        typer.echo(f"{done.rows - refused:,} of {done.rows:,} rows predicted by {name} {version.name}: {target}")
        if assumed:
            typer.echo(f"  as-of features: {assumed}")
        for reason, count in sorted(done.refused.items()):
            typer.echo(f"  {count:,} refused, their prediction is null: {reason}")
    if done.rows and refused == done.rows:
        raise BadInput(
            "no row could be predicted: columns need the names and types of the lake's rows, which are `vertical` and "
            "`rows` of the run's config.yaml"
        )


def _follow(text: str) -> Follow:
    return cast("Follow", _chosen(text, "--follow", ("champion", "candidate", "newest", "live")))


def _chosen(text: str, option: str, possible: tuple[str, ...]) -> str:
    from streaming.errors import BadInput

    if text not in possible:
        raise BadInput(f"{option} {text}; it may be {', '.join(possible[:-1])} or {possible[-1]}")
    return text
