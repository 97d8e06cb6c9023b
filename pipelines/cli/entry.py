"""Entry point of the console script: runs the command line, or prints one line about missing packages."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import sys
import tempfile

PINNED = "requirements/cpu.txt (of a release: cpu.txt; cuda.txt with an NVIDIA driver)"


def main() -> None:
    """Run `exfm`. Where packages of it are missing, say so and exit with 2."""
    _named_user()
    code: list[int] = []
    atexit.register(_end, code)  # the first that is registered runs last
    try:
        try:
            from pipelines.cli.console import main as run
        except ModuleNotFoundError as error:
            print(f"exfm: {error.name} is not installed; install the packages of {PINNED}", file=sys.stderr)
            sys.exit(2)
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            code.append(end.code or 0)
        raise


def _named_user() -> None:
    """A user id without an entry in passwd, as in containers, has no name and no home: torch and MLflow ask for one."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        name = f"uid-{os.getuid()}"
        os.environ.setdefault("USER", name)
        os.environ.setdefault("HOME", os.path.join(tempfile.gettempdir(), f"exfm-{name}"))


def _end(code: list[int]) -> None:
    """End the process here and now, when threads have ended and everything that was registered has run. Python would
    go through all that was imported, for up to 1.3 s, and DuckDB's binding would list what is left as leaked."""
    with contextlib.suppress(OSError, ValueError):  # a reader that has gone: Python's own end says so
        sys.stdout.flush()
        sys.stderr.flush()
        if code:
            os._exit(code[0])
