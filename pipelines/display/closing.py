"""The last screen of a run: tables of students, where the time went, where the results are, what to try next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from pipelines.config import Config
from pipelines.display.losses import losses_text
from pipelines.display.screen import duration
from pipelines.results import MODELS, counts_hold, losses_in, rows_hold
from pipelines.run_dir import RunDir

HEADS = {"student": "student", "no_teacher": "twin", "teacher": "teacher", "optimum": "optimum"}
COMPARED = ("student", "no_teacher", "teacher")


def _table(title: str, gap: int) -> Table:
    """A table that fits 80 columns: long names fold, figures never do."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, gap, 0, 0)
    )
    table.add_column("student", style="bold", overflow="fold", min_width=10)
    table.add_column("task", overflow="fold", min_width=4)
    return table


def ne_table(summary: dict[str, Any]) -> Table:
    """Student × task: NE of every model on the last half, and the paired gain with its 95 % interval."""
    table = _table("\nNE on the last half of the stream, predicted before learned (lower is better)", 2)
    for model in MODELS:
        table.add_column(HEADS[model], justify="right", no_wrap=True)
    table.add_column("student − twin, 95 %", justify="right", no_wrap=True)
    for name, task, half in _halves(summary):
        table.add_row(name, task, *(_figure(half[model], "ne") for model in MODELS), _gain(half))
    return table


def auc_table(summary: dict[str, Any]) -> Table:
    """Student × task: rows, AUC and calibration on the last half."""
    table = _table("\nthe same rows: AUC (higher is better), calibration (1 is right)", 1)
    table.add_column("rows", justify="right", no_wrap=True)
    for figure in ("AUC", "calibr."):
        for model in COMPARED:
            table.add_column(f"{figure}\n{HEADS[model]}", justify="right", no_wrap=True)
    for name, task, half in _halves(summary):
        auc = (_figure(half[model], "auc") for model in COMPARED)
        calibration = (_figure(half[model], "calibration", 3) for model in COMPARED)
        table.add_row(name, task, f"{half['rows']:,}", *auc, *calibration)
    return table


def teaching_table(summary: dict[str, Any], group_by: str | None) -> Table:
    """Student × task: the share of the teacher's lead that the student got; where rows have groups, also GAUC and the
    paired gain with groups as clusters."""
    table = _table("\nthe same rows: share of the teacher's lead that the student got (–: it has none)", 1)
    table.add_column("share", justify="right", no_wrap=True)
    if group_by is not None:
        for model in COMPARED:
            table.add_column(f"GAUC\n{HEADS[model]}", justify="right", no_wrap=True)
        table.add_column(f"student − twin,\n95 % by {group_by}", justify="right", no_wrap=True)
    for name, task, half in _halves(summary):
        ratio = half.get("transfer_ratio")  # earlier releases wrote neither this nor figures by group
        cells = ["–" if ratio is None else f"{ratio:.2f}"]
        if group_by is not None:
            cells += [*(_figure(half[model], "gauc") for model in COMPARED), _gain(half, "gain_by_group")]
        table.add_row(name, task, *cells)
    return table


def _halves(summary: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, tasks in summary["students"].items():
        for task, result in tasks.items():
            yield name, task, result["last_half"]


def _figure(model: dict[str, Any] | None, key: str, digits: int = 4) -> str:
    return "–" if model is None or model.get(key) is None else f"{model[key]:.{digits}f}"


def _gain(half: dict[str, Any], key: str = "gain") -> str:
    gain = half.get(key)
    if gain is None or gain["low"] is None:
        return "–"
    relative = 100 * gain["difference"] / half["no_teacher"]["ne"]
    low, high = (100 * gain[key] / half["no_teacher"]["ne"] for key in ("low", "high"))
    colour = "green" if high < 0 else "red" if low > 0 else "yellow"
    return f"[{colour}]{relative:+.2f} % [{low:+.2f}, {high:+.2f}][/{colour}]"


def workers_table(summary: dict[str, Any]) -> Table:
    """Where each worker's time went."""
    table = Table(
        title="\nwhere the time went, by worker",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("worker", overflow="fold", min_width=10)
    for head in ("rows", "busy", "rows/s", "MB"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("of its time", min_width=20)
    for name, worker in summary["workers"].items():
        phases = sorted(worker["phases_s"].items(), key=lambda item: -item[1])
        total_s = sum(worker["phases_s"].values()) or 1.0
        shares = ", ".join(f"{seconds / total_s:.0%} {phase}" for phase, seconds in phases[:5])
        table.add_row(
            name,
            f"{worker['rows']:,}",
            duration(worker["busy_s"]),
            f"{worker['rows_per_s']:,.0f}",
            f"{worker['peak_rss_bytes'] / 2**20:,.0f}",
            shares,
        )
    return table


def counts_text(summary: dict[str, Any]) -> str:
    """The counts of a run in one line, and whether they balance."""
    counts = summary["counts"]
    pieces = [f"{counts['impressions_read']:,} impressions in {duration(summary['run']['wall_s'])}"]
    for words, key in (("settled", "settled"), ("not applicable", "not_applicable"), ("pending", "pending")):
        if any(counts[key].values()):
            pieces.append(f"{words} " + ", ".join(f"{group} {n:,}" for group, n in counts[key].items()))
    pieces.append(f"duplicates {counts['duplicates_dropped']:,}")
    pieces.append(f"dead letters {counts['dead_letters']:,}")
    left_out = {name: worker.get("quarantined_rows", 0) for name, worker in summary["workers"].items()}
    if any(left_out.values()):
        pieces.append("left out as not finite " + ", ".join(f"{name} {n:,}" for name, n in left_out.items() if n))
    sampled = {name: worker.get("left_out_by_sampling", 0) for name, worker in summary["workers"].items()}
    if any(sampled.values()):
        pieces.append("left out by sampling " + ", ".join(f"{name} {n:,}" for name, n in sampled.items() if n))
    hold = counts_hold(counts) and rows_hold(summary["workers"])
    return " · ".join(pieces) + f" (the counts {'balance' if hold else 'DO NOT BALANCE'})"


WARM_IMPRESSIONS = 300_000


def print_closing(console: Console, summary: dict[str, Any], run_dir: RunDir, config: Config) -> None:
    if any(summary["students"].values()):
        console.print(ne_table(summary))
        console.print(auc_table(summary))
        console.print(teaching_table(summary, config.metrics.group_by))
    if summary["counts"]["impressions_read"] < WARM_IMPRESSIONS:
        console.print(
            f"A stream of under {WARM_IMPRESSIONS:,} impressions shows that everything runs. Teacher and students are "
            "still cold at its end: judge them on a longer one.",
            style="yellow",
        )
    console.print(workers_table(summary))
    console.print("\n" + counts_text(summary), highlight=False, markup=False)
    console.print(losses_text(losses_in(summary, config).as_json()))
    console.print(
        f"\nlake      {run_dir.lake}\n"
        f"summary   {run_dir.summary}\n"
        f"picture   {run_dir.picture}\n"
        f"MLflow    mlflow ui --backend-store-uri {config.tracking.uri or f'sqlite:///{run_dir.mlflow}'}\n"
        f"\ntry next  another seed: exfm stream {run_dir.config} --run-dir {run_dir.root}-again --set seed=2"
        f"{' --set source.seed=2' if config.source is not None and config.source.kind == 'generated' else ''}\n"
        f'          read the lake: python -c "import polars as pl; '
        f"print(pl.scan_delta('{run_dir.lake}').collect())\"",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
