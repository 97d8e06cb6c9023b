"""`exfm promote`, `exfm rollback`: a student's champion, chosen by hand."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from pipelines.cli.options import AsJson, RunDirOption

Name = Annotated[str, typer.Argument(metavar="NAME", help="The student.")]
Reason = Annotated[str, typer.Option("--reason", help="Why: it stays in the ledger and on the version in MLflow.")]


def register(app: typer.Typer) -> None:
    app.command()(promote)
    app.command()(rollback)


def promote(
    name: Name,
    run_dir: RunDirOption,
    reason: Reason,
    version: Annotated[
        str | None, typer.Option("--version", help="As in the ledger, v00050000; default: the candidate.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a version of a student its champion, on a live run or on one that has ended.

    A live run takes it up before its next batch, and ends the comparison that is on; the version that was champion is
    `previous` from now on. Asked for again, it changes nothing.

    Example: exfm promote feed --run-dir runs/demo --reason "seen live"
    """
    from pipelines.tools import mirrored, promote

    done = promote(run_dir, name, version, reason)
    _show(done | {"mlflow": mirrored(run_dir, name)}, as_json)


def rollback(name: Name, run_dir: RunDirOption, reason: Reason, as_json: AsJson = False) -> None:
    """Make the champion before champion again, on a live run or on one that has ended.

    There is no `previous` from then on: asked for again, it changes nothing. Further back leads `exfm promote NAME
    --version …`.

    Example: exfm rollback feed --run-dir runs/demo --reason "bad ads"
    """
    from pipelines.tools import mirrored, rollback

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
