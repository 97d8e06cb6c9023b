"""What a finished run prints: the table of students, where time went, where things are, what to try next."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from pipelines.layout import RunDir
from pipelines.screen import duration
from pipelines.summary import MODELS, counts_hold

HEADS = {"student": "student", "no_teacher": "twin", "teacher": "teacher", "optimum": "optimum"}


def students_table(summary: dict[str, Any]) -> Table:
    """Student × task: NE of the last half, then AUC and calibration, and the paired gain with its 95 % interval."""
    table = Table(
        title="last half of the stream, each prediction made before its row was learned", title_justify="left"
    )
    table.add_column("student", style="bold")
    table.add_column("task")
    table.add_column("rows", justify="right")
    for model in MODELS:
        table.add_column(f"NE {HEADS[model]}", justify="right")
    table.add_column("student − twin, 95 %", justify="right")
    for model in ("student", "no_teacher"):
        table.add_column(f"AUC {HEADS[model]}", justify="right")
    table.add_column("calibration", justify="right")
    for name, tasks in summary["students"].items():
        for task, result in tasks.items():
            half = result["last_half"]
            table.add_row(
                name,
                task,
                f"{half['rows']:,}",
                *(_figure(half[model], "ne") for model in MODELS),
                _gain(half),
                _figure(half["student"], "auc"),
                _figure(half["no_teacher"], "auc"),
                _figure(half["student"], "calibration", 3),
            )
    return table


def _figure(model: dict[str, Any] | None, key: str, digits: int = 4) -> str:
    return "–" if model is None or model[key] is None else f"{model[key]:.{digits}f}"


def _gain(half: dict[str, Any]) -> str:
    gain = half["gain"]
    if gain is None or gain["low"] is None:
        return "–"
    relative = 100 * gain["difference"] / half["no_teacher"]["ne"]
    low, high = (100 * gain[key] / half["no_teacher"]["ne"] for key in ("low", "high"))
    colour = "green" if high < 0 else "red" if low > 0 else "yellow"
    return f"[{colour}]{relative:+.2f} % [{low:+.2f}, {high:+.2f}][/{colour}]"


def workers_table(summary: dict[str, Any]) -> Table:
    """Where each worker's time went."""
    table = Table(title="where the time went, by worker", title_justify="left")
    for head in ("worker", "rows", "busy", "rows/s", "peak MB"):
        table.add_column(head, justify="left" if head == "worker" else "right")
    table.add_column("phases")
    for name, worker in summary["workers"].items():
        phases = sorted(worker["phases_s"].items(), key=lambda item: -item[1])
        shares = ", ".join(f"{p} {100 * s / max(worker['busy_s'], 1e-9):.0f}%" for p, s in phases[:5])
        table.add_row(
            name,
            f"{worker['rows']:,}",
            duration(worker["busy_s"]),
            f"{worker['rows_per_s']:,.0f}",
            f"{worker['peak_rss_bytes'] / 2**20:,.0f}",
            shares,
        )
    return table


def print_closing(console: Console, summary: dict[str, Any], run_dir: RunDir, config_path: str) -> None:
    run, counts = summary["run"], summary["counts"]
    console.print(students_table(summary))
    console.print(workers_table(summary))
    verdict = "balance" if counts_hold(counts) else "[red]do not balance[/red]"
    console.print(
        f"{counts['impressions_read']:,} impressions in {duration(run['wall_s'])}: "
        f"settled {counts['settled']}, not applicable {counts['not_applicable']}, "
        f"duplicates {counts['duplicates_dropped']:,}, dead letters {counts['dead_letters']:,} (the counts {verdict})",
        highlight=False,
    )
    console.print(
        f"\nlake      {run_dir.lake}\n"
        f"summary   {run_dir.summary}\n"
        f"picture   {run_dir.picture}\n"
        f"MLflow    mlflow ui --backend-store-uri sqlite:///{run_dir.mlflow}\n"
        f"\ntry next  another seed: exfm stream {config_path} --until-end --run-dir runs/seed2 "
        "--set seed=2 --set source.seed=2\n"
        f'          read the lake: python -c "import polars as pl; '
        f"print(pl.scan_delta('{run_dir.lake}').collect())\"",
        highlight=False,
        soft_wrap=True,
    )
