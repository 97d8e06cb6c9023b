"""`exfm ingest`: a recorded stream from Parquet into the input topics of a config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import Overrides

if TYPE_CHECKING:
    from pipelines.tools import Fed


def ingest(
    file: Annotated[Path, typer.Argument(help="Parquet file of impressions, in order of event time.")],
    config: Annotated[Path, typer.Option("--config", help="A YAML file with topics, rows and recorded source.")],
    feedback: Annotated[
        Path | None, typer.Option("--feedback", help="Parquet file of feedback; default: labels are columns of FILE.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", help="The run whose broker is used; default: runs/NAME, by the config."),
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", help="HOST:PORT of your own Kafka instead.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="full, rows per second (5000), or event time × (60x).")
    ] = None,
    no_end: Annotated[bool, typer.Option("--no-end", help="Write no end markers: topics stay open for more.")] = False,
    append: Annotated[
        bool, typer.Option("--append", help="Append to a stream in the topics that was left open.")
    ] = False,
    overrides: Overrides = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Feed a recorded stream into the input topics. Ctrl-C ends it cleanly; the same command resumes where it stopped.

    Then run a config with `source: null` on the same run directory: `exfm stream CONFIG --until-end`.

    Example: exfm ingest clicks.parquet --config clicks.yaml --rate 60x
    """
    import json
    from contextlib import nullcontext
    from dataclasses import asdict

    from pipelines.config import load
    from pipelines.display import rows_bar
    from pipelines.run_dir import RunDir
    from pipelines.tools import alone, feed, reached, recorded_source
    from streaming.errors import BadInput

    if run_dir is not None and bootstrap_servers is not None:
        raise BadInput("--run-dir and --bootstrap-servers both name a broker; give one of them")
    servers = [] if bootstrap_servers is None else [f"kafka.bootstrap_servers='{bootstrap_servers}'"]
    settings = load(config, (overrides or []) + servers)
    source = recorded_source(settings, file, feedback, rate)
    where = RunDir(run_dir or Path("runs") / settings.name)
    own = settings.kafka.bootstrap_servers is None
    with alone(where) if own else nullcontext():
        kafka = reached(settings.kafka, where)
        settings = settings.model_copy(update={"source": source, "kafka": kafka})
        with rows_bar("ingesting", 0) as advance:
            fed = feed(settings, where, end=not no_end, append=append, advance=advance)
    if json_:
        typer.echo(
            json.dumps(asdict(fed) | {"rows_per_s": fed.rows_per_s, "bootstrap_servers": kafka.bootstrap_servers})
        )
    else:
        typer.echo(_outcome(fed, str(kafka.bootstrap_servers), no_end))
    if fed.stopped:
        typer.echo("interrupted; the same command resumes here", err=True)
        raise typer.Exit(130)


def _outcome(fed: Fed, servers: str, no_end: bool) -> str:
    where = f"in the topics at {servers}"
    if fed.before == fed.total:
        return f"all {fed.total:,} impressions were {where} already"
    before = f" ({fed.before:,} of them by earlier calls)" if fed.before else ""
    end = "" if fed.stopped else "; the topics stay open for more" if no_end else "; the topics have ended"
    return f"{fed.rows:,} of {fed.total:,} impressions{before} are {where}{end}; {fed.rows_per_s:,.0f} rows/s"


def register(app: typer.Typer) -> None:
    app.command()(ingest)
