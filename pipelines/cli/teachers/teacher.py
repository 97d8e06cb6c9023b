"""`exfm plan`, `scale`, `pretrain`, `teacher`: a teacher before a stream, and another one in its place."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.tools.options import AsJson, Jobs, Overrides, RunDirOption, cores, private_files, takes_run
from streaming.errors import BadInput

if TYPE_CHECKING:
    from pipelines.core.config.settings import Config
    from pipelines.lab.scaling.family import Member

LISTED, FITTED = "0,1,2,3,4,5,6", "0,1,2,3,4"


def register(app: typer.Typer) -> None:
    app.command()(plan)
    app.command()(scale)
    app.command()(pretrain)
    commands = typer.Typer(help="The teacher of a run: another one in its place, and back.", no_args_is_help=True)
    commands.command("replace", epilog="Example: exfm teacher replace runs/demo --with larger.yaml")(
        takes_run(replace, leads=True)
    )
    commands.command("rollback", epilog="Example: exfm teacher rollback runs/demo")(takes_run(rollback, leads=True))
    commands.command("revoke", epilog="Example: exfm teacher revoke runs/demo --versions 12:15")(
        takes_run(revoke, leads=True)
    )
    commands.command("list", epilog="Example: exfm teacher list runs/demo")(takes_run(list_, leads=True))
    app.add_typer(commands, name="teacher")


def plan(
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    overrides: Overrides = None,
    scoring: Annotated[
        bool, typer.Option("--scoring", help="Plan the teacher that scores in augmentation, not the one that learns.")
    ] = False,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks; default: the config's.")] = None,
    ranks_per_host: Annotated[
        int | None, typer.Option(min=1, help="Ranks per host; default: the config's, or all on one host.")
    ] = None,
    memory_gb: Annotated[float | None, typer.Option(help="Memory of a rank; default: the config's.")] = None,
    device: Annotated[str | None, typer.Option(help="The device whose costs are predicted: cpu or cuda.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do not check this machine: for ranks and memory that it does not have.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The config's plan alone, without alternatives.")] = False,
    budget: Annotated[
        str | None,
        typer.Option("--teacher-budget", help="Plan a teacher of so many times the FLOPs, such as 4x."),
    ] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Bytes of each embedding table under every kind, instead.")
    ] = False,
    run: Annotated[Path | None, typer.Option("--from", help="--embeddings: count the ids in this run's lake.")] = None,
    ids: Annotated[
        str | None, typer.Option("--ids", help="--embeddings: of these rows, FROM..TO of lake_seq; default: all.")
    ] = None,
    budget_mb: Annotated[
        float | None, typer.Option("--budget-mb", min=0, help="--embeddings: the widest tables within so many MiB.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Plan how the teacher's tables are spread over ranks: bytes and predicted cost of each, and tables that do not
    fit.

    Nothing is started or allocated. Exit code 2 when the plan does not fit; every remedy it names was planned.

    Example: exfm plan configs/demo.yaml --ranks 4 --memory-gb 2
    """
    from rich.console import Console

    from pipelines.core.config.settings import load
    from pipelines.data.doctor.machine import total_memory
    from pipelines.teacher.plan.question import Part, ask, question_of, with_teacher_budget
    from pipelines.teacher.plan.screen import show_plan

    settings = load(config, overrides)
    grown = with_teacher_budget(settings, budget) if budget else None
    settings = grown.config if grown else settings
    if embeddings:
        _plan_embeddings(settings, run, ids, budget_mb, json_=json_)
        return
    if run or ids or budget_mb:
        raise BadInput("--from, --ids and --budget-mb belong to --embeddings; add it, or leave them out")
    part: Part = "augmentation" if scoring else "teacher"
    question = question_of(
        settings, part, ranks=ranks, ranks_per_host=ranks_per_host, memory_gb=memory_gb, device=device
    )
    with Console(stderr=True).status("asking the planner"):
        report = ask(settings, question, look_around=not quick, memory_here=None if dry_run else total_memory())
    if json_:
        typer.echo(json.dumps(report.as_json() | {"teacher_budget": grown and grown.as_json()}, indent=2))
    else:
        if grown:
            typer.echo(grown.words())
        show_plan(report, Console())
    report.refuse()


def _plan_embeddings(
    config: Config, run: Path | None, ids: str | None, budget_mb: float | None, *, json_: bool
) -> None:
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.report.terminal import console, rendered
    from pipelines.teacher.plan.embeddings import embedding_plan, words_within

    if ids is not None and run is None:
        raise BadInput("--ids are rows of a run's lake; name the run: --from runs/NAME")
    written = re.fullmatch(r"(\d+)\.\.(\d+)", ids or "")
    if ids is not None and written is None:
        raise BadInput(f"--ids {ids}: give two numbers of rows of the lake, such as 0..99999")
    rows = None if written is None else (int(written[1]), int(written[2]))
    plan = embedding_plan(config, run_dir=None if run is None else RunDir(run), rows=rows, budget_mb=budget_mb)
    if json_:
        typer.echo(json.dumps(plan.as_json(), indent=2))
        return
    for table in plan.tables():
        console().print(rendered(table))
    for line in words_within(plan):
        typer.echo(line)


def scale(
    config: Annotated[Path, typer.Argument(help="A YAML file; its `teacher.model` is the family's smallest, dial 0.")],
    fit: Annotated[
        bool, typer.Option("--fit", help="Train the family on one stream and fit NE against FLOPs.")
    ] = False,
    dials: Annotated[
        str | None, typer.Option("--dials", help=f"Sizes, from 0; default: {LISTED}, with --fit {FITTED}.")
    ] = None,
    compared: Annotated[
        str, typer.Option("--interactions", help="Interactions to compare at equal FLOPs: wukong, dlrm, dcn.")
    ] = "wukong,dlrm,dcn",
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="--fit: this many settled rows, the first ones.")
    ] = 100_000,
    run_dir: Annotated[
        Path | None, typer.Option("--from", help="--fit: read the lake of this run instead of the config's source.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="--fit: seeds of the models; default: the config's.")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            "--dense-lr", help="--fit: learning rates that every member tries; the best on the first half counts."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="--fit: folder of results; default: runs/NAME-scale.")
    ] = None,
    jobs: Jobs = None,
    overrides: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Show a family of teachers: layers first, then n_F, n_L, k and MLP together; parameters and FLOPs per example.

    Both are the network's: the linear part next to it, of the same size in all of them, is left out.

    With --fit, each is trained in one pass over the same rows, like DLRM and DCN-V2 of equal FLOPs, and judged on the
    second half, each row before it is learned. All use one learning rate unless --dense-lr names more. Ctrl-C stops the
    command; the same command resumes it.

    Example: exfm scale configs/demo.yaml --fit --rows 100000
    """
    from pipelines.core.config.settings import load
    from pipelines.lab.scaling.family import as_json, members, sizes
    from pipelines.report.terminal import console, rendered

    settings = load(config, overrides)
    wanted = _numbers("--dials", dials or (FITTED if fit else LISTED), int)
    family = members(settings, wanted, _interactions(compared))
    if not fit and json_:
        typer.echo(json.dumps({"name": settings.name, "members": as_json(family)}))
    elif not fit:
        console().print(rendered(sizes(family)))
        typer.echo(
            "FLOPs are those of the network's forward pass, without the linear part; training costs three times as "
            "much. What they gain: --fit"
        )
    else:
        chosen = _numbers("--seeds", seeds, int) if seeds else [settings.seed]
        dense_rates = _numbers("--dense-lr", rates, float) if rates else []
        folder = out or Path("runs") / f"{settings.name}-scale"
        _fit(
            settings,
            folder,
            family,
            rows=rows,
            seeds=chosen,
            rates=dense_rates,
            run_dir=run_dir,
            jobs=jobs,
            json_=json_,
        )


def pretrain(
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    history: Annotated[
        Path, typer.Argument(help="Folder of a run, whose lake is read; or recorded rows, as its source.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the trained teacher.")],
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="Learn this many settled rows, the first ones.")
    ] = None,
    overrides: Overrides = None,
    json_: AsJson = False,
) -> None:
    """Train the config's teacher on recorded history, each row scored before it is learned.

    The folder then holds its checkpoint (weights and optimizer state) and its snapshot, with what it has learned: rows,
    sums of their ids' hashes, range of event time. Ctrl-C stops the command; the same command resumes it, to the same
    bits.

    Example: exfm pretrain configs/demo.yaml runs/demo -o teachers/demo
    """
    from pipelines.core.config.settings import load
    from pipelines.lab.logits.pretrain import Learned, pretrain
    from pipelines.report.words import count

    def advance(at: Learned) -> None:
        ne = ", ".join(f"{task} {value:.4f}" for task, value in at.ne.items() if value is not None)
        typer.echo(f"{count(at.rows)} of {count(at.of)} rows; NE of the last window: {ne or 'not yet'}", err=True)

    private_files()
    try:
        lineage = pretrain(load(config, overrides), history, out, limit=rows, advance=advance)
    except KeyboardInterrupt:
        typer.echo(f"stopped; its last checkpoint is in {out}; the same command resumes", err=True)
        raise typer.Exit(130) from None
    if json_:
        typer.echo(json.dumps(lineage, indent=2))
        return
    left_out = lineage["rows_left_out"]
    typer.echo(f"learned {count(lineage['rows'] - left_out)} rows, {count(left_out)} left out as not finite: {out}")


def _fit(
    settings: Config,
    folder: Path,
    family: list[Member],
    *,
    rows: int,
    seeds: list[int],
    rates: list[float],
    run_dir: Path | None,
    jobs: int | None,
    json_: bool,
) -> None:
    """Train the family and print what its sizes buy; exit code 130 where Ctrl-C stops it."""
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.scaling.fit import fit
    from pipelines.lab.scaling.report import draw, laws, tables, tasks
    from pipelines.report.terminal import console, rendered

    run = None if run_dir is None else RunDir(run_dir)
    try:
        scaling = fit(
            settings, folder, family, rows=rows, seeds=seeds, rates=rates, run_dir=run, processes=jobs or cores()
        )
    except KeyboardInterrupt:
        typer.echo(f"stopped; finished parts are in {folder}; the same command resumes", err=True)
        raise typer.Exit(130) from None
    draw(scaling, folder / "scale.png")
    if json_:
        typer.echo(scaling.model_dump_json())
        return
    screen = console()
    for task, table in zip(tasks(scaling), tables(scaling), strict=True):
        screen.print(rendered(table))
        for words in laws(scaling, task):
            typer.echo(words)
    typer.echo(f"{folder / 'scale.png'}  {folder / 'scale.json'}")


def _numbers(option: str, given: str, kind: type) -> list[Any]:
    """Numbers separated by commas, without repetitions. Raises BadInput for anything else."""
    from streaming.errors import BadInput

    try:
        numbers = [kind(part) for part in given.split(",")]
    except ValueError:
        numbers = []
    lowest, example = ("0 or more", "0,1,2") if kind is int else ("above 0", "0.001,0.002")
    if not numbers or min(numbers) < 0 or (kind is float and min(numbers) == 0):
        raise BadInput(f"{option} {given}: write numbers {lowest} separated by commas, for example {example}")
    return list(dict.fromkeys(numbers))


def _interactions(given: str) -> list[str]:
    from pipelines.lab.scaling.family import INTERACTIONS
    from streaming.errors import BadInput

    names = given.split(",")
    if unknown := [name for name in names if name not in INTERACTIONS]:
        raise BadInput(f"--interactions names {', '.join(unknown)}; known: {', '.join(INTERACTIONS)}")
    return [name for name in INTERACTIONS if name in names]


def replace(
    run_dir: RunDirOption,
    config: Annotated[
        Path | None, typer.Option("--with", help="A YAML file with the new teacher: its `teacher` and `features`.")
    ] = None,
    overrides: Overrides = None,
    judge_from: Annotated[
        int | None,
        typer.Option(
            "--judge-from", min=0, help="Compare from this lake_seq on; default: rows that are still to come."
        ),
    ] = None,
    untried: Annotated[
        bool, typer.Option("--untried", help="Take over as soon as it has learned the lake, without a comparison.")
    ] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Drop a replacement that is under way.")] = False,
    json_: AsJson = False,
) -> None:
    """Train another teacher from the lake beside the run's own, compare both on the same rows, and replace the old one
    if the new one is better.

    Size, trunk, learning rates and features that only the teacher reads may differ. Both are asked for logits of the
    same rows, after the same blocks; the rule is that which promotes students (`registry`). A live run takes the new
    teacher over at once, by a restart of its workers; one that is stopped at its next start. Ctrl-C stops the command;
    the same command resumes it. What was logged stays; `exfm teacher rollback` leads back.
    """
    from pipelines.cli.tools.stopping import resumable
    from pipelines.cli.tools.stored_config import config_of
    from pipelines.core.config.settings import load
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.live.status.stored import run_lives
    from pipelines.report.screens.progress import rows_bar
    from pipelines.teacher.replace.replacement import Replacement, only_one
    from streaming.errors import BadInput

    private_files()
    run = RunDir(run_dir)
    replacement = Replacement(run, config_of(run))
    with resumable(), only_one(run):
        if drop:
            replacement.drop(live=run_lives(run_dir))
            typer.echo(f"dropped; the teacher of {run_dir} stays")
            return
        if config is None:
            raise BadInput("no new teacher was given; give a config with --with CONFIG, or drop one with --drop")
        replacement.begin(load(config, overrides), judge_from)
        decided = replacement.decided
        if decided is None:
            with rows_bar("learning the lake", 0) as advance:
                decided = replacement.train(live=partial(run_lives, run_dir), untried=untried, advance=advance)
    if decided is None:
        words = "not decided: the lake has no more rows to compare; give the same command when it has"
    elif decided.promoted:
        words = f"the new teacher takes over {'now' if run_lives(run_dir) else 'at the next start'}: {decided.why}"
    else:
        words = f"the teacher of {run_dir} stays: {decided.why}"
    said = {"promoted": None, "why": words} if decided is None else decided._asdict()
    typer.echo(json.dumps(said, indent=2) if json_ else words)


def rollback(
    run_dir: RunDirOption,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded.")] = "rolled back by hand",
) -> None:
    """Give the place of a run's teacher back to the one before: it learns from the lake what it missed.

    A live run does so at once, one that is stopped at its next start.
    """
    from pipelines.cli.tools.stored_config import config_of
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.teacher.replace.replacement import only_one
    from pipelines.teacher.replace.takeover import roll_back

    private_files()
    run = RunDir(run_dir)
    config_of(run)
    with only_one(run):
        roll_back(run, reason)
    typer.echo("the former teacher takes over again, at once where the run lives, else at its next start")


def revoke(
    run_dir: RunDirOption,
    versions: Annotated[
        str, typer.Option("--versions", help="Of the teacher: 12, 12:15 (both included), or 12: (on).")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded.")] = "revoked by hand",
    json_: AsJson = False,
) -> None:
    """Revoke versions of the teacher: what they said of rows reads as null from now on.

    The rows stay as they were logged. Students of the run learn without those logits from one recorded row on, the
    next that is written; students that join later, and replays that begin later, never see them. `exfm replay --verify`
    reads as each student read then. A logit set (`exfm rescore`) may take their place.
    """
    from pipelines.cli.tools.stored_config import config_of
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.live.status.stored import run_lives
    from pipelines.teacher.replace.revocation import revoke

    private_files()
    run = RunDir(run_dir)
    revoked = revoke(run, config_of(run), versions, reason, live=run_lives(run_dir))
    if json_:
        typer.echo(json.dumps(revoked.withdrawal.model_dump(mode="json") | {"rows": revoked.rows}, indent=2))
    else:
        typer.echo(
            f"{revoked.withdrawal.words}, {revoked.rows:,} rows so far: null for the run's students from lake_seq "
            f"{revoked.withdrawal.at:,} on, and for all who begin later"
        )


def list_(run_dir: RunDirOption, json_: AsJson = False) -> None:
    """List the teachers that a run has had, the row from which each scores, a replacement that is under way, and
    versions that were revoked."""
    from pipelines.cli.tools.teachers import show_teachers
    from pipelines.core.run_dir.paths import RunDir

    show_teachers(RunDir(run_dir), as_json=json_)
