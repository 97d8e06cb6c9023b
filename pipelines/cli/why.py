"""`exfm why`: what happened to an impression, where a student's version comes from, why an alarm stands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.tools.options import AsJson, Overrides, RunDirOption, takes_run

if TYPE_CHECKING:
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.why.answer import Answer

ASKED = "impression ID, student NAME [VERSION], alarm [NAME]"


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: exfm why runs/demo student feed")(takes_run(why, beside="what"))


def why(
    run_dir: RunDirOption,
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN impression ID | student NAME [VERSION] | alarm [NAME]", show_default=False),
    ] = None,
    topics: Annotated[
        bool, typer.Option("--topics", help="Look for an impression's records on the topics, too: duplicates, clicks.")
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Answer "what happened to impression ID": its records in Kafka, refused, pending or settled, its row in the lake,
    its logit and whose that is, and which students learned it, or why they never will. Or: from which rows, teacher's
    snapshots and offsets a student's version comes; since when an alarm stands, and by which figures.

    It reads what the run keeps and asks nothing of its workers, so it may be asked of a live run and of one that has
    ended. --topics reads both input topics from their beginning, which takes as long as they are.

    Example: exfm why runs/demo impression 481947301168907325
    Example: exfm why runs/demo alarm
    """
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.why.words import lines_of

    answers = _answers(RunDir(run_dir), what or [], topics, overrides)
    if as_json:
        value = [answer.as_json() for answer in answers]
        typer.echo(json.dumps(value[0] if len(value) == 1 else value, indent=2))
        return
    for answer in answers:
        typer.echo("\n".join(lines_of(answer)))
    if not answers:
        typer.echo("no alarm stands")


def _answers(run_dir: RunDir, what: list[str], topics: bool, overrides: list[str] | None) -> Sequence[Answer]:
    from pipelines.cli.tools.stored_config import config_of
    from pipelines.why.alarm import why_alarm
    from pipelines.why.impression import why_impression
    from pipelines.why.on_topics import TopicSearch
    from pipelines.why.student import why_student
    from streaming.errors import BadInput

    config_of(run_dir)  # a folder that holds no run is said first
    kind, names = (what[0], what[1:]) if what else ("", [])
    if kind == "impression" and len(names) == 1:
        return [why_impression(run_dir, names[0], TopicSearch(run_dir) if topics else None, overrides)]
    if kind == "student" and len(names) in (1, 2):
        return [why_student(run_dir, *names)]
    if kind == "alarm":
        return why_alarm(run_dir, " ".join(names) or None)
    raise BadInput(f"`{' '.join(what)}` cannot be answered; ask for one of: {ASKED}")
