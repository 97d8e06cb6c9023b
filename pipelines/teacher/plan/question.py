"""Planning question from a config, and a check whether this machine can run the answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal, cast, get_args

from exfm.errors import ConfigError
from exfm.parallel.layout import GB, Device
from exfm.parallel.planning.alternatives import attempt_strategies, find_remedies
from exfm.parallel.planning.placement import Plan, PlanQuestion, Shortage, find_plan, format_bytes
from pipelines.core.config.settings import Config
from pipelines.teacher.plan.report import Check, PlanReport

Part = Literal["teacher", "augmentation"]


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

    Raises ConfigError for an unknown device, or a limit that is not above zero.
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
