"""A plan on a terminal: tables, ranks, a picture of both, the alternatives, and whether this machine can hold it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from exfm.parallel.planner import Hardware
from exfm.parallel.planning.alternatives import Attempt
from exfm.parallel.planning.placement import Plan, PlanQuestion, RankLoad, Shortage, StepCost, TablePlan, format_bytes
from pipelines.teacher.plan.report import PlanReport, tables_to_place

MOST_TABLES, MOST_RANKS = 24, 16
SHADES, BLUES = " ░▒▓█", ("", "blue", "cyan", "yellow", "red")
BAR = 24
LINEAR = "linear part"


class Glyph(NamedTuple):
    text: str
    colour: str


PARTS = {
    "forward_compute": Glyph("█", "green"),
    "forward_comms": Glyph("▓", "cyan"),
    "backward_compute": Glyph("▒", "yellow"),
    "backward_comms": Glyph("░", "magenta"),
}


def show_plan(report: PlanReport, console: Console) -> None:
    asked = report.question
    memory = "no limit" if asked.sharding.memory_gb is None else f"{asked.sharding.memory_gb:g} GB"
    hosts = "" if asked.world.hosts == 1 else f" on {asked.world.hosts} hosts"
    who = "the teacher" if asked.learns else "the scoring teacher"
    console.print(
        f"[bold]{escape(report.name)}[/]: {who}'s {len(asked.parts['tables'].configs)} tables"
        f"{' and linear part' if 'wide' in asked.parts else ''} over {asked.ranks} ranks{hosts} "
        f"({asked.device}, {memory} each), steps of {asked.batch_rows} rows",
        highlight=False,
    )
    if isinstance(report.found, Plan):
        _show_costs(report.found, console)
    else:
        console.print(wanted_table(asked))
    for feature in report.unknown_bags:
        console.print(
            f"[yellow]note[/] `{escape(feature)}` reads a list; costs count 1 id a row. Set sharding.ids_per_row to "
            f"its average length",
            highlight=False,
        )
    if report.tried:
        console.print(tried_table(report.tried, report.found))
    for check in report.machine:
        colour = {"ok": "green", "warn": "yellow", "fail": "red"}[check.status]
        console.print(f"[{colour}]{check.status:<4}[/] {escape(check.message)}", highlight=False)


def _show_costs(plan: Plan, console: Console) -> None:
    asked = plan.question
    console.print(tables_table(plan))
    console.print(ranks_table(plan))
    console.print(
        *(Text(f"{glyph.text} {part.replace('_', ' ')}", glyph.colour) for part, glyph in PARTS.items()), sep="  "
    )
    if asked.ranks > 1:
        console.print(picture(plan, console.width))
    console.print(
        f"\na step takes as long as the slowest rank, {plan.bottleneck.rank}: {plan.cost_ms:.3g} ms, "
        f"{plan.imbalance:.2f} × the mean; the fullest is rank {plan.fullest.rank}, with "
        f"{format_bytes(plan.fullest.bytes)}\n"
        f"every rank also holds the dense part: {format_bytes(asked.dense_bytes)}"
        f"{' with gradients and Adam' if asked.learns else ''}\n"
        f"[dim]costs: TorchRec's model, which counts bytes and no latency; {Hardware.of(asked.device).source}[/]",
        highlight=False,
    )


def _plain(title: str) -> Table:
    return Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )


def by_bytes(tables: Sequence[TablePlan]) -> list[TablePlan]:
    return sorted(tables, key=lambda t: (-t.weight_bytes, t.name))


def tables_table(plan: Plan) -> Table:
    """The largest tables, one line each, one line for the rest, and one for the linear part."""
    table = _plain("tables")
    table.add_column("table", style="bold", overflow="fold", min_width=8)
    for head in ("rows × width", "weights", "optimizer"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("strategy", no_wrap=True)
    table.add_column("pieces, and their ranks", overflow="fold")
    tables = by_bytes(plan.tables)
    shown, rest = tables[:MOST_TABLES], tables[MOST_TABLES:]
    for t in shown:
        rows, columns = max(t.pieces, key=lambda piece: piece.weight_bytes).size
        pieces = "whole" if (rows, columns) == (t.rows, t.width) else f"{len(t.pieces)} of {rows:,} × {columns}"
        weights, optimizer = format_bytes(t.weight_bytes), format_bytes(t.optimizer_bytes)
        where = f"{pieces} on {numbers(t.ranks)}"
        table.add_row(escape(t.name), f"{t.rows:,} × {t.width}", weights, optimizer, t.strategy, where)
    if rest:
        table.add_row(f"{len(rest)} more", "", *_in_sum(rest), "")
    if plan.linear:
        shape = f"{sum(t.rows for t in plan.linear):,} × {plan.linear[0].width}"
        where = f"on {numbers(sorted({rank for t in plan.linear for rank in t.ranks}))}"
        table.add_row(LINEAR, shape, *_in_sum(plan.linear), where)
    return table


def _in_sum(tables: Sequence[TablePlan]) -> tuple[str, str, str]:
    """Weights, optimizer and strategies of several tables."""
    weights, optimizer = sum(t.weight_bytes for t in tables), sum(t.optimizer_bytes for t in tables)
    return format_bytes(weights), format_bytes(optimizer), ", ".join(sorted({t.strategy for t in tables}))


def wanted_table(question: PlanQuestion) -> Table:
    """What the tables take, where there is no plan for them."""
    table = _plain("tables, which do not fit")
    table.add_column("table", style="bold", overflow="fold", min_width=8)
    for head in ("rows × width", "weights", "optimizer"):
        table.add_column(head, justify="right", no_wrap=True)
    tables = sorted(tables_to_place(question, "tables"), key=lambda t: -t["weight_bytes"])
    shown, rest = tables[:MOST_TABLES], tables[MOST_TABLES:]
    for t in shown:
        shape = f"{t['rows']:,} × {t['width']}"
        table.add_row(escape(t["name"]), shape, format_bytes(t["weight_bytes"]), format_bytes(t["optimizer_bytes"]))

    def add(name: str, shape: str, tables: list[dict[str, Any]]) -> None:
        weights, optimizer = (format_bytes(sum(t[key] for t in tables)) for key in ("weight_bytes", "optimizer_bytes"))
        table.add_row(name, shape, weights, optimizer)

    if rest:
        add(f"{len(rest)} more", "", rest)
    if linear := tables_to_place(question, "wide"):
        add(LINEAR, f"{sum(t['rows'] for t in linear):,} × {linear[0]['width']}", linear)
    return table


def numbers(ranks: Sequence[int]) -> str:
    """
    >>> numbers([0, 1, 2, 5, 7, 8])
    '0–2, 5, 7–8'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def ranks_table(plan: Plan) -> Table:
    """One line per rank: bytes, their share of its memory, and a bar of its cost by part."""
    table = _plain("ranks: bytes, and predicted milliseconds of a step")
    for head in ("rank", "weights", "optimizer", "exchange", "full", "ms"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    capacity = plan.question.world.capacity_bytes
    limited = plan.question.sharding.memory_gb is not None
    loads, slowest = plan.ranks, plan.bottleneck
    shown = elided(loads, slowest, plan.fullest)
    for before, load in zip([None, *shown[:-1]], shown, strict=True):
        if before is not None and load.rank > before.rank + 1:
            table.add_row("…")
        share = f"{load.bytes / capacity:.0%}" if limited else "–"
        rank = Text(str(load.rank), style="bold red" if load is slowest and len(loads) > 1 else "bold")
        bytes_ = (
            format_bytes(load.weight_bytes),
            format_bytes(load.optimizer_bytes),
            format_bytes(load.exchange_bytes),
        )
        table.add_row(rank, *bytes_, share, f"{load.cost.total:.3g}", bar(load.cost, slowest.cost.total))
    return table


def elided(loads: Sequence[RankLoad], *kept: RankLoad) -> list[RankLoad]:
    """All ranks where there are few; otherwise the first ones, the last one and those in `kept`."""
    if len(loads) <= MOST_RANKS:
        return list(loads)
    some = {load.rank: load for load in (*loads[: MOST_RANKS - 4], loads[-1], *kept)}
    return [some[rank] for rank in sorted(some)]


def bar(cost: StepCost, longest: float) -> Text:
    """A rank's cost by part; as long as `BAR` for the slowest rank."""
    text = Text()
    drawn, until = 0, 0.0
    for part, glyph in PARTS.items():
        until += getattr(cost, part)
        end = round(BAR * until / longest) if longest else 0
        text.append(glyph.text * (end - drawn), style=glyph.colour)
        drawn = end
    return text


def picture(plan: Plan, width: int) -> Text:
    """Tables × ranks, shaded by bytes (a logarithmic scale, from the smallest cell to the largest)."""
    tables = by_bytes(plan.tables)
    rows = [(t.name, [t]) for t in tables[:MOST_TABLES]]
    if tables[MOST_TABLES:]:
        rows.append((f"{len(tables) - MOST_TABLES} more", tables[MOST_TABLES:]))
    if plan.linear:
        rows.append((LINEAR, list(plan.linear)))
    label = min(20, max(len(name) for name, _ in rows)) + 2
    ranks = list(range(plan.question.ranks))
    cell = next((c for c in (3, 2) if c * len(ranks) <= width - label - 1), 1)
    room = (width - label - 3) // cell
    left, right = (ranks, []) if len(ranks) <= room else (ranks[: room // 2], ranks[-(room - room // 2) :])
    held = [_bytes_by_rank(row, len(ranks)) for _, row in rows]
    cells = [value for row in held for value in row if value]
    low, high = math.log(min(cells)), math.log(max(cells))

    def shade(value: int) -> tuple[str, str]:
        level = 0 if not value else 1 + round((len(SHADES) - 2) * (math.log(value) - low) / ((high - low) or 1))
        return SHADES[level] * cell, BLUES[level]

    text = Text("\ntables × ranks, by bytes\n", style="bold")
    ends = f"{left[0]} → {left[-1]}" + (f" … {right[0]} → {right[-1]}" if right else "")
    text.append(" " * label + f"ranks {ends}\n", style="not bold dim")
    for (name, _), row in zip(rows, held, strict=True):
        text.append(f"{name[: label - 2]:<{label}}", style="not bold")
        for part in (left, right):
            for rank in part:
                text.append(*shade(row[rank]))
            if part is left and right:
                text.append("…", style="not bold dim")
        text.append("\n")
    scale = " ".join(
        f"{shade_} {format_bytes(math.exp(low + i * (high - low) / 3))}" for i, shade_ in enumerate(SHADES[1:])
    )
    text.append(" " * label + scale, style="not bold dim")
    return text


def _bytes_by_rank(tables: Sequence[TablePlan], ranks: int) -> list[int]:
    held = [0] * ranks
    for table in tables:
        for piece in table.pieces:
            held[piece.rank] += piece.weight_bytes + piece.optimizer_bytes
    return held


def tried_table(tried: Sequence[Attempt], found: Plan | Shortage) -> Table:
    """The alternatives, and what each would cost."""
    table = _plain("what was tried")
    table.add_column("plan", style="bold", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("fullest rank", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    best = min((a.plan.cost_ms for a in tried if a.plan), default=None)
    given: set[str] = set()
    for attempt in tried:
        if attempt.plan is None:
            why, colon, rest = attempt.why_not.partition(": ")
            what, more, advice = rest.partition(": ")
            table.add_row(
                attempt.name, "–", "–", Text(why + colon + what + (more + advice if advice not in given else ""), "dim")
            )
            given.add(advice)
            continue
        plan = attempt.plan
        notes = []
        if len({t.strategy for t in plan.tables}) > 1:
            kinds = [t.strategy for t in plan.tables]
            notes.append(", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))))
        if plan.cost_ms == best:
            notes.append("least cost")
        if isinstance(found, Plan) and (plan.tables, plan.linear) == (found.tables, found.linear):
            notes.append("the plan above")
        table.add_row(attempt.name, f"{plan.cost_ms:.3g}", format_bytes(plan.fullest.bytes), "; ".join(notes))
    return table
