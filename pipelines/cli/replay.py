"""`exfm replay` and `exfm sweep`: many students over logged rows, in one engine; a sweep also tunes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines.cli.options import AsJson

if TYPE_CHECKING:
    from pipelines.core.config.settings import Config
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.replay.settings import Spec

Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Processes, of one thread each; default: one per core.")
]
SpecOverrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting of the spec: path=value. May be repeated.")
]


def replay(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SPEC.yaml | STUDENT… | A B]",
            help="Arms, conditions, seeds (see configs/sweeps/); with --verify: students, default all; with --compare: "
            "the folders of two finished replays.",
        ),
    ] = None,
    verify: Annotated[
        Path | None, typer.Option("--verify", help="Retrain students of this run and compare, in bits.", metavar="RUN")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Rows and logits of this run's lake, not of the config's source.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="T0", help="First row: a lake_seq, a time, or 7d before the end.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="T1", help="Last row, or the end in time.")] = None,
    arms: Annotated[
        list[str] | None, typer.Option("--arm", metavar="'NAME: PATH=VALUE, …'", help="An arm. May be repeated.")
    ] = None,
    conditions: Annotated[
        list[str] | None,
        typer.Option("--condition", metavar="'NAME: SETTING=VALUE, …'", help="A condition. May be repeated."),
    ] = None,
    teachers: Annotated[
        list[str] | None,
        typer.Option(
            "--teacher", metavar="'NAME: SETTING=VALUE, …'", help="A teacher trained in the replay. May be repeated."
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="The arm to compare with; default: the run's own settings.")
    ] = None,
    students: Annotated[
        str | None, typer.Option("--students", metavar="A,B", help="Which students; default: all of the run.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", min=1, help="How many, from the run's own on, or the first of a spec; default: 1, or the spec's."
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Put two finished replays side by side; with --out also as a page.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of parts and report; default: runs/CONFIG-replay[-SPEC].")
    ] = None,
    jobs: Jobs = None,
    overrides: SpecOverrides = None,
    json_: AsJson = False,
) -> None:
    """Score, then learn, logged rows with any number of students; compare them in paired differences. Ctrl-C stops it;
    the same command resumes it and computes only what is missing.

    What is compared stands in a spec; or, for the lake of a run, in the command: its own settings, and arms that change
    anything after the lake (`model.`, `features.NAME.`, `where`, `first_seq`, `starts_from`, …).

    With --verify, retrain students of a run from its lake and compare weights, predictions and figures with what the
    run left, in bits. Exit code 0: identical; 1: they part, and where; 2: it cannot be asked. With --compare A B, put
    two finished replays side by side.

    Example: exfm replay --verify runs/demo feed
    """
    from streaming.errors import BadInput

    inline = {
        "--arm": arms,
        "--condition": conditions,
        "--teacher": teachers,
        "--baseline": baseline,
        "--students": students,
    }
    if verify is not None or compare:
        alone = "--compare" if compare else "--verify"
        others = inline | {"--run-dir": run_dir, "--from": since, "--to": until, "--seeds": seeds, "--jobs": jobs}
        others |= {"--set": overrides, "--verify": verify if compare else None, "--out": None if compare else out}
        if named := next((option for option, value in others.items() if value), None):
            raise BadInput(f"{named} is of no use with {alone}; leave one of the two out")
    if verify is not None:
        _verify(verify, given or [], json_=json_)
        return
    if compare:
        _compare(given or [], out, json_=json_)
        return
    if given and run_dir is None and Path(given[0]).is_dir():
        run_dir, given = Path(given[0]), given[1:]
    if given:
        if named := next((option for option, value in inline.items() if value), None):
            raise BadInput(f"{named} is for a replay without a spec; write it into {given[0]}, or leave the spec out")
        if len(given) > 1:
            raise BadInput(f"give one spec, not {len(given)}")
        changes = [*(overrides or []), *(f"{key}={value}" for key, value in _range(since, until) if value)]
        _run("replay", Path(given[0]), run_dir, out, jobs, changes, seeds=seeds, json_=json_)
        return
    if run_dir is None or not (arms or conditions or teachers):
        raise BadInput(
            "give a spec, such as configs/sweeps/quick.yaml; or --run-dir RUN and arms (--arm 'wide: "
            "model.trunk.mlp=[256, 128]') or conditions; or --verify RUN"
        )
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.replay.settings import load_run

    if out is not None and RunDir(out).lock.exists():
        raise BadInput(f"--out {out} is the folder of a run; give one that the replay has to itself")

    def folder_of(config: Config) -> Path:
        return out or Path("runs") / f"{config.name}-replay"

    spec, config = load_run(
        RunDir(run_dir),
        arms or [],
        conditions or [],
        teachers or [],
        baseline=baseline,
        students=students.split(",") if students else [],
        seeds=seeds or 1,
        since=since,
        until=until,
        overrides=overrides or [],
        folder_of=folder_of,
    )
    folder = folder_of(config)
    options = {"--run-dir": run_dir, "--from": since, "--to": until, "--baseline": baseline, "--students": students}
    words = [f"{option}={value}" for option, value in options.items() if value is not None]
    many = {"--arm": arms, "--condition": conditions, "--teacher": teachers, "--set": overrides}
    words += [word for option, values in many.items() for value in values or [] for word in (option, value)]
    again = shlex.join(["exfm", "replay", *words, f"--seeds={seeds or 1}", f"--out={folder}"])
    _run_place("replay", spec, config, folder, RunDir(run_dir), jobs, again, json_=json_)


def _range(since: str | None, until: str | None) -> list[tuple[str, str | None]]:
    return [("since", since and f'"{since}"'), ("until", until and f'"{until}"')]


def _compare(given: list[str], out: Path | None, *, json_: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from pipelines.lab.page.compared import compare, page_of_two
    from streaming.errors import BadInput

    if len(given) != 2:
        raise BadInput(f"--compare takes the folders of two finished replays, and {len(given)} are given")
    found = compare(Path(given[0]), Path(given[1]))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "compared.html").write_text(page_of_two(found))
    if json_:
        typer.echo(json.dumps(found.as_json(), default=str))
        return
    table = Table(*found.head, box=None, pad_edge=False)
    for row in found.rows():
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    console = Console()
    if not console.is_terminal:
        console.width = 220
    console.print(table)
    for what, first, second in found.differences():
        typer.echo(f"{what}: {first} | {second}")
    if out is not None:
        typer.echo(str(out / "compared.html"))


def _verify(run: Path, students: list[str], *, json_: bool) -> None:
    """Raises Exit with 1 where a student is not what was retrained."""
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.verify.screen import text_of
    from pipelines.lab.verify.verdict import verify
    from pipelines.report.screens.progress import rows_bar

    found = []
    for verdict in verify(RunDir(run), students, rows_bar):
        found.append(verdict)
        if not json_:
            typer.echo(text_of(verdict))
    if json_:
        typer.echo(json.dumps([verdict.as_json() for verdict in found], default=str))
    if not all(verdict.identical for verdict in found):
        raise typer.Exit(1)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="Arms, conditions, seeds; see configs/sweeps/.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of parts and report; default: runs/CONFIG-sweep-FILE.")
    ] = None,
    jobs: Jobs = None,
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
    _run("sweep", file, run_dir, out, jobs, overrides or [], json_=json_)


def _run(
    kind: Literal["replay", "sweep"],
    spec: Path,
    run_dir: Path | None,
    out: Path | None,
    jobs: int | None,
    overrides: list[str],
    *,
    seeds: int | None = None,
    json_: bool,
) -> None:
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.replay.settings import load

    def folder_of(config: Config) -> Path:
        return out or Path("runs") / f"{config.name}-{kind}-{spec.stem}"

    if seeds is not None:
        first = load(spec, overrides)[0].seeds[0]
        overrides = [*overrides, f"seeds={[first + n for n in range(seeds)]}"]
    settings, config = load(spec, overrides, folder_of)
    folder = folder_of(config)
    again = _again(kind, spec, run_dir, folder, overrides)
    _run_place(kind, settings, config, folder, None if run_dir is None else RunDir(run_dir), jobs, again, json_=json_)


def _run_place(
    kind: Literal["replay", "sweep"],
    spec: Spec,
    config: Config,
    folder: Path,
    run_dir: RunDir | None,
    jobs: int | None,
    again: str,
    *,
    json_: bool,
) -> None:
    """`again`: the command that runs it again."""
    from pipelines.lab.replay.run import Runner
    from pipelines.lab.replay.workspace import Workspace

    try:
        runner = Runner(Workspace(spec, config, folder, run_dir), jobs or _cores(), kind, again)
        value = runner.run()
    except KeyboardInterrupt:
        typer.echo(f"stopped; finished parts are in {folder}; the same command resumes", err=True)
        raise typer.Exit(130) from None
    if json_:
        typer.echo(json.dumps(value))
        return
    from rich.console import Console

    from pipelines.lab.replay.sizes import text_of_sizes
    from pipelines.lab.replay.text import show

    console = Console()
    if not console.is_terminal:
        console.width = 220  # a file has no right edge
    show(console, value)
    if value["sizes"]:
        typer.echo(text_of_sizes(value["sizes"]))
    for path in runner.written:
        typer.echo(str(path))


def _again(kind: str, spec: Path, run_dir: Path | None, folder: Path, overrides: list[str]) -> str:
    """The command that runs it again.

    >>> _again("replay", Path("spec.yaml"), Path("runs/demo"), Path("runs/x"), ["seeds=[1, 2]"])
    "exfm replay spec.yaml --run-dir runs/demo --out runs/x --set 'seeds=[1, 2]'"
    """
    words = ["exfm", kind, str(spec)]
    if run_dir is not None:
        words += ["--run-dir" if kind == "replay" else "--from", str(run_dir)]
    words += ["--out", str(folder), *(word for text in overrides for word in ("--set", text))]
    return shlex.join(words)


def _cores() -> int:
    """The cores that this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def register(app: typer.Typer) -> None:
    app.command()(replay)
    app.command()(sweep)
