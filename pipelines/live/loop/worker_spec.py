"""Worker specs: the workers that a config implies, and how each is built in its own process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr

from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.host import Build
from pipelines.live.rules.kinds import Kind
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.worker import Worker

STUDENTS = "students"
"""The kind of host that students share."""


class WorkerSpec(NamedTuple):
    """Spec of a worker: how it is built, its number of processes, and the kind of host it may share."""

    name: str
    kind: Kind
    build: Build
    ranks: int = 1
    host: str | None = None


def worker_specs(config: Config, run_dir: RunDir, servers: str, until_end: bool) -> list[WorkerSpec]:
    """Specs of all workers of a run; one that follows another's lake has those whose kind `follows`."""
    config_json, root = json.dumps(config.model_dump(mode="json")), str(run_dir.root.absolute())

    def wanted(kind: Kind, name: str, ranks: int = 1, host: str | None = None) -> WorkerSpec:
        build = WorkerBuilder(kind, name, config_json, root, servers, until_end, config.kafka.given)
        return WorkerSpec(name, kind, build, ranks, host)

    host = STUDENTS if config.resources.students_per_host > 1 else None
    specs = [
        *([wanted(Kind.INGEST, "ingest")] if config.plays else []),
        wanted(Kind.AUGMENTATION, "augmentation", config.augmentation.processes),
        wanted(Kind.TEACHER, "teacher", config.teacher.ranks),
        *(wanted(Kind.FURTHER_TEACHER, f"teacher-{each.name}") for each in config.teachers),
        *(
            wanted(Kind.STUDENT, STUDENT + student.name, student.ranks, host if student.ranks == 1 else None)
            for student in config.students
        ),
    ]
    return specs if config.follows is None else [spec for spec in specs if spec.kind.follows]


@dataclass(frozen=True)
class WorkerBuilder:
    """Recipe of a worker, or one rank of it, executed in the worker's process.

    Its fields are plain text and numbers, so that any process can be reached. The config is JSON, which is read in a
    hundredth of the time that YAML takes; no text of it holds the `passwords`.
    """

    kind: Kind
    name: str
    config_json: str
    root: str
    servers: str
    until_end: bool
    passwords: Mapping[str, SecretStr]

    def __call__(self, rendezvous: Rendezvous) -> Worker:
        config, run_dir = self._config(), RunDir(Path(self.root))
        if self.kind is Kind.INGEST:
            from pipelines.live.workers.ingest import IngestWorker

            return IngestWorker(config, run_dir)
        if self.kind is Kind.AUGMENTATION and rendezvous.rank and config.augmentation.workers > 1:
            from pipelines.live.workers.augmentation.shards import ShardWorker

            return ShardWorker(config, run_dir, rendezvous, until_end=self.until_end)
        if self.kind is Kind.AUGMENTATION and rendezvous.rank:
            from pipelines.live.workers.augmentation.scoring import ScoringWorker

            return ScoringWorker(config, run_dir, rendezvous)
        if self.kind is Kind.AUGMENTATION:
            from pipelines.live.workers.augmentation.worker import AugmentationWorker

            return AugmentationWorker(config, run_dir, until_end=self.until_end, at=rendezvous)
        if self.kind is Kind.TEACHER:
            from pipelines.live.workers.teacher.worker import TeacherWorker

            return TeacherWorker(config, run_dir, rendezvous)
        if self.kind is Kind.FURTHER_TEACHER:
            from pipelines.live.workers.teacher.further import FurtherTeacherWorker

            settings = next(each for each in config.teachers if f"teacher-{each.name}" == self.name)
            return FurtherTeacherWorker(config, settings, run_dir)
        student = config.student(self.name.removeprefix(STUDENT))
        if rendezvous.rank:
            from pipelines.live.workers.student.further_rank import StudentRank

            return StudentRank(config, student, run_dir, rendezvous)
        from pipelines.live.workers.student.worker import StudentWorker

        return StudentWorker(config, student, run_dir, rendezvous)

    def _config(self) -> Config:
        config = parse(json.loads(self.config_json), f"{self.root}/config.yaml")
        known = {"bootstrap_servers": self.servers, "security": {**config.kafka.security, **self.passwords}}
        return config.model_copy(update={"kafka": config.kafka.model_copy(update=known)})
