"""The summary of a finished run, read back."""

from __future__ import annotations

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.stored import read_status
from pipelines.report.results.summary import Summary
from streaming.errors import BadInput, StreamingError
from streaming.program import command
from streaming.store.files import read_json


def read_summary(run_dir: RunDir) -> Summary:
    """Read summary.json; raises BadInput with a remedy if the run has none, or one of another format."""
    summary = stored_summary(run_dir)
    if summary is None:
        raise BadInput(_unfinished(run_dir))
    return summary


def stored_summary(run_dir: RunDir) -> Summary | None:
    """Summary of a run, if it has ended. Raises BadInput for one of another format, StreamingError for a file that no
    run wrote."""
    value = read_json(run_dir.summary)
    try:
        return None if value is None else Summary.from_json(value)
    except StreamingError as error:
        raise type(error)(f"{run_dir.summary}: {error}") from None


def _unfinished(run_dir: RunDir) -> str:
    status = read_status(run_dir.root)
    lives = status.lives
    look = command("exfm", "status", "--run-dir", run_dir.root)
    resume = command("exfm", "stream", run_dir.config, "--run-dir", run_dir.root, "--until-end")
    return (
        f"the run in {run_dir.root} has no results yet: it is {'running' if lives else status.state}, and writes "
        f"summary.json when its stream has ended\n{f'see what it does: {look}' if lives else f'resume it: {resume}'}"
    )
