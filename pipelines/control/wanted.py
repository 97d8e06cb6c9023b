"""The workers that a config asks for, and how each is built in the process that will run it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr

from pipelines.config import STUDENT, Config, parse
from pipelines.launch import Build
from pipelines.rules import Kind
from pipelines.run_dir import RunDir
from pipelines.workers import Rendezvous, Worker

STUDENTS = "students"
"""The kind of host that students share."""


class Wanted(NamedTuple):
    """A worker that is to run, how it is built, how many processes hold it, and in what kind of host it may share
    one."""

    name: str
    kind: Kind
    build: Build
    ranks: int = 1
    host: str | None = None


def wanted_of(config: Config, run_dir: RunDir, servers: str, until_end: bool) -> list[Wanted]:
    """Every worker of a run."""
    text, root = json.dumps(config.model_dump(mode="json")), str(run_dir.root.absolute())

    def wanted(kind: Kind, name: str, ranks: int = 1, host: str | None = None) -> Wanted:
        student = name.removeprefix(STUDENT)
        build = partial(build_worker, kind, student, text, root, servers, until_end, config.kafka.given)
        return Wanted(name, kind, build, ranks, host)

    host = STUDENTS if config.resources.students_per_host > 1 else None
    return [
        *([wanted(Kind.INGEST, "ingest")] if config.source is not None else []),
        wanted(Kind.AUGMENTATION, "augmentation", config.augmentation.ranks),
        wanted(Kind.TEACHER, "teacher", config.teacher.ranks),
        *(wanted(Kind.STUDENT, STUDENT + student.name, host=host) for student in config.students),
    ]


def build_worker(
    kind: Kind,
    student: str,
    config_json: str,
    root: str,
    servers: str,
    until_end: bool,
    passwords: Mapping[str, SecretStr],
    rendezvous: Rendezvous,
) -> Worker:
    """Make a worker, or one rank of it, in the process that will run it. What is passed is plain text and numbers, so
    that any process can be reached; the config as JSON, which is read in a hundredth of the time that YAML takes; and
    `passwords`, which no text of a config holds."""
    config = parse(json.loads(config_json), f"{root}/config.yaml")
    known = {"bootstrap_servers": servers, "security": {**config.kafka.security, **passwords}}
    config = config.model_copy(update={"kafka": config.kafka.model_copy(update=known)})
    run_dir = RunDir(Path(root))
    if kind is Kind.INGEST:
        from pipelines.workers import IngestWorker

        return IngestWorker(config, run_dir)
    if kind is Kind.AUGMENTATION and rendezvous.rank:
        from pipelines.workers.augmentation import ScoringWorker

        return ScoringWorker(config, run_dir, rendezvous)
    if kind is Kind.AUGMENTATION:
        from pipelines.workers.augmentation import AugmentationWorker

        return AugmentationWorker(config, run_dir, until_end=until_end, at=rendezvous)
    if kind is Kind.TEACHER:
        from pipelines.workers.teacher import TeacherWorker

        return TeacherWorker(config, run_dir, rendezvous)
    from pipelines.workers.student import StudentWorker

    return StudentWorker(config, config.student(student), run_dir)
