"""The summary of a finished run, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.stored import read_status
from pipelines.report.results.summary import FORMAT
from streaming.errors import BadInput
from streaming.program import command
from streaming.store.files import read_json


def read_summary(run_dir: RunDir) -> dict[str, Any]:
    """Read summary.json; raises BadInput with a remedy if the run has none."""
    value = read_json(run_dir.summary)
    if value is None:
        raise BadInput(_unfinished(run_dir))
    return current(value, run_dir.summary)


def _unfinished(run_dir: RunDir) -> str:
    status = read_status(run_dir.root)
    lives = status.lives
    look = command("exfm", "status", "--run-dir", run_dir.root)
    resume = command("exfm", "stream", run_dir.config, "--run-dir", run_dir.root, "--until-end")
    return (
        f"the run in {run_dir.root} has no results yet: it is {'running' if lives else status.state}, and writes "
        f"summary.json when its stream has ended\n{f'see what it does: {look}' if lives else f'resume it: {resume}'}"
    )


def current(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """A stored summary. Raises BadInput for one of another format."""
    if (stored := value.get("format")) != FORMAT:
        raise BadInput(
            f"{path} has format {stored}, this ExFM reads {FORMAT}; read it with the version that wrote it, or start "
            "the run over with --fresh"
        )
    return value
