"""The teachers of a run, in words."""

from __future__ import annotations

import json

import typer

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.takeovers import takeovers
from pipelines.core.run_dir.paths import RunDir
from pipelines.teacher.replace.replacement import Replacement
from streaming.lake.withdrawn import record_of


def show_teachers(run: RunDir, *, as_json: bool) -> None:
    """Print the teachers that a run has had, a replacement that is under way, and what was revoked. Raises BadInput
    where no run lies there."""
    config = config_of(run)
    record, decided = takeovers(run), Replacement(run, config).decided
    withdrawn = [each for each in record_of(run.side_tables) if each.kind == "logits"]
    if as_json:
        said = {"takeovers": record, "replacement": None if decided is None else decided._asdict()}
        typer.echo(json.dumps(said | {"revoked": [each.model_dump(mode="json") for each in withdrawn]}))
        return
    before = record[0]["was"]["teacher"] if record else config.model_dump(mode="json")["teacher"]
    begun = before.get("init_from")
    trained = f", which had learned {begun['rows']:,} rows before ({begun['path']})" if begun else ""
    typer.echo(f"block 0 (lake_seq 0): the teacher that the run began with{trained}")
    for entry in record:
        typer.echo(f"block {entry['block']:,} (lake_seq {entry['lake_seq']:,}): another teacher, {entry['why']}")
    if run.replacement.exists():
        state = "is trained" if decided is None else "waits to take over" if decided.promoted else "was refused"
        typer.echo(f"a replacement {state}: {run.replacement}")
    for each in withdrawn:
        typer.echo(f"{each.words}: revoked at lake_seq {each.at:,}, {each.why}")
