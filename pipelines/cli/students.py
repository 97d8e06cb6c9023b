"""`exfm spawn`, `students`, `pause`, `resume`, `retire`, `logs`: the students of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.tools.options import AsJson, RunDirOption, private_files, takes_run

if TYPE_CHECKING:
    from pipelines.live.roster.pipeline import Pipeline, Spawned


Name = Annotated[str, typer.Argument(metavar="NAME", help="The student's name.")]


def spawn(
    name: Name,
    run_dir: RunDirOption,
    verticals: Annotated[
        str | None, typer.Option("--verticals", help="Whose rows it is for: a,b or all; default: the vertical NAME.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help='A condition on these rows: "bid > 0.5 and device in (1, 2)".')
    ] = None,
    tasks: Annotated[str | None, typer.Option("--tasks", help="ctr,cvr; default: as --like.")] = None,
    like: Annotated[
        str | None,
        typer.Option("--like", help="A student whose settings it has; default: --from, else the run's first."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Start with this student's weights, by name and shape.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Learn the last 7d, 12h, 30m of event time; default: all."),
    ] = None,
    since_seq: Annotated[int | None, typer.Option("--since-seq", help="Begin with this lake_seq.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Learn nothing that is in the lake already.")] = False,
    model: Annotated[
        Path | None, typer.Option("--model", help="A YAML file with a student's settings, or some of them.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the student: path=value. May be repeated.")
    ] = None,
    twin: Annotated[
        bool | None, typer.Option("--twin/--no-twin", help="Train a copy without the teacher, too; default: as --like.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost; ask for nothing.")] = False,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="The run does not run: learn its lake now, in this process."),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has caught up with the stream.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a new student to a run: it learns the lake, catches up, and continues with the stream.

    The run may be running, stopped or finished; one that does not run has the student when it starts again. No other
    worker loses a step.

    Example: exfm spawn travel --run-dir runs/demo --like feed --wait
    """
    import json

    from pipelines.live.roster.pipeline import Pipeline
    from pipelines.live.roster.section import SpawnRequest
    from streaming.errors import BadInput

    private_files()
    request = SpawnRequest(
        name=name,
        verticals=_listed(verticals),
        where=where,
        tasks=_listed(tasks),
        like=like,
        start=start,
        since=since,
        since_seq=since_seq,
        live=live,
        model=model,
        overrides=tuple(overrides or ()),
        twin=twin,
    )
    pipeline = Pipeline(run_dir)
    if dry_run:
        estimate = pipeline.estimate(request)
        if as_json:
            typer.echo(json.dumps(estimate.as_json() | {"state": "dry run"}, indent=2))
        else:
            _say(estimate.lines, f"dry run: nothing was asked for; leave --dry-run out, and `{name}` joins")
        return
    if offline and pipeline.lives:
        raise BadInput(f"{run_dir} is running: leave --offline out, and `{name}` joins it; or stop it first")
    spawned = pipeline.spawn(request)
    if not as_json:
        _say(spawned.estimate.lines, spawned.words)
    if offline:
        rows = _learn_offline(pipeline, name)
        words = f"`{name}` learned {rows:,} rows; the next exfm stream takes it up from there"
    elif wait and pipeline.lives:
        words = _until_live(pipeline, name, spawned)
    else:
        words = ""
    if as_json:
        typer.echo(json.dumps(spawned.as_json() | {"state": pipeline.progress(name).state}, indent=2))
    elif words:
        typer.echo(words)


def students(run_dir: RunDirOption, as_json: AsJson = False) -> None:
    """List every student of a run with its state, progress and quality.

    Example: exfm students --run-dir runs/demo
    """
    import json

    from rich.console import Console

    from pipelines.live.roster.pipeline import Pipeline
    from pipelines.report.screens.students import students_table

    students = Pipeline(run_dir).students()
    if as_json:
        typer.echo(json.dumps([student.as_json() for student in students], indent=2))
    else:
        console = Console()
        console.print(students_table([student.as_json() for student in students], console.width))


def pause(name: Name, run_dir: RunDirOption) -> None:
    """Commit and stop a student. `exfm resume` has it go on from there.

    Example: exfm pause feed --run-dir runs/demo
    """
    typer.echo(_pipeline(run_dir).pause(name))


def resume(name: Name, run_dir: RunDirOption) -> None:
    """Continue a paused student from its checkpoint.

    Example: exfm resume feed --run-dir runs/demo
    """
    typer.echo(_pipeline(run_dir).resume(name))


def retire(name: Name, run_dir: RunDirOption) -> None:
    """Remove a student from a run. Checkpoints and registered models stay; the lake keeps no rows for it.

    Example: exfm retire brand --run-dir runs/demo
    """
    typer.echo(_pipeline(run_dir).retire(name))


def logs(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A student, or another worker, such as teacher.")],
    run_dir: RunDirOption,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="The last so many lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
) -> None:
    """Show the end of a worker's log.

    Example: exfm logs feed --run-dir runs/demo -f
    """
    from pipelines.cli.tools.log_tail import log_lines

    for line in log_lines(run_dir, name, lines, follow=follow):
        typer.echo(line)


def _pipeline(run_dir: Path) -> Pipeline:
    from pipelines.live.roster.pipeline import Pipeline

    private_files()
    return Pipeline(run_dir)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _say(lines: list[str], last: str) -> None:
    for line in lines:
        typer.echo(line)
    typer.echo(last)


def _learn_offline(pipeline: Pipeline, name: str) -> int:
    from pipelines.report.screens.progress import rows_bar

    with rows_bar(f"{name}: the lake", 0) as advance:
        return pipeline.learn_offline(name, advance)


def _until_live(pipeline: Pipeline, name: str, spawned: Spawned) -> str:
    """Shows progress until the student has caught up; what to say then. Raises StreamingError where it does not."""
    from pipelines.report.screens.progress import rows_bar
    from streaming.errors import StreamingError

    last: Any = None
    with rows_bar(f"{name}: backfill", spawned.estimate.of) as advance:
        for last in pipeline.watch(name):
            if last.lag_rows is not None:
                whole = max(spawned.estimate.of, last.lag_rows)
                advance(whole - last.lag_rows, whole)
    if last.live:
        return f"`{name}` is live: it learned {last.rows:,} rows, and is {last.lag_rows or 0:,} behind the lake"
    raise StreamingError(f"`{name}` is {last.state} ({last.reason or 'the run ended before it had caught up'})")


def register(app: typer.Typer) -> None:
    for command in (spawn, students, pause, resume, retire, logs):
        app.command()(takes_run(command))
