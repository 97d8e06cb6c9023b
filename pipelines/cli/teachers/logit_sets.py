"""`exfm rescore`: logit sets beside a run's lake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.tools.options import AsJson, RunDirOption, private_files, takes_run

if TYPE_CHECKING:
    from streaming.lake.logit_set import SetDescription


def register(app: typer.Typer) -> None:
    app.command()(takes_run(rescore, leads=True))


def rescore(
    run_dir: RunDirOption,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name of the set; without it, list the sets there are.")
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            "--teacher",
            metavar="VERSION|DIR",
            help="A version of the run's teacher, by number; or a folder of `exfm pretrain`, of another run, or of a "
            "saved teacher.",
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--from", metavar="SEQ", min=0, help="First row, by lake_seq; default: the lake's.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", metavar="SEQ", min=0, help="Last row; default: the lake's, now.")
    ] = None,
    allow_leakage: Annotated[
        bool,
        typer.Option(
            "--allow-leakage",
            help="Also by a teacher that had learned rows before it scores them; every figure made from the set says "
            "so.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score logged rows again with another teacher, into a logit set beside the lake.

    Rows of the lake stay as they are, and their readers go on. Ctrl-C stops the command; the same command resumes it,
    to the same bits. A set is never written twice.

    Example: exfm rescore runs/demo --as fresh --teacher 12 --from 50000
    """
    from pipelines.report.words import count
    from streaming.errors import BadInput

    if (name is None) != (teacher is None):
        raise BadInput("--as NAME and --teacher VERSION|DIR go together; without both, the sets there are are listed")
    if name is None or teacher is None:
        _list(run_dir, as_json=as_json)
        return

    from pipelines.cli.tools.stored_config import config_of
    from pipelines.core.config.kept_columns import with_kept_columns
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.logits.rescore import RescoreRequest, rescore
    from pipelines.report.screens.progress import rows_bar

    private_files()
    run = RunDir(run_dir)
    config = with_kept_columns(config_of(run), run)
    try:
        with rows_bar(f"logit set {name}", 0) as advance:
            one = rescore(config, run, RescoreRequest(name, teacher, first, last, allow_leakage), advance)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command resumes", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(_entry(run_dir, one), indent=2))
        return
    typer.echo(f"logit set `{name}`: {count(one.rows)} rows, lake_seq {one.first:,} to {one.last:,}, by {one.teacher}")
    if one.leakage is not None:
        typer.echo(f"warning: {one.leakage}", err=True)


def _list(run_dir: Path, *, as_json: bool) -> None:
    from pipelines.cli.tools.stored_config import config_of
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.report.table import TextTable
    from pipelines.report.terminal import console, rendered
    from pipelines.report.words import count
    from streaming.lake.logit_set import LEAKS, described_sets, set_bytes

    config_of(RunDir(run_dir))
    beside = RunDir(run_dir).side_tables
    sets = described_sets(beside)
    if as_json:
        typer.echo(json.dumps([_entry(run_dir, one) for one in sets], indent=2))
        return
    rows = [
        [
            one.name,
            count(one.rows),
            f"{one.first:,} to {one.last:,}",
            one.teacher,
            f"{set_bytes(beside, one.name) / 2**20:,.1f}",
            ", ".join([*([] if one.complete else ["not complete"]), *([LEAKS] if one.leakage else [])]),
        ]
        for one in sets
    ]
    console().print(rendered(TextTable("", ["logit set", "rows", "lake_seq", "teacher", "MB", ""], rows)))


def _entry(run_dir: Path, one: SetDescription) -> dict[str, object]:
    from pipelines.core.run_dir.paths import RunDir
    from streaming.lake.logit_set import set_bytes

    beside = RunDir(run_dir).side_tables
    return one.model_dump(mode="json") | {
        "rows": one.rows, "leakage": one.leakage, "bytes": set_bytes(beside, one.name)
    }  # fmt: skip
