"""`exfm broker`: the embedded Apache Kafka broker of a run directory, started and stopped by hand; and a run moved to
another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.tools.options import AsJson, Overrides, private_files, takes_run
from streaming.program import command

if TYPE_CHECKING:
    from streaming.broker.broker import LocalBroker

RunDir = Annotated[
    Path, typer.Option("--run-dir", help="The run directory; its `broker` folder holds the broker's data.")
]
HERE = Path("runs/broker")


def register(app: typer.Typer) -> None:
    commands = typer.Typer(
        help="A real Kafka broker on 127.0.0.1, for one run directory; a run moved to another cluster.",
        no_args_is_help=True,
    )
    commands.command("start", epilog="Example: exfm broker start --run-dir runs/demo")(takes_run(start, leads=True))
    commands.command("stop", epilog="Example: exfm broker stop --run-dir runs/demo")(takes_run(stop, leads=True))
    commands.command("status", epilog="Example: exfm broker status --run-dir runs/demo --json")(
        takes_run(status, leads=True)
    )
    commands.command("move", epilog="Example: exfm broker move runs/mine --to kafka-b:9092")(
        takes_run(move, leads=True)
    )
    commands.command("fetch", epilog="Example: exfm broker fetch")(fetch)
    app.add_typer(commands, name="broker")


def _broker(run_dir: Path, port: int | None = None) -> LocalBroker:
    from pipelines.core.run_dir.paths import RunDir
    from streaming.broker.broker import LocalBroker

    return LocalBroker(RunDir(run_dir).broker, port=port)


def _report(as_json: bool, sentence: str, **fields: Any) -> None:
    typer.echo(json.dumps(fields) if as_json else sentence)


def start(
    run_dir: RunDir = HERE,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="A fixed port; default: any free one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start the broker, or find it running, and wait until it answers. It keeps running after this command."""
    private_files()
    running = _broker(run_dir, port).start()
    end = command("exfm", "broker", "stop", "--run-dir", run_dir)
    sentence = f"broker at {running.bootstrap_servers} (pid {running.pid}); end it: {end}"
    _report(as_json, sentence, running=True, run_dir=str(run_dir), **running._asdict())


def stop(run_dir: RunDir = HERE, as_json: AsJson = False) -> None:
    """Stop the broker. Topics and their data stay for the next start."""
    stopped = _broker(run_dir).stop()
    sentence = "broker stopped; its data stay" if stopped else f"no broker runs for {run_dir}"
    _report(as_json, sentence, stopped=stopped, run_dir=str(run_dir))


def status(run_dir: RunDir = HERE, as_json: AsJson = False) -> None:
    """Show whether the broker runs, and where. A directory that never had one is no error."""
    running = _broker(run_dir).status()
    if running is None:
        sentence = f"no broker runs for {run_dir}; start it: {command('exfm', 'broker', 'start', '--run-dir', run_dir)}"
        nowhere = {"bootstrap_servers": None, "pid": None, "port": None}
        _report(as_json, sentence, running=False, run_dir=str(run_dir), **nowhere)
    else:
        sentence = f"broker at {running.bootstrap_servers} (pid {running.pid})"
        _report(as_json, sentence, running=True, run_dir=str(run_dir), **running._asdict())


def move(
    run_dir: Annotated[Path, typer.Option("--run-dir", help="Folder of the run, which must not be running.")],
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="Address of the cluster to read from now on.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    margin_s: Annotated[
        float,
        typer.Option("--margin-s", min=0, help="How far timestamps of messages may be out of order, in seconds."),
    ] = 300.0,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Move a stopped run to where its topics live now: another cluster, a mirror, or topics created anew.

    The messages that were read last are looked for there, and positions mapped by them. What cannot be mapped is named,
    and nothing is changed. A command that was killed is completed by the same command.
    """
    from pipelines.cli.tools.broker_move import BrokerMove

    plan = BrokerMove(run_dir, to, overrides).move(
        margin_s=margin_s, dry_run=dry_run, say=(lambda line: None) if as_json else typer.echo
    )
    if as_json:
        done = not dry_run and plan.record is not None
        positions = [[*each.partition, *each.position] for topic in plan.topics for each in topic.partitions]
        typer.echo(json.dumps({"to": to, "done": done, "positions": positions, "lines": plan.lines}, indent=2))
    elif plan.record is not None:
        typer.echo("nothing was changed (--dry-run)" if dry_run else f"moved: the next start reads at {to}")


def fetch() -> None:
    """Download the broker's jars before the first start, once per machine and user, and cache their Java classes,
    which halves a broker's start."""
    from streaming.broker.classes import keep_classes
    from streaming.broker.jars import fetch_jars

    typer.echo(f"the broker's jars are at {fetch_jars()}")
    if keep_classes() is None:
        typer.echo("Java could not keep the classes that it loads: a broker takes twice as long to start", err=True)
