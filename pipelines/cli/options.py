"""Options that several sub-commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting of the config: path=value. May be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
