"""`exfm mend`: what the outside world broke in a run, put right by hand."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import AsJson, Overrides


def register(app: typer.Typer) -> None:
    commands = typer.Typer(
        help="Put right what the outside world broke in a run. Says first what it will do.", no_args_is_help=True
    )

    @commands.callback()
    def _group() -> None:
        """A group also while it has one command."""

    commands.command("watermark", epilog="Example: exfm mend watermark --run-dir runs/live --yes")(watermark)
    app.add_typer(commands, name="mend")


def watermark(
    run_dir: Annotated[Path, typer.Option("--run-dir", help="Folder of the run, which must not be running.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TIME",
            help="Where event time was, as ISO 8601 (UTC without a zone) or milliseconds since 1970; default: the "
            "newest event time in the lake that is not in the future.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Set event time back after a record from the future has moved it, and everything else is refused as `too_old`.

    Without --yes it says what would become acceptable again and what cannot come back, and changes nothing.
    """
    from pipelines.tools import EventTime

    event_time = EventTime(run_dir, overrides)
    planned = event_time.plan(None if to is None else _milliseconds(to))
    if not as_json:
        for line in planned.lines:
            typer.echo(line)
    if yes:
        event_time.set_back(planned)
    if as_json:
        typer.echo(json.dumps(asdict(planned) | {"done": yes}, indent=2))
    else:
        typer.echo("done: the next start goes on from there" if yes else "nothing was changed; add --yes to do it")


def _milliseconds(text: str) -> int:
    import pyarrow as pa

    from streaming.errors import BadInput
    from streaming.messages import milliseconds

    if text.isdecimal():
        return int(text)
    try:
        return int(milliseconds(pa.array([text]), "ms")[0].as_py())
    except ValueError:
        raise BadInput(f"--to {text} is no time; write it as 2026-11-22T18:00:00Z, or in ms since 1970") from None
