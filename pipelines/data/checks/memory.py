"""What a run takes of the machine's memory, roughly."""

from __future__ import annotations

from collections.abc import Iterator

from exfm.features.features import FeatureSet
from exfm.models.teacher_config import wide_columns
from pipelines.core.config.models import StudentSettings
from pipelines.core.config.settings import Config
from pipelines.data.profile.finding import Finding, stop, warn

GB = 1 << 30
LIBRARIES = GB
"""Torch and what comes with it: once, whatever number of processes is forked with them."""
FORKED = GB // 4
"""Of a worker's process, beside tables: what it does not share with the others."""
AROUND = GB * 3 // 2
"""Broker and Ray."""


def judge_memory(config: Config, have: int, *, local: bool) -> Iterator[Finding]:
    """`have`: bytes of this machine. Nothing is said of a cluster."""
    if config.resources.address is not None:
        return
    tables, processes = tables_bytes(config), 1 if local else worker_count(config)
    around = 0 if config.kafka.bootstrap_servers and local else AROUND
    own = around + (0 if local else processes * FORKED)
    takes = tables + LIBRARIES + own
    if takes <= have:
        return
    words = (
        f"about {_gb(takes)} are needed: {_gb(tables)} for tables and their optimizers, {_gb(LIBRARIES)} for "
        f"libraries, {_gb(own)} for {processes} process{'es' * (processes != 1)}, broker and Ray; this machine has "
        f"{_gb(have)}"
    )
    if tables > have:
        yield stop("resources", words, "give the largest tables fewer `rows`, or a smaller `width`")
    else:
        yield warn("resources", words, "fewer students, smaller tables, or --local: one process for all workers")


def worker_count(config: Config) -> int:
    ingest = config.source is not None
    return ingest + config.augmentation.ranks + config.teacher.ranks + len(config.students)


def tables_bytes(config: Config) -> int:
    """Weights and accumulators of the tables of the teacher, of the one that scores, and of students and their
    twins."""
    return teacher_bytes(config) + sum(student_bytes(config, student) for student in config.students)


def teacher_bytes(config: Config) -> int:
    """Of the one that learns and the one that scores; their linear parts have a weight and an accumulator per row and
    task, four at least."""
    model, features = config.teacher.model, config.teacher_features
    linear = wide_columns(len(config.tasks)) if model.wide else 0
    scoring = _bytes(features, model.width, accumulators=linear)
    accumulators = model.width if model.sparse_optimizer == "adagrad" else 1
    return scoring + _bytes(features, model.width, accumulators=accumulators + 2 * linear)


def student_bytes(config: Config, student: StudentSettings) -> int:
    """Of a student, and of its twin where it has one."""
    return (1 + student.twin) * _bytes(config.student_features(student), student.model.width, accumulators=1)


def _bytes(features: FeatureSet, width: int, *, accumulators: int) -> int:
    """fp32 weights, and so many accumulators a row."""
    tables = [(f.rows, f.width or width) for f in features.sparse] + [(f.rows, width) for f in features.sequence]
    return sum(4 * rows * (wide + accumulators) for rows, wide in tables)


def _gb(count: int) -> str:
    return f"{count / GB:,.1f} GB"
