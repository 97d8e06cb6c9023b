"""`exfm init`, `config`: from a file to a config that runs, and what a config says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import AsJson, Overrides
from streaming.program import command


def register(app: typer.Typer) -> None:
    app.command("init")(init)
    commands = typer.Typer(help="What a config says, and what it may say.", no_args_is_help=True)
    commands.command("show", epilog="Example: exfm config show --diff configs/jd.yaml")(show)
    commands.command("schema", epilog="Example: exfm config schema -o exfm.schema.json")(schema)
    app.add_typer(commands, name="config")


def init(
    source: Annotated[
        Path,
        typer.Argument(help="A Parquet, CSV, TSV or JSON-lines file, perhaps .gz or .zst; or a folder of one kind."),
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
    force: Annotated[bool, typer.Option("--force", help="Overwrite the config, and the copy beside it.")] = False,
    json_: AsJson = False,
) -> None:
    """Look at a file of rows and write a config that runs on it, every guess with its evidence and the runner-up.

    A file that a run cannot play as it is (text, rows out of order, no times) is copied once to NAME.parquet beside
    the config, and that is said. Nothing is asked; what was guessed wrong is named with an option, or edited.

    Example: exfm init clicks.parquet -o mine.yaml
    """
    import json
    import shutil

    from pipelines.init import Asked, begin, summary

    name = source.name.partition(".")[0] or "mine"
    target = out or Path(f"{name}.yaml")
    asked = Asked(tuple(label or ()), time, id_, vertical, user, header)
    begun = begin(source, target, asked, force=force)
    check = command("exfm", "check", target)
    run = command("exfm", "stream", target, "--until-end")
    if json_:
        findings = [{**finding._asdict(), "severity": str(finding.severity)} for finding in begun.findings]
        shown = {"config": str(begun.config), "data": str(begun.data), "rows": begun.rows, "findings": findings}
        typer.echo(json.dumps(shown | {"said": list(begun.said), "next": [check, run]}, indent=2))
        return
    typer.echo("\n".join(summary(begun)))
    if begun.findings:
        from pipelines.checks import finding_lines  # torch comes with it: after the statistics, whose memory is free

        typer.echo("")
        typer.echo("\n".join(finding_lines(begun.findings, min(100, shutil.get_terminal_size().columns))))
    typer.echo(f"\n{target} is written; read it, then:\n  {check}\n  {run}")


def show(
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    diff: Annotated[bool, typer.Option("--diff", help="Only settings that differ from the defaults.")] = False,
    overrides: Overrides = None,
) -> None:
    """Print all settings of a config, as a run of it would have them: defaults filled in, every student whole."""
    from pipelines.config import load, shown

    typer.echo(shown(load(config, overrides), diff=diff), nl=False)


def schema(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file to write it to; default: printed.")] = None,
) -> None:
    """Print the JSON schema of configs, by which an editor completes and checks settings.

    Most editors find it by a first line `# yaml-language-server: $schema=exfm.schema.json`.
    """
    from pipelines.shipped import schema_file

    text = schema_file().read_text(encoding="utf-8")
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
