"""`exfm plan`, `exfm scale`: a teacher before it is trained: where its tables go, and what size costs and buys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.cli.options import AsJson, Overrides

LISTED, FITTED = "0,1,2,3,4,5,6", "0,1,2,3,4"


def register(app: typer.Typer) -> None:
    app.command()(plan)
    app.command()(scale)


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
    json_: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Plan how the teacher's tables are spread over ranks: bytes and predicted cost of each, and what does not fit.

    Nothing is started or allocated. Exit code 2 when the plan does not fit; every remedy it names was planned.

    Example: exfm plan configs/demo.yaml --ranks 4 --memory-gb 2
    """
    from rich.console import Console

    from pipelines.core.config.settings import load
    from pipelines.data.doctor.machine import total_memory
    from pipelines.teacher.plan.question import Part, ask, question_of
    from pipelines.teacher.plan.screen import show_plan

    settings = load(config, overrides)
    part: Part = "augmentation" if scoring else "teacher"
    question = question_of(
        settings, part, ranks=ranks, ranks_per_host=ranks_per_host, memory_gb=memory_gb, device=device
    )
    with Console(stderr=True).status("asking the planner"):
        report = ask(settings, question, look_around=not quick, memory_here=None if dry_run else total_memory())
    if json_:
        import json

        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        show_plan(report, Console())
    report.refuse()


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

    settings = load(config, overrides)
    wanted = _numbers("--dials", dials or (FITTED if fit else LISTED), int)
    interactions = _interactions(compared)
    if not fit:
        _show(settings, wanted, interactions, json_)
        return
    folder = out or Path("runs") / f"{settings.name}-scale"
    value = _fit(
        settings,
        folder,
        dials=wanted,
        interactions=interactions,
        limit=rows,
        seeds=_numbers("--seeds", seeds, int) if seeds else [settings.seed],
        rates=_numbers("--dense-lr", rates, float) if rates else [],
        run_dir=run_dir,
    )
    if json_:
        typer.echo(json.dumps(value))
        return
    _print_fit(value)
    typer.echo(f"{folder / 'scale.png'}  {folder / 'scale.json'}")


def _fit(settings: Any, folder: Path, *, run_dir: Path | None, **family: Any) -> dict[str, Any]:
    """The report of a trained family; exit code 130 where Ctrl-C stops it."""
    from exfm.threads import set_threads
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.lab.scaling.run import fit

    def say(line: str) -> None:
        typer.echo(line, err=True)

    set_threads(settings.resources.threads)
    try:
        return fit(settings, folder, run_dir=None if run_dir is None else RunDir(run_dir), say=say, **family)
    except KeyboardInterrupt:
        typer.echo(f"stopped; finished parts are in {folder}; the same command resumes", err=True)
        raise typer.Exit(130) from None


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


def _show(settings: Any, dials: list[int], interactions: list[str], json_: bool) -> None:
    from pipelines.lab.scaling.family import members
    from pipelines.lab.scaling.report import sizes

    found = sizes(members(settings, dials, interactions))
    if json_:
        typer.echo(json.dumps({"name": settings.name, "members": found}))
        return
    head = ["teacher", "layers", "n_F", "n_L", "k", "MLP", "dense", "tables", "FLOPs/example", "×"]
    table = []
    for member in found:
        model, count = member["model"], member["parameters"]
        if member["interaction"] == "wukong":
            shape = [str(model[key]) for key in ("layers", "num_fmb", "num_lcb", "rank")] + [_sizes(model["mlp"])]
        elif member["interaction"] == "dlrm":
            shape = ["", "", "", "", f"{_sizes(model['dlrm']['bottom'])} / {_sizes(model['dlrm']['top'])}"]
        else:
            cross = model["dcn"]["cross"]
            shape = [str(cross["layers"]), "", "", str(cross["rank"] or "full"), _sizes(model["dcn"]["deep"])]
        cost = [f"{number:,}" for number in (count["dense"], count["tables"], member["flops_per_example"])]
        table.append([member["name"], *shape, *cost, f"{member['relative_flops']:.2f}"])
    _print(head, table)
    typer.echo(
        "FLOPs are those of the network's forward pass, without the linear part; training costs three times as much. "
        "What they gain: --fit"
    )


def _sizes(sizes: list[int]) -> str:
    return "-".join(map(str, sizes)) or "linear"


def _print_fit(value: dict[str, Any]) -> None:
    from pipelines.lab.scaling.picture import in_words

    for task, judged in value["judged"].items():
        optimum = judged["optimum"]
        floor = "" if optimum is None or optimum["ne"] is None else f"; optimum NE {optimum['ne']:.4f}"
        if judged["too_few"] is not None:
            typer.echo(f"\n{task}: too few {judged['too_few']} to tell; give more --rows")
            continue
        typer.echo(
            f"\n{task}: judged on the second half: {judged['rows']:,} rows, {judged['positives']:,} positives{floor}; "
            "gains in % of the other's NE, above 0 is better"
        )
        head = ["teacher", "seed", "rate", "FLOPs/example", "rows/s", "NE", "AUC", "% over smallest", "% over Wukong"]
        table = []
        for member in value["members"]:
            figures = member["tasks"][task]
            cost = [f"{member['flops_per_example']:,}", f"{member['rows_per_s']:,.0f}"]
            gains = [_gain(figures[other]) for other in ("gain_over_smallest", "gain_over_wukong")]
            own = [member["name"], str(member["seed"]), f"{member['dense_lr']:g}"]
            table.append([*own, *cost, _figure(figures["ne"]), _figure(figures["auc"]), *gains])
        _print(head, table)
        for interaction, laws in value["laws"].items():
            law = laws[task]
            why = f" ({law['not_determined']})" if law["not_determined"] and law["gain_per_4x_percent"] else ""
            typer.echo(f"{interaction}: {in_words(law)}{why}")
    for task in value["not_judged"]:
        typer.echo(f"\n{task}: not judged, too few labels of one kind; give more --rows")


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _gain(gain: dict[str, Any] | None) -> str:
    if gain is None:
        return "–"
    if gain["low"] is None:
        return f"too few {gain['too_few']} to tell"
    return f"{gain['difference']:+.2f} [{gain['low']:+.2f}, {gain['high']:+.2f}]"


def _print(head: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file has no right edge
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for at, name in enumerate(head):
        table.add_column(name, justify="left" if at == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
