"""Ctrl-C of a command that goes on where it was stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

INTERRUPTED = 130


@contextmanager
def resumable() -> Iterator[None]:
    """Say what Ctrl-C has left, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; the same command resumes it", err=True)
        raise typer.Exit(INTERRUPTED) from None
