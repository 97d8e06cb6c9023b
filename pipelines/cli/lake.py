"""`exfm lake`: content and readers of a run's lake, and housekeeping by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.tools.options import AsJson, RunDirOption, takes_run

if TYPE_CHECKING:
    from pipelines.cli.tools.lake import LakeCare
    from pipelines.report.table import Entry

Force = Annotated[
    list[str] | None,
    typer.Option("--force", metavar="READER", help="Ignore the position of this reader. May be repeated."),
]


def register(app: typer.Typer) -> None:
    commands = typer.Typer(
        help="A run's lake: what it holds, who reads it, housekeeping. Everything here is safe while the run is live.",
        no_args_is_help=True,
    )
    commands.command("status", epilog="Example: exfm lake status --run-dir runs/demo --json")(takes_run(status))
    commands.command("readers", epilog="Example: exfm lake readers --run-dir runs/demo --pin audit:0:9999")(
        takes_run(readers)
    )
    commands.command("compact", epilog="Example: exfm lake compact --run-dir runs/demo --all")(
        takes_run(compact, leads=True)
    )
    commands.command("retain", epilog="Example: exfm lake retain --run-dir runs/demo --days 30")(
        takes_run(retain, leads=True)
    )
    commands.command("asof", epilog="Example: exfm lake asof runs/demo --features asof.yaml")(
        takes_run(asof, leads=True)
    )
    commands.command("vacuum", epilog="Example: exfm lake vacuum --run-dir runs/demo --older-than 0")(
        takes_run(vacuum, leads=True)
    )
    app.add_typer(commands, name="lake")


def _care(run_dir: Path) -> LakeCare:
    from pipelines.cli.tools.lake import LakeCare

    return LakeCare(run_dir)


def status(run_dir: RunDirOption, as_json: AsJson = False) -> None:
    """Show rows, files and log of the lake and its side tables.

    `small` files are those that compaction may still merge; `unneeded` ones stay on the disk until vacuum; `log`
    counts the commits whose entries are kept.
    """
    from pipelines.report.words import count

    value = _care(run_dir).status()
    if as_json:
        typer.echo(json.dumps(value, indent=2))
        return
    days = value["settings"]["retention_days"]
    typer.echo(
        f"lake of {value['run_dir']}: {value['rows']:,} rows, lake_seq {value['first_lake_seq']:,} to "
        f"{value['last_lake_seq']:,}, kept {'for ever' if days is None else f'{days:g} days of event time'}"
    )
    head = ["table", "rows", "MB", "files", "small", "partitions", "unneeded", "log"]
    names = ["files", "small_files", "partitions", "unneeded_files", "log_entries"]
    _print(
        head,
        [
            [table["name"], count(table["rows"]), f"{table['bytes'] / 2**20:,.1f}", *(count(table[n]) for n in names)]
            for table in value["tables"]
        ],
    )
    if value["counts"]:
        flat = {name: number for name, number in value["counts"].items() if isinstance(number, int)}
        typer.echo("at the last commit: " + ", ".join(f"{name} {number:,}" for name, number in flat.items()))
    _print_readers(value["readers"])


def readers(
    run_dir: RunDirOption,
    pin: Annotated[
        str | None,
        typer.Option("--pin", metavar="NAME:FIRST:LAST", help="Keep these rows and their files, to verify them."),
    ] = None,
    retire: Annotated[
        str | None,
        typer.Option("--retire", metavar="READER", help="Forget this reader: no row is kept for it any more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the lake's readers and how far behind each is; pin a range, or retire a reader.

    Retention deletes no row that a reader may still need. A reader that has been silent for longer than
    `lake.reader_expiry_s` is `expired` and holds nothing; one that is `awaited` belongs to the run and has never
    registered: every row is kept for it.
    """
    from streaming.errors import BadInput

    care = _care(run_dir)
    if pin is not None:
        name, first, last = [*pin.rsplit(":", 2), "", ""][:3]
        if not name or not first.isdecimal() or not last.isdecimal():
            raise BadInput(f"--pin {pin}: write it as NAME:FIRST:LAST, for example audit:0:9999")
        care.pin(name, int(first), int(last))
    if retire is not None:
        care.retire(retire)
    if as_json:
        typer.echo(json.dumps(care.reader_rows(), indent=2))
    else:
        _print_readers(care.reader_rows())


def compact(
    run_dir: RunDirOption,
    everything: Annotated[
        bool, typer.Option("--all", help="Merge wherever there are two small files, instead of lake.compact_files.")
    ] = False,
    force: Force = None,
    as_json: AsJson = False,
) -> None:
    """Merge small files into larger ones, now. Rows, their order and all readers' positions stay the same.

    The run does this by itself, for partitions with `lake.compact_files` small files. Files of a pinned range are not
    touched, unless the pin is forced. Replaced files stay on the disk until vacuum.
    """
    from pipelines.cli.tools.lake import as_json as plain

    def say(line: str) -> None:
        typer.echo(line, err=True)

    done = _care(run_dir).compact(everything=everything, force=force or (), say=say)
    _print_done(
        {name: plain(each) for name, each in done.items()}, {name: str(each) for name, each in done.items()}, as_json
    )


def retain(
    run_dir: RunDirOption,
    days: Annotated[
        float | None, typer.Option("--days", min=0.0, help="Days of event time to keep; default: lake.retention_days.")
    ] = None,
    force: Force = None,
    as_json: AsJson = False,
) -> None:
    """Delete the oldest rows: those more than --days of event time behind the newest row in the lake.

    Stops at the lowest position of a registered reader, and names it. With --force rows are deleted past a reader's
    position: when it returns, an error says which rows are gone.
    """
    from pipelines.cli.tools.lake import as_json as plain

    done = _care(run_dir).retain(days=days, force=force or ())
    _print_done({"augmented_examples": plain(done)}, {"augmented_examples": str(done)}, as_json)


def asof(
    run_dir: RunDirOption,
    features: Annotated[
        Path,
        typer.Option("--features", metavar="FILE", help="YAML: `features.asof` as a config has it."),
    ],
    as_json: AsJson = False,
) -> None:
    """Compute as-of features for the rows that the lake has already, as if the run had them from its start.

    They are written beside the lake, by `lake_seq` (lake/asof_features), all of them or none: in place of those of
    before. `exfm replay RUN --asof` judges them. Given again, it covers the rows that have settled meanwhile.
    """
    from pipelines.cli.tools.asof import compute_asof
    from pipelines.core.run_dir.forgotten import forgotten
    from pipelines.core.run_dir.paths import RunDir

    described = compute_asof(run_dir, features)
    if as_json:
        typer.echo(json.dumps(described._asdict(), indent=2))
        return
    upto = "" if described.settled_ms is None else f", of those shown before merge_time_ms {described.settled_ms}"
    typer.echo(
        f"as-of features of rows lake_seq {described.first:,} to {described.last:,}{upto}: "
        f"{run_dir / 'lake' / 'asof_features'}"
    )
    if described.settled_ms is not None:
        typer.echo("rows shown later wait for their last window; the same command adds them then")
    if described.first:
        typer.echo(
            f"warning: rows before lake_seq {described.first:,} are deleted (lake.retention_days): the features "
            "know nothing of them",
            err=True,
        )
    if any(request.columns for request in forgotten(RunDir(run_dir)).requests):
        typer.echo(
            "warning: ids that the run was asked to forget are counted from the lake's first row on: the features are "
            "not those of a run that forgets them at an event time (forgotten.json)",
            err=True,
        )
    if described.unknown:
        most = "" if described.settled_ms is None else "up to "
        typer.echo(
            f"warning: {most}{described.unknown:,} impressions are not in the lake, because none of their labels "
            "became known: the features do not count them, as those of a run would have",
            err=True,
        )


def vacuum(
    run_dir: RunDirOption,
    older_than: Annotated[
        float | None, typer.Option("--older-than", min=0.0, help="Age in seconds; default: lake.vacuum_after_s.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete files that the lake no longer needs: replaced long enough ago, or left behind by a killed commit.

    Files of a commit in flight are never touched. Other programs that read an older version (DuckDB, Polars) lose
    it when files younger than their read are deleted; readers of the run refresh by themselves.
    """
    from pipelines.cli.tools.lake import as_json as plain

    done = _care(run_dir).vacuum(older_than_s=older_than)
    _print_done(
        {name: plain(each) for name, each in done.items()}, {name: str(each) for name, each in done.items()}, as_json
    )


def _print_done(values: dict[str, Any], sentences: dict[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(values, indent=2))
    else:
        for name, sentence in sentences.items():
            typer.echo(f"{name}: {sentence}")


def _print_readers(rows: list[dict[str, Any]]) -> None:
    from pipelines.report.words import count

    entries = [
        [row["name"], count(row["position"]), count(row["lag_rows"]), _age(row["silent_s"]),
         f"pin upto {row['pinned_upto']:,}" if row["state"] == "pin" else row["state"]]
        for row in rows
    ]  # fmt: skip
    _print(["reader", "position", "lag", "last seen", "state"], entries)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _print(head: Sequence[str], rows: Sequence[Sequence[Entry]]) -> None:
    from pipelines.report.table import TextTable
    from pipelines.report.terminal import console, rendered

    console().print(rendered(TextTable("", head, rows)))
