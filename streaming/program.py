"""Commands printed in messages, runnable when pasted into the reader's shell."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def command(program: str, *arguments: object) -> str:
    """A command of a `program` of this environment (`exfm`, `python`, `mlflow`), quoted where a shell needs it.

    The program stands with its path unless its bare name already finds it: as `.venv/bin/exfm` from the folder above.

    >>> command("exfm", "stop", "--run-dir", "runs/my run").endswith("exfm stop --run-dir 'runs/my run'")
    True
    """
    installed = Path(sys.executable).parent / program
    spelling = spelled(installed, shutil.which(program), Path.cwd()) if installed.exists() else program
    return shlex.join([spelling, *map(str, arguments)])


def spelled(path: Path, on_path: str | None, here: Path) -> str:
    """Spell the program at `path` for a shell in the folder `here`, whose PATH resolves the bare name to `on_path`.

    >>> spelled(Path("/srv/exfm/.venv/bin/exfm"), None, Path("/srv/exfm"))
    '.venv/bin/exfm'
    >>> spelled(Path("/srv/exfm/.venv/bin/exfm"), "/srv/exfm/.venv/bin/exfm", Path("/srv/exfm"))
    'exfm'
    >>> spelled(Path("/srv/exfm/.venv/bin/exfm"), None, Path("/var/elsewhere"))
    '/srv/exfm/.venv/bin/exfm'
    """
    if on_path is not None and Path(on_path).absolute() == path:
        return path.name
    relative = os.path.relpath(path, here)
    relative = relative if "/" in relative else f"./{relative}"  # a bare name would be looked up on PATH
    return min(relative, str(path), key=len)
