"""Options that several sub-commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def warned(overrides: list[str] | None) -> list[str] | None:
    """Warns of passwords among `--set`."""
    if overrides:
        from pipelines.config import passwords_in

        for setting in dict.fromkeys(setting for text in overrides for setting in passwords_in(text)):
            typer.echo(
                f"warning: --set {setting}=… shows the password to everyone on this machine (ps), and to the shell's "
                f"history; better: export it as KAFKA_PASSWORD, then --set '{setting}={{env: KAFKA_PASSWORD}}'",
                err=True,
            )
    return overrides


def private_files() -> None:
    """From now on this process and those that it starts make files which only their user can read: a run's hold rows,
    and may hold more."""
    os.umask(0o077)


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting of the config: path=value. May be repeated.", callback=warned),
]
RunDirOption = Annotated[Path, typer.Option("--run-dir", help="Folder of the run.")]
RunDirOrDefault = Annotated[
    Path | None, typer.Option("--run-dir", help="Folder of the run; default: runs/NAME, the config's name.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
