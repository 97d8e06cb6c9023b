"""A plan on a terminal: tables, ranks, a picture of both, the alternatives, and whether this machine can hold it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from exfm.parallel.planner import Hardware
from exfm.parallel.planning.alternatives import Attempt
from exfm.parallel.planning.placement import Plan, PlanQuestion, RankLoad, Shortage, StepCost, TablePlan, format_bytes
from pipelines.report.table import Entry, TextTable, Toned
from pipelines.report.terminal import rendered
from pipelines.teacher.plan.report import PlanReport, tables_to_place

MOST_TABLES, MOST_RANKS = 24, 16
SHADES, BLUES = " ░▒▓█", ("", "blue", "cyan", "yellow", "red")
BAR = 24
LINEAR = "linear part"


PARTS = {"forward_compute": "█", "forward_comms": "▓", "backward_compute": "▒", "backward_comms": "░"}


def show_plan(report: PlanReport, console: Console) -> None:
    asked = report.question
    memory = "no limit" if asked.sharding.memory_gb is None else f"{asked.sharding.memory_gb:g} GB"
    hosts = "" if asked.world.hosts == 1 else f" on {asked.world.hosts} hosts"
    who = "the teacher" if asked.learns else "the scoring teacher"
    console.print(
        f"[bold]{escape(report.name)}[/]: {who}'s {len(asked.parts['tables'].tables)} tables"
        f"{' and linear part' if 'wide' in asked.parts else ''} over {asked.ranks} ranks{hosts} "
        f"({asked.device}, {memory} each), steps of {asked.batch_rows} rows",
        highlight=False,
    )
    if isinstance(report.found, Plan):
        _show_costs(report.found, console)
    else:
        console.print(rendered(wanted_table(asked)))
    for feature in report.unknown_bags:
        console.print(
            f"[yellow]note[/] `{escape(feature)}` reads a list; costs count 1 id a row. Set sharding.ids_per_row to "
            f"its average length",
            highlight=False,
        )
    if report.tried:
        console.print(rendered(tried_table(report.tried, report.found)))
    for check in report.machine:
        colour = {"ok": "green", "warn": "yellow", "fail": "red"}[check.status]
        console.print(f"[{colour}]{check.status:<4}[/] {escape(check.message)}", highlight=False)


def _show_costs(plan: Plan, console: Console) -> None:
    asked = plan.question
    console.print(rendered(tables_table(plan)))
    console.print(rendered(ranks_table(plan)))
    console.print("  ".join(f"{glyph} {part.replace('_', ' ')}" for part, glyph in PARTS.items()))
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


SIZES = ("rows × width", "weights", "optimizer")


def tables_table(plan: Plan) -> TextTable:
    """The largest tables, one line each, one line for the rest, and one for the linear part."""
    tables = sorted(plan.tables, key=lambda t: (-t.weight_bytes, t.name))
    rows: list[list[Entry]] = []
    for t in tables[:MOST_TABLES]:
        size, columns = max(t.pieces, key=lambda piece: piece.weight_bytes).size
        pieces = "whole" if (size, columns) == (t.rows, t.width) else f"{len(t.pieces)} of {size:,} × {columns}"
        rows.append([t.name, f"{t.rows:,} × {t.width}", *_in_sum([t]), f"{pieces} on {numbers(t.ranks)}"])
    if rest := tables[MOST_TABLES:]:
        rows.append([f"{len(rest)} more", "", *_in_sum(rest), ""])
    if plan.linear:
        shape = f"{sum(t.rows for t in plan.linear):,} × {plan.linear[0].width}"
        where = f"on {numbers(sorted({rank for t in plan.linear for rank in t.ranks}))}"
        rows.append([LINEAR, shape, *_in_sum(plan.linear), where])
    return TextTable("tables", ["table", *SIZES, "strategy", "pieces, and their ranks"], rows)


def _in_sum(tables: Sequence[TablePlan]) -> tuple[str, str, str]:
    """Weights, optimizer and strategies of several tables."""
    weights, optimizer = sum(t.weight_bytes for t in tables), sum(t.optimizer_bytes for t in tables)
    return format_bytes(weights), format_bytes(optimizer), ", ".join(sorted({t.strategy for t in tables}))


def wanted_table(question: PlanQuestion) -> TextTable:
    """Sizes of the tables, when there is no plan for them."""
    tables = sorted(tables_to_place(question, "tables"), key=lambda t: -t["weight_bytes"])
    groups = [(t["name"], f"{t['rows']:,} × {t['width']}", [t]) for t in tables[:MOST_TABLES]]
    if rest := tables[MOST_TABLES:]:
        groups.append((f"{len(rest)} more", "", rest))
    if linear := tables_to_place(question, "wide"):
        groups.append((LINEAR, f"{sum(t['rows'] for t in linear):,} × {linear[0]['width']}", linear))
    keys = ("weight_bytes", "optimizer_bytes")
    rows = [[name, shape, *(format_bytes(sum(t[key] for t in of)) for key in keys)] for name, shape, of in groups]
    return TextTable("tables, which do not fit", ["table", *SIZES], rows)


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


def ranks_table(plan: Plan) -> TextTable:
    """One line per rank: bytes, their share of its memory, and a bar of its cost by part."""
    capacity = plan.question.world.capacity_bytes
    limited = plan.question.sharding.memory_gb is not None
    loads, slowest = plan.ranks, plan.bottleneck
    shown = elided(loads, slowest, plan.fullest)
    head = ["rank", "weights", "optimizer", "exchange", "full", "ms", "by part"]
    rows: list[list[Entry]] = []
    for before, load in zip([None, *shown[:-1]], shown, strict=True):
        if before is not None and load.rank > before.rank + 1:
            rows.append(["…", *[""] * (len(head) - 1)])
        sizes = [format_bytes(size) for size in (load.weight_bytes, load.optimizer_bytes, load.exchange_bytes)]
        share = f"{load.bytes / capacity:.0%}" if limited else None
        rank = Toned(str(load.rank), "bad" if load is slowest and len(loads) > 1 else "strong")
        rows.append([rank, *sizes, share, f"{load.cost.total:.3g}", bar(load.cost, slowest.cost.total)])
    return TextTable("ranks: bytes, and predicted milliseconds of a step", head, rows)


def elided(loads: Sequence[RankLoad], *kept: RankLoad) -> list[RankLoad]:
    """All ranks if there are few; otherwise the first ones, the last one and those in `kept`."""
    if len(loads) <= MOST_RANKS:
        return list(loads)
    some = {load.rank: load for load in (*loads[: MOST_RANKS - 4], loads[-1], *kept)}
    return [some[rank] for rank in sorted(some)]


def bar(cost: StepCost, longest: float) -> str:
    """A rank's cost by part; as long as `BAR` for the slowest rank."""
    text, until = "", 0.0
    for part, glyph in PARTS.items():
        until += getattr(cost, part)
        text += glyph * ((round(BAR * until / longest) if longest else 0) - len(text))
    return text.ljust(BAR)


def picture(plan: Plan, width: int) -> Text:
    """Tables × ranks, shaded by bytes (a logarithmic scale, from the smallest cell to the largest)."""
    tables = sorted(plan.tables, key=lambda t: (-t.weight_bytes, t.name))
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


def tried_table(tried: Sequence[Attempt], found: Plan | Shortage) -> TextTable:
    """Alternative plans and their costs."""
    best = min((a.plan.cost_ms for a in tried if a.plan), default=None)
    rows: list[list[Entry]] = []
    advised: set[str] = set()
    for attempt in tried:
        if (plan := attempt.plan) is None:
            why, colon, rest = attempt.why_not.partition(": ")
            what, more, advice = rest.partition(": ")
            words = why + colon + what + (more + advice if advice not in advised else "")
            rows.append([attempt.name, None, None, Toned(words, "soft")])
            advised.add(advice)
            continue
        notes = []
        if len({t.strategy for t in plan.tables}) > 1:
            kinds = [t.strategy for t in plan.tables]
            notes.append(", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))))
        if plan.cost_ms == best:
            notes.append("least cost")
        if isinstance(found, Plan) and (plan.tables, plan.linear) == (found.tables, found.linear):
            notes.append("the plan above")
        rows.append([attempt.name, f"{plan.cost_ms:.3g}", format_bytes(plan.fullest.bytes), "; ".join(notes)])
    return TextTable("what was tried", ["plan", "ms", "fullest rank", "notes"], rows)
