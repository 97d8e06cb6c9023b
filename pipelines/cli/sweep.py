"""`exfm sweep`: many students over logged teacher logits; which arm pays, with intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.options import AsJson


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="Arms, conditions, seeds; see configs/sweeps/.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of parts and report; default: runs/CONFIG-sweep-FILE.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Processes, of one thread each; default: one per core.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--from", help="Rows and logits of this run's lake, instead of the config's source.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting of the sweep: path=value. May be repeated.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Compare ways to use a teacher. Each arm tries the same number of settings; the best on the first half of the
    stream is judged on the second half, over several seeds, in paired differences from the baseline.

    The teacher is trained once per seed, in lockstep, as in a run; students then read its logits. With --from, rows and
    logits come from the lake of a run. Ctrl-C stops the sweep; the same command resumes it and computes only what is
    missing.

    Example: exfm sweep configs/sweeps/quick.yaml
    """
    from pipelines.offline.sweep import Place, load
    from pipelines.run_dir import RunDir

    settings, config = load(file, overrides or [])
    folder = out or Path("runs") / f"{config.name}-sweep-{file.stem}"
    place = Place(settings, config, folder, None if run_dir is None else RunDir(run_dir))

    from pipelines.offline.sweep import Runner

    try:
        value = Runner(place, jobs or _cores()).run()
    except KeyboardInterrupt:
        typer.echo(f"stopped; finished parts are in {folder}; the same command resumes", err=True)
        raise typer.Exit(130) from None
    if json_:
        typer.echo(json.dumps(value))
        return
    from rich.console import Console

    from pipelines.offline.sweep import show

    console = Console()
    if not console.is_terminal:
        console.width = 220  # a file has no right edge
    show(console, value)
    typer.echo(
        "  ".join(
            str(folder / name) for name in ("sweep.md", "sweep.json", "gains.png", "over_time.png", "ne_by_age.png")
        )
    )


def _cores() -> int:
    """The cores that this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def register(app: typer.Typer) -> None:
    app.command()(sweep)
