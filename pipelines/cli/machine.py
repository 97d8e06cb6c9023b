"""`exfm doctor`, `exfm bench`: check this machine's parts, and measure its speed at the work of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipelines.data.findings import Finding


STATUS = {"ok": "ok", "note": "ok", "warn": "warn", "stop": "fail"}
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def register(app: typer.Typer) -> None:
    app.command("doctor", epilog="Example: exfm doctor --deep --run-dir runs/demo")(doctor)
    app.command("bench", epilog="Example: exfm bench student --json")(bench)


def doctor(
    run_dir: Annotated[Path, typer.Option(help="Where runs will be written; its disk is checked.")] = Path("runs"),
    deep: Annotated[bool, typer.Option("--deep", help="Also start and stop a real broker (about 10 s).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON list.")] = False,
) -> None:
    """Check every part: Python, packages, threads, broker, disk, memory, compiler, GPU. Exit code 1 if one fails."""
    from pipelines.data.doctor.checks import examine
    from pipelines.data.findings import stops

    if as_json:
        import json

        findings = list(examine(run_dir=run_dir, deep=deep))
        typer.echo(json.dumps([_as_json(finding) | {"seconds": seconds} for finding, seconds in findings], indent=2))
    else:
        findings = list(_shown(examine(run_dir=run_dir, deep=deep)))
    raise typer.Exit(1 if stops(finding for finding, _ in findings) else 0)


def _as_json(finding: Finding) -> dict[str, str]:
    """`name`: of the check."""
    about = {"message": finding.seen, "remedy": finding.remedy}
    return {"id": finding.id, "name": finding.where, "status": STATUS[finding.severity]} | about


def _shown(findings: Iterator[tuple[Finding, float]]) -> Iterator[tuple[Finding, float]]:
    """Pass the findings on, printing each as it comes."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True, highlight=False)
    for finding, seconds in findings:
        status = STATUS[finding.severity]
        console.print(f"[{COLOURS[status]}]{status:<4}[/]  {finding.where:<13}  {escape(finding.seen)}")
        if finding.remedy:
            console.print(f"{'':21}→ {escape(finding.remedy)}")
        yield finding, seconds


def bench(
    name: Annotated[str | None, typer.Argument(help="A benchmark, or the beginning of names; default: all.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="How often each is measured, in turns with its limits.")] = 7,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON list.")] = False,
) -> None:
    """Measure how fast this machine does the work of a run, next to its silicon's limits and to bare torch.

    Figures are per CPU second of one core: medians, smallest and largest of the runs. It begins with how long it will
    take. The benchmarks are in a checkout of the repository only (tests/benchmarks).
    """
    import subprocess
    import sys

    from streaming.errors import BadInput

    checkout = Path(__file__).parents[2]
    if not (checkout / "tests" / "benchmarks").is_dir():
        raise BadInput("the benchmarks are not part of the installed package; run `make setup` and this in a checkout")
    words = [*([name] if name else []), "--runs", str(runs), *(["--json"] if json_ else [])]
    done = subprocess.run([sys.executable, "-m", "tests.benchmarks", *words], cwd=checkout, check=False)
    raise typer.Exit(done.returncode)
