"""What `exfm plan` says: tables, ranks, a picture of both, what was tried, what makes room; as JSON or on a screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from exfm.errors import ConfigError
from exfm.parallel import Hardware, table_bytes
from exfm.planning import Attempt, Plan, PlanQuestion, RankLoad, Remedy, Shortage, StepCost, TablePlan, format_bytes

MOST_TABLES, MOST_RANKS = 24, 16
SHADES, BLUES = " ░▒▓█", ("", "blue", "cyan", "yellow", "red")
BAR = 24


class Glyph(NamedTuple):
    text: str
    colour: str


PARTS = {
    "forward_compute": Glyph("█", "green"),
    "forward_comms": Glyph("▓", "cyan"),
    "backward_compute": Glyph("▒", "yellow"),
    "backward_comms": Glyph("░", "magenta"),
}


class Check(NamedTuple):
    """Something about this machine: `ok`, `warn` or `fail`."""

    status: str
    message: str


@dataclass
class Report:
    """Everything that was found out about a question, by the name of its config."""

    name: str
    question: PlanQuestion
    found: Plan | Shortage
    tried: list[Attempt] = field(default_factory=list)
    remedies: list[Remedy] = field(default_factory=list)
    machine: list[Check] = field(default_factory=list)  # empty in a dry run
    unknown_bags: list[str] = field(default_factory=list)  # features of list columns, of how many ids nobody said

    def refuse(self) -> None:
        """Raise ConfigError where the plan does not fit, or not here."""
        if words := self.refusal():
            raise ConfigError(words)

    def refusal(self) -> str | None:
        """Why the answer is no, in a paragraph; None when the plan fits."""
        broken = [check.message for check in self.machine if check.status == "fail"]
        if isinstance(self.found, Shortage):
            short, asked = self.found, self.question
            lines = [str(short)]
            if not short.reason:
                lines[0] += (
                    f"; cut {short.strategy} all tables need {format_bytes(short.total)}, and {asked.ranks} ranks of "
                    f"{asked.sharding.memory_gb:g} GB have {format_bytes(short.capacity)}"
                )
            lines.append("what makes room, each a plan the planner made:" if self.remedies else "nothing made room")
            for number, remedy in enumerate(self.remedies, 1):
                settings = ", ".join(f"{path}={_yaml(value)}" for path, value in self.settings(remedy).items())
                lines.append(f"  {number}. {remedy.words}: {settings} (≤ {remedy.plan.cost_ms:.3g} ms)")
            return "\n".join([*lines, *broken])
        return "\n".join(broken) or None

    def settings(self, remedy: Remedy) -> dict[str, Any]:
        """What to set in the config, by path."""
        part = "teacher" if self.question.learns else "augmentation"
        settings: dict[str, Any] = {}
        for name, value in remedy.changes.items():
            settings[f"teacher.{name}" if name.startswith("model.") else f"{part}.{name}"] = value
            if name == "ranks" and part == "teacher":
                settings["kafka.examples.partitions"] = value
        return settings

    def as_json(self) -> dict[str, Any]:
        asked, plan = self.question, self.found if isinstance(self.found, Plan) else None
        return {
            "config": self.name,
            "fits": plan is not None,
            "reasons": [] if plan else [str(self.found)],
            "ranks_asked": asked.ranks,
            "ranks_per_host": asked.world.on_a_host,
            "device": asked.device,
            "memory_gb": asked.sharding.memory_gb,
            "batch_rows": asked.batch_rows,
            "hardware": Hardware.of(asked.device).source,
            "dense_bytes": asked.dense_bytes,
            "tables": [_table_json(table) for table in plan.tables] if plan else _wanted(asked),
            "ranks": [_rank_json(load) for load in plan.ranks] if plan else [],
            "cost_ms": plan and plan.cost_ms,
            "imbalance": plan and plan.imbalance,
            "bottleneck": plan and plan.bottleneck.rank,
            "tried": [
                {"name": a.name, "cost_ms": a.plan and a.plan.cost_ms, "why_not": a.why_not or None} for a in self.tried
            ],
            "remedies": [
                {"words": r.words, "settings": self.settings(r), "cost_ms": r.plan.cost_ms} for r in self.remedies
            ],
            "unknown_bags": self.unknown_bags,
            "machine": [check._asdict() for check in self.machine],
        }

    def show(self, console: Console) -> None:
        asked = self.question
        memory = "no limit" if asked.sharding.memory_gb is None else f"{asked.sharding.memory_gb:g} GB"
        hosts = "" if asked.world.hosts == 1 else f" on {asked.world.hosts} hosts"
        who = "the teacher" if asked.learns else "the scoring teacher"
        console.print(
            f"[bold]{escape(self.name)}[/]: {who}'s {len(asked.tables)} tables over {asked.ranks} ranks{hosts} "
            f"({asked.device}, {memory} each), steps of {asked.batch_rows} rows",
            highlight=False,
        )
        if isinstance(self.found, Plan):
            plan = self.found
            console.print(tables_table(plan.tables))
            console.print(ranks_table(plan))
            console.print(
                *(Text(f"{glyph.text} {part.replace('_', ' ')}", glyph.colour) for part, glyph in PARTS.items()),
                sep="  ",
            )
            if asked.ranks > 1:
                console.print(picture(plan, console.width))
            console.print(
                f"\na step costs what rank {plan.bottleneck.rank}, the slowest, pays: {plan.cost_ms:.3g} ms, "
                f"{plan.imbalance:.2f} × the mean; the fullest is rank {plan.fullest.rank}, with "
                f"{format_bytes(plan.fullest.bytes)}\n"
                f"beside that every rank holds the dense part: {format_bytes(asked.dense_bytes)}"
                f"{' with gradients and Adam' if asked.learns else ''}\n"
                "[dim]costs: TorchRec's model, which counts bytes and no latency; "
                f"{Hardware.of(asked.device).source}[/]",
                highlight=False,
            )
        if isinstance(self.found, Shortage):
            console.print(wanted_table(asked))
        for feature in self.unknown_bags:
            console.print(
                f"[yellow]note[/] `{escape(feature)}` reads a list; costs count 1 id a row: say how many with "
                f"sharding.ids_per_row",
                highlight=False,
            )
        if self.tried:
            console.print(tried_table(self.tried, self.found))
        for check in self.machine:
            colour = {"ok": "green", "warn": "yellow", "fail": "red"}[check.status]
            console.print(f"[{colour}]{check.status:<4}[/] {escape(check.message)}", highlight=False)


def _yaml(value: Any) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else "{}" if value == {} else f"{value:g}"


def _plain(title: str) -> Table:
    return Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )


def by_bytes(tables: Sequence[TablePlan]) -> list[TablePlan]:
    return sorted(tables, key=lambda t: (-t.weight_bytes, t.name))


def tables_table(tables: Sequence[TablePlan]) -> Table:
    """The largest tables, a line each, and one line for the rest."""
    table = _plain("tables")
    table.add_column("table", style="bold", overflow="fold", min_width=8)
    for head in ("rows × width", "weights", "optimizer"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("strategy", no_wrap=True)
    table.add_column("pieces, and their ranks", overflow="fold")
    shown, rest = by_bytes(tables)[:MOST_TABLES], by_bytes(tables)[MOST_TABLES:]
    for t in shown:
        rows, columns = max(t.pieces, key=lambda piece: piece.weight_bytes).size
        pieces = "whole" if (rows, columns) == (t.rows, t.width) else f"{len(t.pieces)} of {rows:,} × {columns}"
        weights, optimizer = format_bytes(t.weight_bytes), format_bytes(t.optimizer_bytes)
        where = f"{pieces} on {numbers(t.ranks)}"
        table.add_row(escape(t.name), f"{t.rows:,} × {t.width}", weights, optimizer, t.strategy, where)
    if rest:
        weights, optimizer = (
            format_bytes(sum(t.weight_bytes for t in rest)),
            format_bytes(sum(t.optimizer_bytes for t in rest)),
        )
        table.add_row(f"{len(rest)} more", "", weights, optimizer, ", ".join(sorted({t.strategy for t in rest})), "")
    return table


def wanted_table(question: PlanQuestion) -> Table:
    """What the tables take, where no plan says more of them."""
    table = _plain("tables, which do not fit")
    table.add_column("table", style="bold", overflow="fold", min_width=8)
    for head in ("rows × width", "weights", "optimizer"):
        table.add_column(head, justify="right", no_wrap=True)
    tables = sorted(_wanted(question), key=lambda t: -t["weight_bytes"])
    shown, rest = tables[:MOST_TABLES], tables[MOST_TABLES:]
    for t in shown:
        shape = f"{t['rows']:,} × {t['width']}"
        table.add_row(escape(t["name"]), shape, format_bytes(t["weight_bytes"]), format_bytes(t["optimizer_bytes"]))
    if rest:
        weights, optimizer = (format_bytes(sum(t[key] for t in rest)) for key in ("weight_bytes", "optimizer_bytes"))
        table.add_row(f"{len(rest)} more", "", weights, optimizer)
    return table


def _wanted(question: PlanQuestion) -> list[dict[str, Any]]:
    return [
        {
            "name": table.name,
            "rows": table.num_embeddings,
            "width": table.embedding_dim,
            "strategy": None,
            "ranks": [],
            "weight_bytes": table_bytes(table, None),
            "optimizer_bytes": table_bytes(table, question.optimizer) - table_bytes(table, None),
            "pieces": [],
        }
        for table in question.tables
    ]


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
    """A line a rank: bytes, their share of what it is given, and a bar of its cost by part."""
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
    """All ranks where there are few; else the first ones, the last and those to be kept."""
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
    """What else could have been planned, and what it would cost beside the plan."""
    table = _plain("what was tried")
    table.add_column("plan", style="bold", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("fullest rank", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    best = min((a.plan.cost_ms for a in tried if a.plan), default=None)
    told: set[str] = set()
    for attempt in tried:
        if attempt.plan is None:
            why, colon, rest = attempt.why_not.partition(": ")
            what, more, advice = rest.partition(": ")
            table.add_row(
                attempt.name, "–", "–", Text(why + colon + what + (more + advice if advice not in told else ""), "dim")
            )
            told.add(advice)
            continue
        plan = attempt.plan
        notes = []
        if len({t.strategy for t in plan.tables}) > 1:
            kinds = [t.strategy for t in plan.tables]
            notes.append(", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))))
        if plan.cost_ms == best:
            notes.append("least cost")
        if isinstance(found, Plan) and plan.tables == found.tables:
            notes.append("the plan above")
        table.add_row(attempt.name, f"{plan.cost_ms:.3g}", format_bytes(plan.fullest.bytes), "; ".join(notes))
    return table


def _table_json(table: TablePlan) -> dict[str, Any]:
    return {
        "name": table.name,
        "rows": table.rows,
        "width": table.width,
        "strategy": table.strategy,
        "ranks": table.ranks,
        "weight_bytes": table.weight_bytes,
        "optimizer_bytes": table.optimizer_bytes,
        "pieces": [
            {"rank": p.rank, "offset": p.offset, "size": p.size, "bytes": p.bytes, "cost_ms": p.cost.total}
            for p in table.pieces
        ],
    }


def _rank_json(load: RankLoad) -> dict[str, Any]:
    return {
        "rank": load.rank,
        "weight_bytes": load.weight_bytes,
        "optimizer_bytes": load.optimizer_bytes,
        "exchange_bytes": load.exchange_bytes,
        "bytes": load.bytes,
        "cost_ms": load.cost._asdict() | {"total": load.cost.total},
    }
