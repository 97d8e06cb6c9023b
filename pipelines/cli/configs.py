"""`exfm init`, `config`: make a config from a file, and print what a config sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.tools.options import AsJson, Overrides
from streaming.program import command

if TYPE_CHECKING:
    from pipelines.data.propose.config_text import Proposal
    from pipelines.data.propose.proposal import Hints


def register(app: typer.Typer) -> None:
    app.command("init")(init)
    commands = typer.Typer(help="What a config says, and what it may say.", no_args_is_help=True)
    commands.command("show", epilog="Example: exfm config show --diff configs/jd.yaml")(show)
    commands.command("schema", epilog="Example: exfm config schema -o exfm.schema.json")(schema)
    app.add_typer(commands, name="config")


def init(
    where: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A Parquet, CSV, TSV or JSON-lines file, perhaps .gz or .zst; a folder of one kind, or a Delta "
            "table. Or kafka://HOST:PORT/TOPIC, with --feedback-topic.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The config to write; default: NAME.yaml, the source's name.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="A column that is a label. May be repeated.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", help="The column of the event time.")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="The column of the impression's id.")] = None,
    vertical: Annotated[str | None, typer.Option("--vertical", help="The column of the vertical.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="The column of the user.")] = None,
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Of text: whether its first line names the columns; default: seen."),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option("--encoding", help="Of CSV and TSV: latin-1 or utf-16; default: UTF-8."),
    ] = None,
    feedback: Annotated[
        Path | None,
        typer.Option(
            "--feedback",
            help="A file of clicks and the like, a row each: the impression's id, the time, perhaps what happened.",
        ),
    ] = None,
    feedback_topic: Annotated[
        str | None, typer.Option("--feedback-topic", help="Of a Kafka topic: the one of its feedback.")
    ] = None,
    sample_rows: Annotated[
        int, typer.Option("--sample-rows", min=100, help="Of a Kafka topic: how many of its newest rows are read.")
    ] = 200_000,
    sample_seconds: Annotated[
        float, typer.Option("--sample-seconds", min=1.0, help="Of a Kafka topic: for how long, at most.")
    ] = 30.0,
    ask: Annotated[
        bool,
        typer.Option("--ask", help="Ask for labels, time, id, vertical, user; the guess is the default."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the config, and the copy beside it.")] = False,
    json_: AsJson = False,
) -> None:
    """Examine a file of rows and write a config that runs on it, each guess with its evidence and the runner-up.

    What a run cannot read by itself (fields of records, feedback of its own file, times of two units) is copied once to
    NAME.parquet next to the config, and that is said. Of Kafka topics a sample is read, and the config reads them live.
    Nothing is asked without --ask; what was guessed wrong is named with an option, or edited.

    Example: exfm init clicks.parquet -o mine.yaml
    """
    import json
    import shutil

    from pipelines.data.propose.proposal import Hints, begin, begin_on_topics, summary
    from pipelines.data.propose.topics import TopicRequest
    from streaming.errors import BadInput

    live, source = where.startswith("kafka://"), Path(where)
    if not live and feedback_topic is not None:
        raise BadInput(f"{where} is no Kafka topic; feedback of a file is given with --feedback FILE")
    if live and (time, id_, vertical, header, encoding, feedback, ask) != (*(None,) * 6, False):
        raise BadInput(
            "of a Kafka topic, id, time, vertical and feedback have names of their own: leave the options out"
        )
    name = source.name.partition(".")[0] or "mine"
    target = out or Path(f"{name}.yaml")
    hints = Hints(tuple(label or ()), time, id_, vertical, user, header, feedback, encoding)
    if live:
        topics = TopicRequest.of(where, feedback_topic, sample_rows, sample_seconds)
        proposal = begin_on_topics(topics, target, hints, force=force)
    else:
        proposal = begin(source, target, hints, force=force)
    if ask and (answered := _answers(proposal, hints)) != hints:
        proposal = begin(source, target, answered, force=True)
    check = command("exfm", "check", target)
    run = command("exfm", "stream", target, *([] if live else ["--until-end"]))
    if json_:
        findings = [finding.as_json() for finding in proposal.findings]
        shown = {
            "config": str(proposal.config),
            "data": str(proposal.prepared.path),
            "rows": proposal.rows,
            "findings": findings,
            "asof": [rate.as_json() for rate in proposal.asof.rates],
        }
        typer.echo(json.dumps(shown | {"said": list(proposal.said), "next": [check, run]}, indent=2))
        return
    typer.echo("\n".join(summary(proposal)))
    if proposal.asof.rates:
        from pipelines.report.terminal import console, rendered

        console().print(rendered(proposal.asof.table()))
    if proposal.findings:
        from pipelines.data.findings import finding_lines

        typer.echo("")
        typer.echo("\n".join(finding_lines(proposal.findings, min(100, shutil.get_terminal_size().columns))))
    typer.echo(f"\n{target} is written; read it, then:\n  {check}\n  {run}")


NONE = "-"


def _answers(proposal: Proposal, hints: Hints) -> Hints:
    """Ask the caller about the columns, after a look at them. Enter takes what was guessed."""
    from dataclasses import replace

    labels = ",".join(str(label.guess.column) for label in proposal.labels)
    why = "; ".join(label.guess.words for label in proposal.labels)
    given = typer.prompt(f"labels, with commas between ({why})", default=labels, err=True)
    if given != labels:
        hints = replace(hints, labels=tuple(name.strip() for name in given.split(",")))
    roles = proposal.roles
    guesses = {"time": proposal.time.guess, "id": roles.id, "vertical": roles.vertical, "user": roles.user}
    for role, guess in guesses.items():
        default = guess.column or NONE
        given = typer.prompt(f"{role} ({guess.words})", default=default, err=True)
        if given != default:
            hints = replace(hints, **{role: given})
    return hints


def show(
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    diff: Annotated[bool, typer.Option("--diff", help="Only settings that differ from the defaults.")] = False,
    overrides: Overrides = None,
) -> None:
    """Print all settings of a config with defaults filled in and every student in full."""
    from pipelines.core.config.settings import load, shown

    typer.echo(shown(load(config, overrides), diff=diff), nl=False)


def schema(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file to write it to; default: printed.")] = None,
) -> None:
    """Print the JSON schema of configs, which lets editors complete and check settings.

    Most editors find it by a first line `# yaml-language-server: $schema=exfm.schema.json`.
    """
    from pipelines.core.shipped.files import schema_file

    text = schema_file().read_text(encoding="utf-8")
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
