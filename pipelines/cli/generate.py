"""`exfm generate`: the synthetic ads stream as Parquet files, to read or to play with `exfm ingest`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.options import AsJson, Overrides
from streaming.program import command

if TYPE_CHECKING:
    from rich.table import Table


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

    from pipelines.config import Generated, load
    from pipelines.display import rows_bar
    from pipelines.tools import record
    from streaming.errors import BadInput
    from streaming.sources.synthetic import generated_stream

    asked = [("impressions", impressions), ("seed", seed)]
    settings = load(config, (overrides or []) + [f"source.{key}={value}" for key, value in asked if value is not None])
    if not isinstance(settings.source, Generated):
        kind = "null" if settings.source is None else settings.source.kind
        raise BadInput(f"{config} has a source of kind {kind}; exfm generate needs one of kind generated")
    stream = generated_stream(settings.source, settings.rows, encoding=settings.kafka.impressions.codec)
    started = time.monotonic()
    with rows_bar("generating", stream.rows) as advance:
        written = record(stream, out_dir, chunk_rows=settings.source.chunk_rows, advance=advance)
    took_s = time.monotonic() - started
    written |= {"out_dir": str(out_dir), "seconds": took_s, "rows_per_s": written["impressions"] / took_s}
    if json_:
        typer.echo(json.dumps(written))
        return
    from rich.console import Console

    typer.echo(
        f"{written['impressions']:,} impressions and {written['feedback']:,} feedback rows in {out_dir}, "
        f"{took_s:.1f} s, {written['rows_per_s']:,.0f} impressions/s"
    )
    Console().print(_table(written["verticals"]))
    files = (out_dir / "impressions.parquet", "--feedback", out_dir / "feedback.parquet")
    typer.echo(f"play it: {command('exfm', 'ingest', *files, '--config', config)}")
    typer.echo(f"    and: {command('exfm', 'stream', config, '--set', 'source=null', '--until-end')}")


def _table(verticals: dict[str, dict[str, Any]]) -> Table:
    from rich.table import Table

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.4f}"

    table = Table(box=None, pad_edge=False)
    table.add_column("vertical")
    tasks = [key for key in next(iter(verticals.values())) if key != "impressions"]
    for title in ("impressions", *(f"{task} {what}" for task in tasks for what in ("rate", "optimum NE"))):
        table.add_column(title, justify="right")
    for name, row in verticals.items():
        values = [shown(row[task][what]) for task in tasks for what in ("rate", "optimum_ne")]
        table.add_row(name, f"{row['impressions']:,}", *values)
    return table


def register(app: typer.Typer) -> None:
    app.command()(generate)
