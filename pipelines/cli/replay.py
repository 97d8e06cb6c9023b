"""`exfm replay` and `exfm sweep`: many students over logged rows, in one engine; a sweep also tunes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines.cli.tools.options import AsJson, Jobs, cores

if TYPE_CHECKING:
    from pipelines.core.config.settings import Config
    from pipelines.lab.replay.settings import Spec

SpecOverrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting of the spec: path=value. May be repeated.")
]

RUN = {"run_dir", "since", "until", "seeds", "out", "jobs", "overrides", "json_"}
OPTIONS = {
    "--verify": {"names", "verify", "json_"},
    "--compare": {"names", "compare", "out", "json_"},
    "a spec": {"names", *RUN},
    "arms": {"arms", "asof", "conditions", "teachers", "baseline", "students", *RUN},
}
"""Fields of a request that each job reads."""


@dataclass(frozen=True)
class ReplayRequest:
    """The command line of `exfm replay`. `names`: a spec, students to verify, or two folders to compare."""

    names: list[str]
    verify: Path | None
    compare: bool
    run_dir: Path | None
    since: str | None
    until: str | None
    arms: list[str]
    conditions: list[str]
    teachers: list[str]
    asof: bool
    baseline: str | None
    students: str | None
    seeds: int | None
    out: Path | None
    jobs: int | None
    overrides: list[str]
    json_: bool

    @property
    def job(self) -> str:
        return "--compare" if self.compare else "--verify" if self.verify else "a spec" if self.names else "arms"

    def problem(self, options: Mapping[str, str]) -> str | None:
        """The first reason why it cannot be done as given. `options`: what each field is called on the command line."""
        from pipelines.core.run_dir.paths import RunDir

        for field, option in options.items():
            if getattr(self, field, None) and field not in OPTIONS[self.job]:
                return f"{option} is of no use with {self.job}; leave one of the two out"
        compared = self.arms or self.asof or self.conditions or self.teachers
        problems: dict[str, list[tuple[bool, str]]] = {
            "--verify": [],
            "--compare": [
                (len(self.names) != 2,
                 f"--compare takes the folders of two finished replays, and {len(self.names)} are given"),
            ],
            "a spec": [(len(self.names) > 1, f"give one spec, not {len(self.names)}")],
            "arms": [
                (self.run_dir is None or not compared,
                 "give a spec, such as configs/sweeps/quick.yaml; or --run-dir RUN and arms (--arm 'wide: "
                 "model.trunk.mlp=[256, 128]') or conditions; or --verify RUN"),
                (self.out is not None and RunDir(self.out).lock.exists(),
                 f"--out {self.out} is the folder of a run; give one that the replay has to itself"),
            ],
        }  # fmt: skip
        return next((words for wrong, words in problems[self.job] if wrong), None)


def replay(
    context: typer.Context,
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
    compare: Annotated[
        bool, typer.Option("--compare", help="Put two finished replays side by side; with --out also as a page.")
    ] = False,
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
    asof: Annotated[
        bool, typer.Option("--asof", help="An arm that also reads the features that `exfm lake asof` has computed.")
    ] = False,
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
    run left, in bits. Exit code 0: identical; 1: they differ (says where); 2: invalid request. With --compare A B, put
    two finished replays side by side.

    Example: exfm replay --verify runs/demo feed
    """
    from streaming.errors import BadInput

    names = given or []
    if verify is None and not compare and run_dir is None and names and Path(names[0]).is_dir():
        run_dir, names = Path(names[0]), names[1:]
    request = ReplayRequest(
        names, verify, compare, run_dir, since, until, arms or [], conditions or [], teachers or [], asof, baseline,
        students, seeds, out, jobs, overrides or [], json_,
    )  # fmt: skip
    problem = request.problem({str(parameter.name): parameter.opts[0] for parameter in context.command.params})
    if problem is not None:
        raise BadInput(problem)
    if verify is not None:
        _verify(verify, names, json_=json_)
    elif compare:
        _compare(names, out, json_=json_)
    elif names:
        span = [f'{key}="{value}"' for key, value in {"since": since, "until": until}.items() if value]
        changes = [*request.overrides, *span]
        _run_spec("replay", context, Path(names[0]), changes, run_dir, out, jobs, seeds=seeds, json_=json_)
    else:
        _run_arms(context, request)


def _run_arms(context: typer.Context, request: ReplayRequest) -> None:
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.replay.load import load_run

    def folder_of(config: Config) -> Path:
        return request.out or Path("runs") / f"{config.name}-replay"

    assert request.run_dir is not None
    spec, config = load_run(
        RunDir(request.run_dir),
        request.arms,
        request.conditions,
        request.teachers,
        baseline=request.baseline,
        students=request.students.split(",") if request.students else [],
        seeds=request.seeds or 1,
        since=request.since,
        until=request.until,
        asof=request.asof,
        overrides=request.overrides,
        folder_of=folder_of,
    )
    _run("replay", context, spec, config, folder_of(config), request.run_dir, request.jobs, json_=request.json_)


def _compare(folders: list[str], out: Path | None, *, json_: bool) -> None:
    from pipelines.lab.report.compare import compare
    from pipelines.report.terminal import console, rendered

    comparison = compare(Path(folders[0]), Path(folders[1]))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "compared.html").write_text(comparison.page())
    if json_:
        typer.echo(json.dumps(comparison.as_json(), default=str))
        return
    console().print(rendered(comparison.table()))
    for what, first, second in comparison.differences():
        typer.echo(f"{what}: {first} | {second}")
    if out is not None:
        typer.echo(str(out / "compared.html"))


def _verify(run: Path, students: list[str], *, json_: bool) -> None:
    """Raises Exit with 1 where a student is not what was retrained."""
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.verify.run import verify
    from pipelines.lab.verify.verdict import text_of
    from pipelines.report.screens.progress import rows_bar

    verdicts = []
    for verdict in verify(RunDir(run), students, rows_bar):
        verdicts.append(verdict)
        if not json_:
            typer.echo(text_of(verdict))
    if json_:
        typer.echo(json.dumps([verdict.as_json() for verdict in verdicts], default=str))
    if not all(verdict.identical for verdict in verdicts):
        raise typer.Exit(1)


def sweep(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="Arms, conditions, seeds; see configs/sweeps/.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of parts and report; default: runs/CONFIG-sweep-FILE.")
    ] = None,
    jobs: Jobs = None,
    run_dir: Annotated[
        Path | None, typer.Option("--from", help="Rows and logits of this run's lake, instead of the config's source.")
    ] = None,
    overrides: SpecOverrides = None,
    json_: AsJson = False,
) -> None:
    """Compare ways to use a teacher. Each arm tries the same number of settings; the best on the first half of the
    stream is judged on the second half, over several seeds, in paired differences from the baseline.

    The teacher is trained once per seed, in lockstep, as in a run; students then read its logits. With --from, rows and
    logits come from the lake of a run. Ctrl-C stops the sweep; the same command resumes it and computes only what is
    missing.

    Example: exfm sweep configs/sweeps/quick.yaml
    """
    _run_spec("sweep", context, file, overrides or [], run_dir, out, jobs, json_=json_)


def _run_spec(
    kind: Literal["replay", "sweep"],
    context: typer.Context,
    file: Path,
    overrides: list[str],
    run_dir: Path | None,
    out: Path | None,
    jobs: int | None,
    *,
    seeds: int | None = None,
    json_: bool,
) -> None:
    from pipelines.lab.replay.load import load

    def folder_of(config: Config) -> Path:
        return out or Path("runs") / f"{config.name}-{kind}-{file.stem}"

    if seeds is not None:
        first = load(file, overrides)[0].seeds[0]
        overrides = [*overrides, f"seeds={[first + n for n in range(seeds)]}"]
    spec, config = load(file, overrides, folder_of)
    _run(kind, context, spec, config, folder_of(config), run_dir, jobs, json_=json_)


def _run(
    kind: Literal["replay", "sweep"],
    context: typer.Context,
    spec: Spec,
    config: Config,
    folder: Path,
    run_dir: Path | None,
    jobs: int | None,
    *,
    json_: bool,
) -> None:
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.replay.run import Runner
    from pipelines.lab.replay.workspace import Workspace
    from pipelines.lab.report.outcome import write_outcome
    from pipelines.lab.report.policy import policy_cells
    from pipelines.lab.report.text import show
    from pipelines.report.terminal import console

    workspace = Workspace(spec, config, folder, None if run_dir is None else RunDir(run_dir))
    try:
        report, parts = Runner(workspace, jobs or cores(), kind, _again(kind, context, folder)).run()
        report = report.with_cells(policy_cells(workspace, parts))
        files = write_outcome(workspace, kind, report, parts)
    except KeyboardInterrupt:
        typer.echo(f"stopped; finished parts are in {folder}; the same command resumes", err=True)
        raise typer.Exit(130) from None
    if json_:
        typer.echo(report.model_dump_json())
        return
    show(console(), report)
    for path in files:
        typer.echo(str(path))


def _again(kind: str, context: typer.Context, folder: Path) -> str:
    """The command that runs it again, into the same folder."""
    words = ["exfm", kind]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if not value or parameter.name in ("out", "jobs", "json_"):
            continue
        option = [] if parameter.param_type_name == "argument" else [parameter.opts[0]]
        words += [
            word for each in (value if isinstance(value, list | tuple) else [value]) for word in (*option, str(each))
        ]
    return shlex.join([*words, "--out", str(folder)])


def register(app: typer.Typer) -> None:
    app.command()(replay)
    app.command()(sweep)
