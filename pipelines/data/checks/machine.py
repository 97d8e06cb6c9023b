"""Rules of machines: memory, a compiler and instructions that a config asks of this one, and what those of a cluster
need. Each of a cluster's machines is looked at when a run starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from exfm.features.features import FeatureSet
from exfm.kernels.machine_code import has_compiler
from exfm.machine import CPUINFO, multiplies_bf16
from exfm.models.teacher_config import wide_columns
from pipelines.core.config.sections import Recorded
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.data.findings import Finding, Rules, Severity
from streaming.asof.features import AsOfState

RULES = Rules("""
warn|stop  machine.memory  resources
    about {takes} are needed: {tables} for tables and their optimizers, {libraries} for libraries, {own} for
    {processes}, broker, Ray and as-of features; this machine has {have}
    -> {remedy}
stop  machine.compiler  teacher.model.compile
    it needs a C++ compiler, and there is none
    -> install g++, or leave it out
warn  machine.bf16  teacher.model.precision
    bf16 is asked for, and this processor has no instructions for it (avx512_bf16 or amx_bf16): it is emulated, and a
    teacher's step was 18 × slower so than in fp32
    -> leave it out (fp32), unless the teacher will run elsewhere
warn  cluster.broker  kafka.bootstrap_servers
    workers will be on the machines of Ray at {address}, and the broker is at {servers}, which is this machine alone
    -> give an address that all of them reach; on one machine that is all right
note  cluster.files  {setting}
    every machine of Ray at {address} reads {path}: each needs it there, and the run directory at one path
""")

GB = 1 << 30
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LIBRARIES = GB
"""Torch and what comes with it: once, whatever number of processes is forked with them."""
FORKED = GB // 4
"""A worker's own memory beside tables: what it does not share with the others."""
AROUND = GB * 3 // 2
"""Broker and Ray."""


def judge_memory(config: Config, have: int, *, local: bool) -> Iterator[Finding]:
    """Compare the estimate with `have`, the bytes of this machine."""
    if config.resources.address is not None:
        return
    tables, processes = tables_bytes(config), 1 if local else worker_count(config)
    around = 0 if config.kafka.bootstrap_servers and local else AROUND
    own = around + (0 if local else processes * FORKED) + asof_bytes(config)
    takes = tables + LIBRARIES + own
    if takes <= have:
        return
    sizes = {"takes": takes, "tables": tables, "libraries": LIBRARIES, "own": own, "have": have}
    severity, remedy = Severity.WARN, "fewer students, smaller tables, or --local: one process for all workers"
    if tables > have:
        severity, remedy = Severity.STOP, "give the largest tables fewer `rows`, or a smaller `width`"
    words = f"{processes} process{'es' * (processes != 1)}"
    gigabytes = {name: f"{count / GB:,.1f} GB" for name, count in sizes.items()}
    yield RULES("machine.memory", severity, **gigabytes, processes=words, remedy=remedy)


def asof_bytes(config: Config) -> int:
    """Bytes of the as-of features where every table holds as many keys as it may (`asof.max_keys`)."""
    asof = config.rows.asof
    if config.follows is not None:
        return 0
    return asof.max_keys * sum(AsOfState(config.rows).bytes_per_key.values()) if asof.features else 0


def worker_count(config: Config) -> int:
    students = sum(student.ranks for student in config.students)
    if config.follows is not None:
        return students
    return config.plays + config.augmentation.processes + config.teacher.ranks + students


def tables_bytes(config: Config) -> int:
    """Bytes of the tables of the teacher, the scoring teacher, the students and their twins, with accumulators."""
    teacher = teacher_bytes(config) if config.follows is None else 0
    return teacher + sum(student_bytes(config, student) for student in config.students)


def teacher_bytes(config: Config) -> int:
    """Bytes of the teacher that learns and the one that scores; their linear parts have a weight and an accumulator per
    row and task, four at least."""
    model, features = config.teacher.model, config.teacher_features
    linear = wide_columns(len(config.tasks)) if model.wide else 0
    scoring = _bytes(features, model.width, accumulators=linear)
    accumulators = model.width if model.sparse_optimizer == "adagrad" else 1
    return scoring + _bytes(features, model.width, accumulators=accumulators + 2 * linear)


def student_bytes(config: Config, student: StudentSettings) -> int:
    """Bytes of a student, and of its twin where it has one, in all of its ranks."""
    return (
        student.ranks
        * (1 + student.twin)
        * _bytes(config.student_features(student), student.model.width, accumulators=1)
    )


def _bytes(features: FeatureSet, width: int, *, accumulators: int) -> int:
    """fp32 weights, and so many accumulators a row."""
    tables = [(f.rows, f.width or width) for f in features.sparse] + [(f.rows, width) for f in features.sequence]
    return sum(4 * rows * (wide + accumulators) for rows, wide in tables)


def judge_compiler(config: Config) -> Iterator[Finding]:
    if (
        config.follows is None
        and config.teacher.model.compile
        and config.resources.address is None
        and not has_compiler()
    ):
        yield RULES("machine.compiler")


def judge_cluster(config: Config) -> Iterator[Finding]:
    """Lacks of a cluster's machines by the config alone."""
    address, source = config.resources.address, config.source
    if address is None:
        return
    if config.follows is None:
        servers = config.kafka.bootstrap_servers
        if servers is None or all(host in LOOPBACK for host, _ in config.kafka.addresses):
            yield RULES("cluster.broker", address=address, servers=servers or "127.0.0.1 (the embedded one)")
    if isinstance(source, Recorded):
        yield RULES("cluster.files", setting="source.path", address=address, path=source.path)


def judge_precision(config: Config, cpuinfo: Path = CPUINFO) -> Iterator[Finding]:
    """A note on bf16 where the processor multiplies none; nothing where its flags are not known."""
    if config.follows is not None or config.teacher.model.precision != "bf16" or config.resources.address is not None:
        return
    if not multiplies_bf16(cpuinfo):
        yield RULES("machine.bf16")
