"""Planning question from a config, and a check whether this machine can run the answer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, cast, get_args

import torch

from exfm.embeddings.composed import check_device
from exfm.embeddings.kinds.registry import tables_of
from exfm.errors import ConfigError
from exfm.parallel.layout import GB, Device
from exfm.parallel.planning.alternatives import attempt_strategies, find_remedies
from exfm.parallel.planning.cost import flops_per_example
from exfm.parallel.planning.family import teacher_of_budget
from exfm.parallel.planning.placement import Plan, PlanQuestion, Shortage, find_plan, format_bytes
from pipelines.core.config.settings import Config
from pipelines.teacher.plan.report import Check, PlanReport

Part = Literal["teacher", "augmentation"]
MOST_TIMES = 64


class TeacherBudget(NamedTuple):
    """A config whose teacher costs a multiple of its FLOPs. `changes`: what makes the difference, by setting of
    `teacher.model`; FLOPs are of one row's forward pass, without the linear part."""

    config: Config
    changes: dict[str, Any]
    flops_before: int
    flops: int

    def as_json(self) -> dict[str, Any]:
        return {"changes": self.changes, "flops_before": self.flops_before, "flops": self.flops}

    def words(self) -> str:
        settings = ", ".join(f"{name}: {list(v) if isinstance(v, tuple) else v}" for name, v in self.changes.items())
        return (
            f"a teacher of {self.flops / self.flops_before:.3g} × the FLOPs: {self.flops:,} a row instead of "
            f"{self.flops_before:,}; training takes three times as many\n"
            f"  teacher.model: {{{settings}}}\n"
            "Larger is not better by itself; measure it: exfm scale CONFIG --fit"
        )


def with_teacher_budget(config: Config, budget: str) -> TeacherBudget:
    """Grow a config's teacher to `budget` times its FLOPs, as `exfm scale` does: layers first, then everything.

    Raises ConfigError for a budget that is none, or a teacher that is no Wukong.
    """
    written = re.fullmatch(r"(\d+(?:\.\d+)?)x", budget)
    if written is None or not 1 <= float(written[1]) <= MOST_TIMES:
        raise ConfigError(f"--teacher-budget {budget}: give 1x to {MOST_TIMES}x the config's FLOPs, such as 4x")
    before, features, tasks = config.teacher.model, config.teacher_features, len(config.tasks)
    model = teacher_of_budget(before, float(written[1]), features, tasks)
    return TeacherBudget(
        config.model_copy(update={"teacher": config.teacher.model_copy(update={"model": model})}),
        {name: value for name, value in model if value != getattr(before, name)},
        flops_per_example(before, features, tasks),
        flops_per_example(model, features, tasks),
    )


def question_of(
    config: Config,
    part: Part = "teacher",
    *,
    ranks: int | None = None,
    ranks_per_host: int | None = None,
    memory_gb: float | None = None,
    device: str | None = None,
) -> PlanQuestion:
    """Planning question for the teacher of a config, in training or as it scores in augmentation. Without further
    arguments it is spread as the config says.

    Raises ConfigError for an unknown device, one that cannot hold the tables, or a limit that is not above zero.
    """
    if device is not None and device not in get_args(Device):
        raise ConfigError(f"unknown device `{device}`; known devices: {', '.join(get_args(Device))}")
    if memory_gb is not None and memory_gb <= 0:
        raise ConfigError(f"--memory-gb is {memory_gb:g}; give each rank more than 0")
    learns = part == "teacher"
    section = config.teacher if learns else config.augmentation
    question = PlanQuestion(
        config.teacher_features,
        config.teacher.model,
        section.sharding,
        ranks or section.ranks,
        cast(Device, device or "cpu"),
        config.teacher.batch_rows if learns else config.augmentation.score_rows,
        config.tasks,
        learns,
    )
    with torch.device("meta"):
        tables = tables_of(question.features, question.teacher.width, question.teacher.embeddings)
    check_device(tables, question.device)
    given: dict[str, Any] = {"ranks_per_host": ranks_per_host, "memory_gb": memory_gb}
    changes = {name: value for name, value in given.items() if value is not None}
    return question.sharded(**changes) if changes else question


def ask(config: Config, question: PlanQuestion, *, look_around: bool, memory_here: int | None) -> PlanReport:
    """Make a plan. `look_around` tries other strategies too; `memory_here`, this machine's bytes, adds checks."""
    found = find_plan(question)
    report = PlanReport(config.name, question, found, unknown_bags=unknown_bags(config, question))
    if look_around:
        report.tried = list(attempt_strategies(question))
    if isinstance(found, Shortage):
        report.remedies = list(find_remedies(question))
    if memory_here is not None:
        report.machine = list(here(config, question, found, memory_here))
    return report


def unknown_bags(config: Config, question: PlanQuestion) -> list[str]:
    """Features that look up the ids of a list, where the sharding settings do not say how many a row has."""
    lists = {column.name for column in config.rows.columns if column.type.startswith("list")}
    return [
        feature.name
        for feature in config.features.sparse
        if lists & set(feature.reads) and feature.name not in question.sharding.ids_per_row
    ]


def here(config: Config, question: PlanQuestion, found: Plan | Shortage, memory: int) -> Iterator[Check]:
    """Check whether this machine has enough memory and cores for the ranks, and the examples topic a partition for
    each."""
    ranks, partitions = question.ranks, config.kafka.examples.partitions
    if not question.learns:
        pass  # rank 0 alone reads, and hands rows out
    elif ranks > partitions:
        yield Check(
            "fail",
            f"{ranks} ranks need one partition of the examples topic each; it has {partitions}. Set "
            f"kafka.examples.partitions={ranks}",
        )
    elif partitions % ranks:
        yield Check(
            "warn", f"{partitions} partitions do not divide among {ranks} ranks: some learn more rows than others"
        )
    else:
        yield Check("ok", f"{partitions} partitions of the examples topic for {ranks} ranks")
    threads, cores = config.resources.threads, len(os.sched_getaffinity(0))
    words = f"{ranks} ranks × {threads} thread{'s' * (threads > 1)} on {cores} cores"
    if ranks * threads > cores and question.device == "cpu":
        yield Check("warn", f"{words}: they take turns, and a step takes longer than predicted")
    else:
        yield Check("ok", words)
    yield _memory(config, question, found, memory)


def _memory(config: Config, question: PlanQuestion, found: Plan | Shortage, have: int) -> Check:
    if config.resources.address is not None:
        return Check("ok", f"the ranks run on the cluster at {config.resources.address}, whose memory is not checked")
    tables = sum(load.bytes for load in found.ranks) if isinstance(found, Plan) else found.total
    takes = tables + question.ranks * question.dense_bytes
    limit = question.sharding.memory_gb
    if takes > have:
        return Check(
            "fail",
            f"{question.ranks} ranks take {format_bytes(takes)}, this machine has {format_bytes(have)}: "
            "use more machines",
        )
    if limit is not None and question.ranks * limit * GB > have:
        asked = f"{question.ranks} ranks × {limit:g} GB = {format_bytes(question.ranks * limit * GB)}"
        return Check(
            "warn",
            f"the limits add up to {asked}, this machine has {format_bytes(have)}; the plan takes "
            f"{format_bytes(takes)}",
        )
    return Check("ok", f"{question.ranks} ranks take {format_bytes(takes)} of this machine's {format_bytes(have)}")
