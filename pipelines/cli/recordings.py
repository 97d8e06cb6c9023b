"""`exfm generate` and `ingest`: write and play streams as Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.tools.options import AsJson, Overrides
from streaming.program import command

if TYPE_CHECKING:
    from pipelines.cli.tools.feeding import Fed
    from pipelines.report.table import TextTable


def generate(
    out_dir: Annotated[Path, typer.Argument(help="Folder for impressions.parquet, feedback.parquet and truth/.")],
    config: Annotated[Path, typer.Option("--config", help="A config whose source is generated.")] = Path(
        "configs/demo.yaml"
    ),
    impressions: Annotated[int | None, typer.Option(min=1, help="How many impressions; default: the config's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the stream; default: the config's.")] = None,
    overrides: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Write the synthetic stream as Parquet: impressions and feedback by event time, and the true probabilities.

    Memory stays constant however long the stream is. A recording is never overwritten; an interrupted one is removed.

    Example: exfm generate data/synthetic --impressions 100000
    """
    import json
    import time

    from pipelines.cli.tools.recording import record
    from pipelines.core.config.sections import Generated
    from pipelines.core.config.settings import load
    from pipelines.report.screens.progress import rows_bar
    from streaming.errors import BadInput
    from streaming.sources.synthetic.stream import generated_stream

    options = [("impressions", impressions), ("seed", seed)]
    settings = load(
        config, (overrides or []) + [f"source.{key}={value}" for key, value in options if value is not None]
    )
    if not isinstance(settings.source, Generated):
        kind = "null" if settings.source is None else settings.source.kind
        raise BadInput(f"{config} has a source of kind {kind}; exfm generate needs one of kind generated")
    stream = generated_stream(settings.source, settings.rows, encoding=settings.kafka.impressions.written)
    started = time.monotonic()
    with rows_bar("generating", stream.rows) as advance:
        written = record(stream, out_dir, chunk_rows=settings.source.chunk_rows, advance=advance)
    took_s = time.monotonic() - started
    written |= {"out_dir": str(out_dir), "seconds": took_s, "rows_per_s": written["impressions"] / took_s}
    if json_:
        typer.echo(json.dumps(written))
        return
    from pipelines.report.terminal import console, rendered

    typer.echo(
        f"{written['impressions']:,} impressions and {written['feedback']:,} feedback rows in {out_dir}, "
        f"{took_s:.1f} s, {written['rows_per_s']:,.0f} impressions/s"
    )
    console().print(rendered(_table(written["verticals"])))
    files = (out_dir / "impressions.parquet", "--feedback", out_dir / "feedback.parquet")
    typer.echo(f"play it: {command('exfm', 'ingest', *files, '--config', config)}")
    typer.echo(f"    and: {command('exfm', 'stream', config, '--set', 'source=null', '--until-end')}")


def _table(verticals: dict[str, dict[str, Any]]) -> TextTable:
    from pipelines.report.table import TextTable
    from pipelines.report.words import fixed

    tasks = [key for key in next(iter(verticals.values())) if key != "impressions"]
    rows = [
        [name, f"{row['impressions']:,}", *(fixed(row[t][what]) for t in tasks for what in ("rate", "optimum_ne"))]
        for name, row in verticals.items()
    ]
    figures = [f"{task} {what}" for task in tasks for what in ("rate", "optimum NE")]
    return TextTable("", ["vertical", "impressions", *figures], rows)


def ingest(
    file: Annotated[
        Path, typer.Argument(help="Impressions: Parquet, CSV, TSV or JSON lines, perhaps .gz or .zst; or a folder.")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="A YAML file with topics, rows and recorded source.")
    ] = None,
    feedback: Annotated[
        Path | None, typer.Option("--feedback", help="A file of feedback; default: labels are columns of FILE.")
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
    json_: AsJson = False,
) -> None:
    """Feed a recorded stream into the input topics. Ctrl-C ends it cleanly; the same command resumes where it stopped.

    Then run a config with `source: null` on the same run directory: `exfm stream CONFIG --until-end`.

    Example: exfm ingest clicks.parquet --config clicks.yaml --rate 60x
    """
    import json
    from contextlib import nullcontext
    from dataclasses import asdict

    from pipelines.cli.tools.feeding import alone, feed, reached, recorded_source
    from pipelines.core.config.settings import load
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.report.screens.progress import rows_bar, share_bar
    from streaming.errors import BadInput

    if config is None:
        raise BadInput(
            f"--config is missing: it says what the columns of {file} are, and which topics; `exfm init` writes one"
        )
    if run_dir is not None and bootstrap_servers is not None:
        raise BadInput("--run-dir and --bootstrap-servers both name a broker; give one of them")
    servers = [] if bootstrap_servers is None else [f"kafka.bootstrap_servers='{bootstrap_servers}'"]
    settings = load(config, (overrides or []) + servers)
    if settings.follows is not None:
        raise BadInput(f"{config} follows the lake of {settings.follows.lake}; feed the topics of that run")
    where = RunDir(run_dir or Path("runs") / settings.name)
    with share_bar() as advance_copy:
        source = recorded_source(settings, file, feedback, rate, where.copies, advance_copy)
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
    app.command()(generate)
    app.command()(ingest)
