"""Report of a plan: as data, as one JSON object, and as the refusal of a plan that does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exfm.errors import ConfigError
from exfm.parallel.planner import Hardware
from exfm.parallel.planning.alternatives import Attempt, Remedy
from exfm.parallel.planning.placement import Plan, PlanQuestion, RankLoad, Shortage, TablePlan, format_bytes
from exfm.parallel.sharding import table_bytes


class Check(NamedTuple):
    """A check of this machine: `ok`, `warn` or `fail`."""

    status: str
    message: str


@dataclass
class PlanReport:
    """All results for a question. `name` is the config's."""

    name: str
    question: PlanQuestion
    found: Plan | Shortage
    tried: list[Attempt] = field(default_factory=list)
    remedies: list[Remedy] = field(default_factory=list)
    machine: list[Check] = field(default_factory=list)  # empty in a dry run
    unknown_bags: list[str] = field(
        default_factory=list
    )  # features of list columns whose length the settings do not give

    def refuse(self) -> None:
        """Raise ConfigError if the plan does not fit, or does not fit this machine."""
        if words := self.refusal():
            raise ConfigError(words)

    def refusal(self) -> str | None:
        """Explain the refusal of the plan in a paragraph; None if it fits."""
        broken = [check.message for check in self.machine if check.status == "fail"]
        if isinstance(self.found, Shortage):
            short, asked = self.found, self.question
            lines = [str(short)]
            if not short.reason:
                lines[0] += (
                    f"; cut {short.strategy} all tables need {format_bytes(short.total)}, and {asked.ranks} ranks of "
                    f"{asked.sharding.memory_gb:g} GB have {format_bytes(short.capacity)}"
                )
            lines.append(
                "what makes room, each checked by the planner:"
                if self.remedies
                else "nothing the planner tried makes room"
            )
            for number, remedy in enumerate(self.remedies, 1):
                settings = ", ".join(f"{path}={_yaml(value)}" for path, value in self.settings(remedy).items())
                lines.append(f"  {number}. {remedy.words}: {settings} (≤ {remedy.plan.cost_ms:.3g} ms)")
            return "\n".join([*lines, *broken])
        return "\n".join(broken) or None

    def settings(self, remedy: Remedy) -> dict[str, Any]:
        """Settings for the config that apply a remedy, by path."""
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
            "tables": [_table_json(table) for table in plan.tables] if plan else tables_to_place(asked, "tables"),
            "linear_part": _linear_json(asked, plan),
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


def _yaml(value: Any) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else "{}" if value == {} else f"{value:g}"


def tables_to_place(question: PlanQuestion, part: str) -> list[dict[str, Any]]:
    """Tables of one part of a question, with a plan's fields but without ranks; empty without such a part."""
    if part not in question.parts:
        return []
    tables, optimizer = question.parts[part].tables, question.parts[part].optimizer
    return [
        {
            "name": table.name,
            "rows": table.rows,
            "width": table.width,
            "strategy": None,
            "ranks": [],
            "weight_bytes": table_bytes(table, None),
            "optimizer_bytes": table_bytes(table, optimizer) - table_bytes(table, None),
            "pieces": [],
        }
        for table in tables
    ]


def _linear_json(question: PlanQuestion, plan: Plan | None) -> dict[str, Any] | None:
    """All tables of the linear part in one; None for a teacher without."""
    tables = [_table_json(table) for table in plan.linear] if plan else tables_to_place(question, "wide")
    if not tables:
        return None
    return {
        "rows": sum(table["rows"] for table in tables),
        "width": tables[0]["width"],
        "strategies": sorted({table["strategy"] for table in tables if table["strategy"]}),
        "ranks": sorted({rank for table in tables for rank in table["ranks"]}),
        "weight_bytes": sum(table["weight_bytes"] for table in tables),
        "optimizer_bytes": sum(table["optimizer_bytes"] for table in tables),
    }


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
