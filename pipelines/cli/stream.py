"""`exfm check`, `stream`, `status`, `stop`, `scale-workers`, `forget`, `report`: a run from check to results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.tools.options import AsJson, Overrides, RunDirOption, RunDirOrDefault, private_files, takes_run

if TYPE_CHECKING:
    from pipelines.core.config.settings import Config
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.data.checks.report import CheckReport
    from pipelines.live.status.status import RunStatus
    from streaming.sources.tables.copies import Copies

TEXT = {".csv", ".tsv", ".jsonl"}
"""Endings of files of rows that `exfm check` does not read."""


def check(
    what: Annotated[
        Path, typer.Argument(help="A YAML file (see configs/); or rows: a run's folder with its lake, a Parquet file.")
    ],
    sample: Annotated[
        int, typer.Option("--sample", min=3, help="Rows, or messages of a topic, that are looked at in every column.")
    ] = 100_000,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            help="The run that it will be: copies of files that cannot be played as they lie are kept there for it; "
            "default: runs/NAME, the config's name.",
        ),
    ] = None,
    overrides: Overrides = None,
    local: Annotated[bool, typer.Option("--local", help="As for a run with --local: one process.")] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="Of a file: a column that is a label. May be repeated.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", help="Of a file: the column of the event time.")] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="Of rows: a Parquet file of features as they were served, by impression_id."),
    ] = None,
    served: Annotated[
        str | None, typer.Option("--served", help="Of a run: the topic that `exfm serve --log-topic` writes.")
    ] = None,
    student: Annotated[str | None, typer.Option("--student", help="With --served: this one alone.")] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", help="HOST:PORT of the Kafka that has the --served topic.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Check a config and its data: columns, times, labels, delays, verticals, tables, memory. Nothing is started.
    `exfm stream` does the same first.

    Of rows that have settled, a run's lake or a Parquet file: volume, label rates, missing logits, repeated rows,
    features that know the label, features that are served otherwise than rebuilt, drift by day and vertical.

    Of what was served (--served TOPIC): how much of it is in the lake, features that were served otherwise than logged,
    predictions that the version does not make again, calibration on what became of it.

    Exit code 2 where something stops a run, or is wrong with the rows; 0 with warnings.

    Example: exfm check configs/demo.yaml
    Example: exfm check runs/demo --served served
    """
    from pipelines.core.config.settings import load
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.data.checks.check import check_config

    if served is not None:
        _check_served(what, served, bootstrap_servers, student, sample, json_=json_)
        return
    if what.is_dir() or what.suffix == ".parquet" or TEXT & {*what.suffixes}:
        _check_rows(what, label or [], time, against, json_=json_)
        return
    config = load(what, overrides)
    private_files()
    copies = _copies(config, RunDir(run_dir or Path("runs") / config.name))
    _show(check_config(config, rows=sample, local=local, copies=copies), json_=json_)


def _check_served(
    root: Path, topic: str, servers: str | None, student: str | None, sample: int, *, json_: bool
) -> None:
    """Raises BadInput where there is no such run or topic, and Exit with 2 where something is wrong."""
    from pipelines.cli.tools.stored_config import config_of
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.data.checks.served.judged import judge_served
    from pipelines.data.checks.served.log import read_log
    from streaming.kafka.settings import KafkaSettings

    run_dir = RunDir(root)
    config = config_of(run_dir)
    if servers is not None:
        KafkaSettings.of_servers(servers)
    kafka = config.kafka if servers is None else config.kafka.model_copy(update={"bootstrap_servers": servers})
    logged = read_log(kafka, topic, sample)
    report = judge_served(run_dir, logged, student)
    report.name = f"topic {topic} and {root}"
    _show(report, json_=json_)


def _show(report: CheckReport, *, json_: bool) -> None:
    """Raises Exit with 2 where something is wrong."""
    import json
    import shutil

    text = json.dumps(report.as_json(), indent=2) if json_ else ""
    typer.echo(text or report.text(min(100, shutil.get_terminal_size().columns)))
    if report.stops:
        raise typer.Exit(2)


def _check_rows(what: Path, labels: list[str], time: str | None, against: Path | None, *, json_: bool) -> None:
    """Raises BadInput where there are no such rows, and Exit with 2 where something is wrong with them."""
    from pipelines.cli.tools.stored_config import config_of
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.data.checks.examine import examined
    from pipelines.data.profile.column import ColumnProfile
    from pipelines.data.profile.rows import read_parquet, rows_of_file, rows_of_lake
    from streaming.errors import BadInput

    given, growing = None, []
    if what.is_dir():
        run_dir = RunDir(what)
        schema = config_of(run_dir).rows
        rows, given = rows_of_lake(run_dir.lake, schema), schema.given
        growing = [column.name for column in schema.asof.columns]
    elif TEXT & {*what.suffixes} and what.exists():
        raise BadInput(f"{what} is text; `exfm check` reads rows from Parquet or a run's lake; `exfm init` takes text")
    else:
        rows = rows_of_file(what, labels, time)
    recorded = None
    if against is not None:
        recorded = read_parquet(against)
        if "impression_id" not in {*recorded.schema.names} & {*rows.schema.names}:
            raise BadInput(f"rows of {what} and {against} are matched by `impression_id`, which one of them lacks")
    report = examined(rows, recorded, given, name=str(what), growing=growing)
    report.columns = [ColumnProfile.of(name, rows[name]) for name in rows.column_names]
    _show(report, json_=json_)


def stream(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="A YAML file; see configs/.")],
    run_dir: RunDirOrDefault = None,
    overrides: Overrides = None,
    local: Annotated[bool, typer.Option("--local", help="All workers in this process, without Ray.")] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop at the end of a bounded source, and write summary.json.")
    ] = False,
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle",
            min=1,
            help="Stop, resumable, when nothing new has come for so many seconds: a nightly run over topics that grow.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete the contents of the run directory and start over.")
    ] = False,
    evolve: Annotated[
        bool,
        typer.Option(
            "--evolve",
            help="Resume although features differ (larger tables, more features of the teacher), or input topics have "
            "more partitions.",
        ),
    ] = False,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", help="With --evolve: a feature to remove. May be repeated.")
    ] = None,
) -> None:
    """Run a pipeline: augmentation, teacher, students, tracking. Ctrl-C ends it cleanly; the same command resumes it.

    Example: exfm stream configs/demo.yaml --until-end --set seed=2
    """
    import gc

    from rich.console import Console

    from pipelines.live.launch.preloaded import prepare_to_fork, starts_plainly, worker_forks

    of_this = not local and prepare_to_fork()
    gc.disable()  # a fifth of the time is spent looking through what is imported
    from pipelines.core.config.settings import load
    from pipelines.core.run_dir.object_storage import working_copy
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.live.loop.lifecycle import run, start_over
    from pipelines.live.loop.live_run import CAUGHT_UP
    from pipelines.live.loop.preflight import check_storable
    from pipelines.live.rules.states import RunState
    from pipelines.report.screens.closing import print_closing
    from pipelines.report.screens.screen import Screen
    from streaming.errors import BadInput

    gc.freeze()  # pages that are never looked through again stay shared
    forks = (
        None if local or starts_plainly() else worker_forks(of_owner=of_this)
    )  # imports on a second core what else workers need
    if forks is not None:
        context.call_on_close(forks.close)
    private_files()
    settings = load(config, overrides)
    where = RunDir(run_dir or working_copy(settings.run_dir or Path("runs") / settings.name))
    if until_idle is not None and (until_end or settings.plays):
        raise BadInput("--until-idle is for topics that others feed, without --until-end: a bounded run ends by itself")
    if drop and not evolve:
        raise BadInput(f"--drop {drop[0]} needs --evolve; give both, or neither")
    check_storable(settings, where)
    _check(settings, where, fresh=fresh, local=local)
    gc.enable()
    if fresh and where.root.exists():
        start_over(where)
    with Screen() as screen:
        status, summary = run(
            settings, where, local=local, until_end=until_end, until_idle_s=until_idle, evolve=evolve,
            drop=drop or (), forks=forks, watch=screen.show, say=screen.say,
        )  # fmt: skip
    if summary is not None:
        print_closing(Console(), summary, where, settings)
    if status.state is RunState.FAILED:
        then = _next(status, where, finished=summary is not None)
        typer.echo(f"exfm: the run failed: {status.reason}\nlogs: {where.logs}; {then}", err=True)
        raise typer.Exit(2 if status.mistaken else 1)
    if status.state is RunState.STOPPED:
        typer.echo(f"stopped ({status.reason}); the same command resumes it", err=True)
        raise typer.Exit(0 if status.reason == CAUGHT_UP else 130)


def _check(settings: Config, where: RunDir, *, fresh: bool, local: bool) -> None:
    """Before anything is made or started. Of a run that was begun only what can have changed since.

    Raises BadInput, one line and more per problem; prints warnings.
    """
    from pipelines.data.checks.check import check_again, check_config
    from pipelines.data.findings import Severity, finding_lines
    from pipelines.live.loop.lifecycle import failed_before_learning
    from streaming.errors import BadInput

    begun = where.config.exists() and not fresh and not failed_before_learning(where)
    copies = _copies(settings, where, say=True)
    report = check_again(settings, where) if begun else check_config(settings, local=local, copies=copies)
    lines = finding_lines([finding for finding in report.findings if finding.severity is not Severity.NOTE])
    if report.stops:
        raise BadInput("\n".join([report.verdict, *lines]))
    for line in lines:
        typer.echo(line, err=True)


def _copies(settings: Config, where: RunDir, *, say: bool = False) -> Copies:
    """Copies of the source's files. They are made now, with progress; what cannot be is for the check to say. `say`:
    print what was done."""
    from pipelines.core.config.sections import Recorded
    from pipelines.report.screens.progress import share_bar
    from streaming.errors import BadInput
    from streaming.sources.tables.copies import Copies

    if not isinstance(source := settings.source, Recorded):
        return Copies(where.copies)
    try:
        with share_bar() as advance:
            made = source.opened(settings.rows, source.copies_in(where.copies, advance)).made_now
    except BadInput:
        made = []
    for text in made if say else []:
        typer.echo(text, err=True)
    return source.copies_in(where.copies)


def _next(status: RunStatus, where: RunDir, *, finished: bool) -> str:
    """Effect of the same command now, in words."""
    from pipelines.live.loop.lifecycle import failed_before_learning

    if finished:
        return (
            "no model was registered. The run is finished: mend that and start over with --fresh, or take its figures "
            "as they are with --set losses.fail_share=1"
        )
    if status.permanent:
        return "the same command would fail again"
    if not status.mistaken:
        return "the same command resumes"
    if failed_before_learning(where):
        return "mend that, then run it again: nothing was learned yet, so it starts over"
    return "fix this first; the same command would fail again"


def status(
    run_dir: RunDirOption,
    json_: Annotated[bool, typer.Option("--json", help="Print status.json.")] = False,
) -> None:
    """Show the state of a run.

    Example: exfm status --run-dir runs/demo
    """
    import json

    from pipelines.live.status.stored import read_status
    from pipelines.report.screens.stored import show_status

    stored = read_status(run_dir)
    if json_:
        typer.echo(json.dumps(stored.as_json() | {"alive": stored.lives}, indent=2))
    else:
        show_status(stored.as_json(), stored.lives)


def top(
    run_dir: RunDirOption,
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch a run from another terminal: the live screen, until the run ends or Ctrl-C. The run does not notice.

    Example: exfm top --run-dir runs/demo
    """
    import sys

    from pipelines.live.status.stored import read_status
    from pipelines.report.screens.stored import watch_status
    from streaming.errors import BadInput

    def read() -> tuple[dict[str, Any], bool]:
        stored = read_status(run_dir)
        return stored.as_json(), stored.lives

    if not sys.stdout.isatty():
        raise BadInput("`exfm top` needs a terminal; stdout is not a TTY; `exfm status --json` is for scripts")
    watch_status(read, every_s)


def stop(
    run_dir: RunDirOption,
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for its end.")] = 60.0,
) -> None:
    """End a running pipeline cleanly; it can be resumed.

    Example: exfm stop --run-dir runs/demo
    """
    from pipelines.live.status.stored import read_status, stop_run

    typer.echo(stop_run(read_status(run_dir), run_dir, wait_s))


def scale_workers(
    run_dir: RunDirOption,
    counts: Annotated[
        list[str] | None, typer.Argument(metavar="augmentation=N", help="How many workers share the stream.")
    ] = None,
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for the answer.")] = 60.0,
) -> None:
    """Give a run another number of augmentation workers, whether it runs or not.

    They begin at the last block of the lake; other workers go on. What the run learns does not depend on the number.
    It needs settlement.by: partition, and at most as many workers as the topics have partitions.

    Example: exfm scale-workers runs/live augmentation=3
    """
    from pipelines.cli.tools.scaling import scale_workers as scaled
    from pipelines.core.run_dir.paths import RunDir

    typer.echo(scaled(RunDir(run_dir), counts or [], wait_s))


def forget(
    run_dir: RunDirOption,
    table: Annotated[
        str | None, typer.Option("--table", metavar="T", help="An embedding table: the name of its feature.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="X", help="The raw id, as it stands in the feature's column.")
    ] = None,
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait until all have.")] = 60.0,
    where: Annotated[
        str | None, typer.Option("--where", metavar="CONDITION", help="Of --everywhere: whose rows, as `user_id = 7`.")
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Erase rows from all files of a run that is stopped.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Of --everywhere: do it. Without, it is only shown.")] = False,
    much: Annotated[bool, typer.Option("--much", help="Of --everywhere: though most of the lake matches.")] = False,
    json_: AsJson = False,
) -> None:
    """Drop an id from a run's models; or, with --everywhere, erase a person's rows from all files of a run.

    --table and --id: every model drops the id's rows, the optimizer's state of them, counts and histories before the
    next rows that it learns, at a position that is written down; later snapshots and versions hold nothing of it. So do
    as-of features, at an event time. A run that does not run does it when it starts.

    --where and --everywhere, of a run that is stopped: shows where rows are that match, what would go and what is
    outside. With --yes lake, late feedback, dead letters, logit sets, histories and predictions are rewritten, and
    older checkpoints, snapshots, versions and pins go. Killed at any moment, the same command completes it.

    Example: exfm forget runs/live --table user_id --id 7
    """
    import json

    from pipelines.cli.tools import forgetting
    from pipelines.core.run_dir.paths import RunDir
    from pipelines.erasure.erasure import PersonErasure
    from streaming.errors import BadInput

    if everywhere:
        if where is None or table is not None or id is not None:
            raise BadInput("--everywhere takes --where, a condition on rows, and neither --table nor --id")
        say = typer.echo if yes and not json_ else lambda text: None
        plan = PersonErasure(run_dir, where).erase(yes=yes, much=much, say=say)
        typer.echo(json.dumps(plan.as_json(), indent=2) if json_ else forgetting.text_of(plan))
        return
    if where is not None or yes or much or json_:
        raise BadInput("--where, --yes, --much and --json are of --everywhere; a table forgets by --table and --id")
    if table is None or id is None:
        raise BadInput("give --table and --id, what models are to forget; or --where and --everywhere, whose rows")
    for line in forgetting.forget(RunDir(run_dir), table, id, wait_s):
        typer.echo(line)


def report(
    run_dir: RunDirOption,
    json_: AsJson = False,
    all_: Annotated[bool, typer.Option("--all", help="Figures of the whole stream, too.")] = False,
) -> None:
    """Show the results of a finished run: verdicts, NE and gains, AUC, calibration, the teacher's lead, time, counts.

    Figures are those of the last half of the stream, as learned: each row predicted just before it was learned, when
    its label had settled; --all adds the whole stream. --json prints summary.json with the verdicts.

    Example: exfm report runs/demo
    """
    import json

    from rich.console import Console

    from pipelines.core.run_dir.paths import RunDir
    from pipelines.report.results.stored import read_summary
    from pipelines.report.results.verdict import verdict_on
    from pipelines.report.screens.report import print_report

    summary = read_summary(RunDir(run_dir))
    if json_:
        verdicts = {name: verdict_on(tasks) for name, tasks in summary.students.items()}
        typer.echo(json.dumps(summary.as_json() | {"verdicts": verdicts, "try": summary.next_step}, indent=2))
    else:
        print_report(Console(), summary, whole=all_)


def register(app: typer.Typer) -> None:
    app.command()(check)
    app.command()(takes_run(stream))
    app.command()(takes_run(top))
    app.command()(takes_run(status))
    app.command()(takes_run(stop))
    app.command()(takes_run(scale_workers, beside="counts", leads=True))
    app.command()(takes_run(forget))
    app.command()(takes_run(report))
