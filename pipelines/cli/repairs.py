"""`exfm dead-letters`, `mend`: repair by hand of damage from outside a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.tools.options import AsJson, Overrides, RunDirOption, takes_run

Reason = Annotated[str | None, typer.Option("--reason", help="Only letters with this reason, as `list` names it.")]


def register(app: typer.Typer) -> None:
    _register_letters(app)
    _register_mend(app)


def _register_letters(app: typer.Typer) -> None:
    commands = typer.Typer(
        help="Records that a run refused, with their reasons: counted, shown, put back onto their topics.",
        no_args_is_help=True,
    )
    commands.command("list", epilog="Example: exfm dead-letters list --run-dir runs/demo")(takes_run(list_, leads=True))
    commands.command("show", epilog="Example: exfm dead-letters show ads:0:17 --run-dir runs/mine")(
        takes_run(show, beside="place", leads=True)
    )
    commands.command("replay", epilog="Example: exfm dead-letters replay --run-dir RUN --reason null:age")(
        takes_run(replay, leads=True)
    )
    app.add_typer(commands, name="dead-letters")


def _register_mend(app: typer.Typer) -> None:
    commands = typer.Typer(
        help="Put right what the outside world broke in a run. Says first what it will do.", no_args_is_help=True
    )

    @commands.callback()
    def _group() -> None:
        """A group also while it has one command."""

    commands.command("watermark", epilog="Example: exfm mend watermark --run-dir runs/live --yes")(
        takes_run(watermark, leads=True)
    )
    app.add_typer(commands, name="mend")


def list_(run_dir: RunDirOption, reason: Reason = None, as_json: AsJson = False) -> None:
    """Count dead letters by reason and topic, with the number of those put back."""
    from pipelines.cli.tools.dead_letters import DeadLetters
    from pipelines.report.table import TextTable
    from pipelines.report.terminal import console, rendered

    counts = DeadLetters(run_dir).counts(reason)
    if as_json:
        typer.echo(json.dumps(counts, indent=2))
        return
    if not counts:
        typer.echo("no dead letters")
        return
    rows = [
        [*(row[k] for k in ("reason", "kind", "topic")), *(f"{row[k]:,}" for k in ("letters", "replayed"))]
        for row in counts
    ]
    console().print(rendered(TextTable("", ["reason", "kind", "topic", "letters", "replayed"], rows, names=3)))


def show(
    run_dir: RunDirOption,
    place: Annotated[
        str | None, typer.Argument(help="TOPIC:PARTITION:OFFSET or …:ROW; default: the first letter.")
    ] = None,
    reason: Reason = None,
) -> None:
    """Show one dead letter as JSON: its reason, its origin, and its record decoded as far as possible."""
    from pipelines.cli.tools.dead_letters import DeadLetters
    from streaming.delivery.requeue import Place

    letter = DeadLetters(run_dir).show(None if place is None else Place.parse(place), reason)
    typer.echo(json.dumps(letter, indent=2, ensure_ascii=False))


def replay(
    run_dir: RunDirOption,
    reason: Reason = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Put the original records of dead letters back onto their topics, each once.

    A command that was killed is completed by the next one. Impressions that are too old by now are counted before:
    they will come back as `too_old`.
    """
    from pipelines.cli.tools.dead_letters import DeadLetters

    done = DeadLetters(run_dir, overrides).replay(reason, dry_run=dry_run, say=lambda text: typer.echo(text, err=True))
    if as_json:
        typer.echo(json.dumps(done))
    elif dry_run:
        typer.echo(f"{done['letters']:,} dead letters would be put back; nothing was written")
    else:
        gone = f"; of {done['gone']:,} the topic no longer holds the record" if done["gone"] else ""
        refused = f"; {done['refused']:,} could not be put back" if done["refused"] else ""
        typer.echo(f"{done['replayed']:,} dead letters are back on their topics{gone}{refused}")


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
    """Set event time back after a record from the future has moved it and everything else is refused as `too_old`.

    Without --yes it says what would become acceptable again and what cannot come back, and changes nothing.
    """
    from pipelines.cli.tools.event_time import EventTime

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
    from streaming.messages.times import milliseconds

    if text.isdecimal():
        return int(text)
    try:
        return int(milliseconds(pa.array([text]), "ms")[0].as_py())
    except ValueError:
        raise BadInput(f"--to {text} is no time; write it as 2026-11-22T18:00:00Z, or in ms since 1970") from None
