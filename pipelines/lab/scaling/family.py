"""The members of a family: which teachers there are, and one pass of each over the rows."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from exfm.features.batch import BatchBuilder
from exfm.models.engine import TeacherEngine
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.planning.cost import flops_per_example, parameter_count
from exfm.parallel.planning.family import scaled_teacher, teacher_of_equal_flops
from pipelines.core.config.settings import Config
from pipelines.lab.rows import Rows

INTERACTIONS: tuple[str, ...] = ("wukong", "dlrm", "dcn")


class Member(NamedTuple):
    """A teacher of the family; `dial` is that of the Wukong whose FLOPs it has."""

    interaction: str
    dial: int
    model: TeacherConfig
    flops: int  # per example, forward
    dense_parameters: int
    table_parameters: int

    @property
    def name(self) -> str:
        return f"{self.interaction}-{self.dial}"


class Trial(NamedTuple):
    """One pass of a member over the rows, under one seed."""

    member: Member
    seed: int

    def __hash__(self) -> int:  # the options of an interaction, in the model, may not be hashable
        return hash(self.name)

    @property
    def name(self) -> str:
        return f"{self.member.name}, seed {self.seed}, rate {self.member.model.dense_lr:g}"


class Passed(NamedTuple):
    """What a pass left: logits (N, T) of every row before it was learned from, and how long learning took."""

    logits: np.ndarray
    seconds: float
    left_out: int  # rows of batches that were not finite, and not learned from


def members(config: Config, dials: Sequence[int], interactions: Sequence[str]) -> list[Member]:
    """By interaction, in order of size. Raises ConfigError where an interaction has no teacher of such FLOPs."""
    features, tasks = config.features, len(config.tasks)
    found = []
    for interaction in interactions:
        for dial in dials:
            like = scaled_teacher(config.teacher.model, dial)
            model = like if interaction == "wukong" else teacher_of_equal_flops(interaction, like, features, tasks)
            count = parameter_count(model, features, tasks)
            flops = flops_per_example(model, features, tasks)
            found.append(Member(interaction, dial, model, flops, count.dense, count.tables))
    return found


def part_path(folder: Path, trial: Trial, config: Config, rows: Rows) -> Path:
    """The file of a finished pass, named after everything that decides its result."""
    decisive = {
        "model": trial.member.model.model_dump(mode="json"),
        "features": config.features.model_dump(mode="json", exclude={"history"}),
        "tasks": config.tasks,
        "seed": trial.seed,
        "batches": config.teacher.batches,
        "rows": rows.name,
    }
    key = hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=6).hexdigest()
    return folder / "members" / f"{trial.member.name}-seed{trial.seed}-{key}.npz"


def one_pass(trial: Trial, config: Config, rows: Rows, advance: Callable[[int], None]) -> Passed:
    """Score every batch, then learn from it, in order: each row once. Batches are the same for every member."""
    full = config.teacher.batch_rows
    engine = TeacherEngine(Teacher(trial.member.model, config.features, config.tasks, trial.seed, full_batch=full))
    build = BatchBuilder(config.features, config.tasks)
    count = rows.table.num_rows
    logits = np.empty((count, len(config.tasks)), np.float32)
    seconds, left_out = 0.0, 0
    try:
        for start, end in pairwise([0, *config.teacher.batches.ends(0, count)]):
            batch = build(rows.table.slice(start, end - start))
            began = time.perf_counter()
            judged = engine.step(batch)
            seconds += time.perf_counter() - began
            logits[start:end] = judged.logits
            left_out += len(batch) - judged.finite_rows
            advance(end)
    finally:
        engine.close()
    return Passed(logits, seconds, left_out)
