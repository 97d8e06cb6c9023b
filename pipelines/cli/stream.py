"""`exfm stream`, `exfm status`, `exfm stop`: run a pipeline, show what it is doing, end it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import Overrides

if TYPE_CHECKING:
    from pipelines.run_dir import RunDir
    from pipelines.status import RunStatus

RunDirOption = Annotated[
    Path | None, typer.Option("--run-dir", help="Folder of the run; default: runs/NAME, the config's name.")
]


def stream(
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    run_dir: RunDirOption = None,
    overrides: Overrides = None,
    local: Annotated[bool, typer.Option("--local", help="All workers in this process, without Ray.")] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the end of a bounded source, and write summary.json.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete the contents of the run directory and start over.")
    ] = False,
    evolve: Annotated[
        bool,
        typer.Option("--evolve", help="Resume although features differ: larger tables, more features of the teacher."),
    ] = False,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="With --evolve: a feature to remove. May be repeated.")
    ] = None,
) -> None:
    """Run a pipeline: augmentation, teacher, students, tracking. Ctrl-C ends it cleanly; the same command resumes it.

    Example: exfm stream configs/demo.yaml --until-end --set seed=2
    """
    from rich.console import Console

    from pipelines.config import load
    from pipelines.control import run, start_over
    from pipelines.display import Screen, print_closing
    from pipelines.rules import RunState
    from pipelines.run_dir import RunDir
    from streaming.errors import BadInput

    settings = load(config, overrides)
    where = RunDir(run_dir or Path("runs") / settings.name)
    if fresh and where.root.exists():
        start_over(where)
    if drop and not evolve:
        raise BadInput(f"--drop {drop[0]} needs --evolve; give both, or neither")
    with Screen() as screen:
        status, summary = run(
            settings, where, local=local, until_end=until_end, evolve=evolve, drop=drop or (),
            watch=screen.show, say=screen.say,
        )  # fmt: skip
    if summary is not None:
        print_closing(Console(), summary.value, where, settings)
    if status.state is RunState.FAILED:
        then = _next(status, where, finished=summary is not None)
        typer.echo(f"exfm: the run failed: {status.reason}\nlogs: {where.logs}; {then}", err=True)
        raise typer.Exit(2 if status.mistaken else 1)
    if status.state is RunState.STOPPED:
        typer.echo(f"stopped ({status.reason}); the same command resumes it", err=True)
        raise typer.Exit(130)


def _next(status: RunStatus, where: RunDir, *, finished: bool) -> str:
    """What the same command would do now."""
    from pipelines.control import failed_before_learning

    if finished:
        return (
            "no model was registered. The run is finished: mend that and start over with --fresh, or take its figures "
            "as they are with --set losses.fail_share=1"
        )
    if not status.mistaken:
        return "the same command resumes"
    if failed_before_learning(where):
        return "mend that, then run it again: nothing was learned yet, so it starts over"
    return "mend that first: the same command would fail there again"


def status(
    run_dir: Annotated[Path, typer.Option("--run-dir", help="Folder of the run.")],
    json_: Annotated[bool, typer.Option("--json", help="Print status.json.")] = False,
) -> None:
    """Show what a run is doing.

    Example: exfm status --run-dir runs/demo
    """
    import json

    from pipelines.display import show_status
    from pipelines.status import alive, read_status

    value = read_status(run_dir)
    if json_:
        typer.echo(json.dumps(value | {"alive": alive(value)}, indent=2))
    else:
        show_status(value, alive(value))


def stop(
    run_dir: Annotated[Path, typer.Option("--run-dir", help="Folder of the run.")],
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for its end.")] = 60.0,
) -> None:
    """End a running pipeline cleanly; it can be resumed.

    Example: exfm stop --run-dir runs/demo
    """
    from pipelines.status import read_status, stop_run

    typer.echo(stop_run(read_status(run_dir), run_dir, wait_s))


def register(app: typer.Typer) -> None:
    app.command()(stream)
    app.command()(status)
    app.command()(stop)
