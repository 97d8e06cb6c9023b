"""Estimate of a spawn before it is requested: rows, memory, time."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from exfm.baselines.hashed_linear import SLOTS
from exfm.features.batch import snapshot_age
from exfm.features.sparse import SequenceFeature, SparseFeature
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.worker_spec import WorkerSpec, worker_specs
from pipelines.live.status.stored import StoredStatus, StoredWorker
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader

PROCESS_BYTES = 1_000_000_000
"""Of a student's process before it holds a model, nearly all of it libraries."""
COPIES = 3
"""Of a model that learns: itself, its state on its way to the disk, and what is exported of it."""
MB = 1_000_000


@dataclass(frozen=True)
class BackfillEstimate:
    """The rows, memory and time of a student's backfill.

    rows             that it would learn of what is in the lake now
    of               rows in the lake, from its first one on
    labels           by task: rows whose label is known, and those with label 1
    without_logit    by task: rows with a label and no teacher logit
    logit_age_rows   median rows between a row and the snapshot that scored it; None: no row has a logit
    bytes            of the files that hold its rows
    memory_bytes     that it takes, with its process where it needs one of its own
    rows_per_s       at which it would learn, from what students of this run did; None where none has worked
    """

    name: str
    first_seq: int
    last_seq: int
    rows: int
    of: int
    labels: dict[str, tuple[int, int]]
    without_logit: dict[str, int]
    logit_age_rows: int | None
    bytes: int
    memory_bytes: int
    rows_per_s: float | None

    @property
    def minutes(self) -> float | None:
        return None if self.rows_per_s is None else self.rows / self.rows_per_s / 60

    @property
    def lines(self) -> list[str]:
        span = f"lake_seq {self.first_seq:,} to {self.last_seq:,}" if self.of else "no row of the lake"
        found = [f"rows      {self.rows:,} of {self.of:,} ({span}), from files of {self.bytes / MB:,.1f} MB"]
        for task, (known, positives) in self.labels.items():
            missing = self.without_logit[task]
            logits = f"{missing:,} without a teacher logit" if missing else "all with a teacher logit"
            found.append(f"{task:<9} {known:,} labels, {positives:,} positives; {logits}")
        if self.logit_age_rows is not None:
            found.append(f"logits    of snapshots that had learned up to {self.logit_age_rows:,} rows before (median)")
        if self.minutes is not None:
            lasts = f"{self.minutes:.1f} min" if self.minutes >= 1 else f"{self.minutes * 60:.0f} s"
            found.append(f"time      about {lasts}, at {self.rows_per_s:,.0f} rows/s as students here")
        else:
            found.append("time      not known: no student of this run has worked yet")
        return [*found, f"memory    {self.memory_bytes / MB:,.0f} MB, of which tables and optimizer are a part"]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "rows": self.rows, "of": self.of, "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "labels": {task: {"known": count, "positives": ones} for task, (count, ones) in self.labels.items()},
            "without_logit": self.without_logit, "logit_age_rows": self.logit_age_rows, "bytes": self.bytes,
            "memory_bytes": self.memory_bytes, "minutes": self.minutes,
        }  # fmt: skip


def estimate_backfill(
    config: Config, student: StudentSettings, lake: LakeReader, status: StoredStatus | None
) -> BackfillEstimate:
    """`config` has the student already; `status`: the run's last status.json. Reads the few columns of the lake that
    are needed, a window at a time."""
    tasks, own = config.student_tasks(student), config.own_rows(student)
    wanted = config.settled_for(student)
    columns = ["lake_seq", "block", "teacher_version"]
    columns += [f"{kind}_{task}" for task in tasks for kind in ("label", "teacher_logit")]
    counts = _Counts(tasks)
    after = student.first_seq - 1
    while after < lake.last_lake_seq:
        read = lake.read(
            after,
            limit_rows=lake.chunk_rows,
            columns=columns,
            verticals=set(own.verticals) or None,
            filter=wanted if own.condition is None else wanted & own.condition,
        )
        after = read.complete_upto
        counts.add(read.table)
    return BackfillEstimate(
        name=student.name,
        first_seq=student.first_seq,
        last_seq=lake.last_lake_seq,
        rows=counts.rows,
        of=max(0, lake.last_lake_seq + 1 - student.first_seq),
        labels={task: (counts.known[task], counts.positives[task]) for task in tasks},
        without_logit=counts.without_logit,
        logit_age_rows=counts.logit_age_rows,
        bytes=lake.size(after=student.first_seq - 1, verticals=set(own.verticals) or None),
        memory_bytes=COPIES * student.ranks * student_bytes(config, student)
        + (0 if student.ranks == 1 and _shared_host_has_room(config, status) else student.ranks * PROCESS_BYTES),
        rows_per_s=_rows_per_s(status),
    )


class _Counts:
    """Counts of the rows that a backfill reads, table by table; fields as in `BackfillEstimate`."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._tasks = tasks
        self.rows = 0
        self.known, self.positives, self.without_logit = (dict.fromkeys(tasks, 0) for _ in range(3))
        self._ages: list[np.ndarray] = []

    def add(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        for task in self._tasks:
            label, logit = table[f"label_{task}"], table[f"teacher_logit_{task}"]
            self.known[task] += label.length() - label.null_count
            self.positives[task] += pc.sum(label).as_py() or 0
            self.without_logit[task] += pc.sum(pc.and_(label.is_valid(), logit.is_null())).as_py() or 0
        scored = table.filter(table["teacher_version"].is_valid())
        self._ages.append(snapshot_age(*(scored[name].to_numpy() for name in ("lake_seq", "block", "teacher_version"))))

    @property
    def logit_age_rows(self) -> int | None:
        ages = np.concatenate([np.zeros(0), *self._ages])
        return int(np.median(ages)) if len(ages) else None


def require_room(config: Config, estimate: BackfillEstimate, run_dir: RunDir) -> None:
    """Raise BadInput if this machine has too little memory, or too few cores, for the run with its new student.
    `config` has the student; those that are paused take nothing."""
    if config.resources.address is not None:
        return  # a cluster: Ray knows what its nodes have
    free = psutil.virtual_memory().available
    if estimate.memory_bytes > free:
        raise BadInput(
            f"`{estimate.name}` needs {estimate.memory_bytes / MB:,.0f} MB, and {free / MB:,.0f} MB of memory are "
            "free; pause or retire a student, or give this one smaller tables (--set, --model)"
        )
    paused = {STUDENT + name for name in run_dir.roster.paused - {estimate.name}}
    processes = processes_of(
        config, [job for job in worker_specs(config, run_dir, "", False) if job.name not in paused]
    )
    each, cores = config.resources.cpus_per_worker, os.cpu_count() or 1
    if (asked := processes * each) > cores + 1e-9:
        raise BadInput(
            f"with `{estimate.name}` there are {processes} processes, which ask for {asked:.1f} cores "
            f"(resources.cpus_per_worker is {each:g}), and this machine has {cores}; pause or retire a student, or "
            "start the run again with a smaller resources.cpus_per_worker"
        )


def processes_of(config: Config, jobs: Sequence[WorkerSpec]) -> int:
    """Number of processes for these workers: one for each rank, and as few as possible for those that share."""
    sharing = sum(job.host is not None for job in jobs)
    own = sum(job.ranks for job in jobs if job.host is None)
    return own + math.ceil(sharing / config.resources.students_per_host)


def _students(status: StoredStatus | None) -> list[StoredWorker]:
    return [] if status is None else [w for name, w in status.workers.items() if name.startswith(STUDENT)]


def _shared_host_has_room(config: Config, status: StoredStatus | None) -> bool:
    """True if one of the processes that students share has a free slot."""
    students = _students(status)
    pids = [w.pid for w in students if w.pid is not None and w.state not in ("retired", "failed")]
    return len(pids) < len(set(pids)) * config.resources.students_per_host


def student_bytes(config: Config, student: StudentSettings) -> int:
    """Bytes of a student's tables and their optimizer, with its twin's, in each of its ranks."""
    features, width = config.student_features(student), student.model.width
    tables: list[SparseFeature | SequenceFeature] = [*features.sparse, *features.sequence]
    table_rows = sum(table.rows * ((getattr(table, "width", None) or width) + 1) for table in tables)
    linear = SLOTS * 2 * len(config.student_tasks(student)) if student.model.wide else 0
    return 4 * (table_rows + linear) * (2 if student.twin else 1)


def _rows_per_s(status: StoredStatus | None) -> float | None:
    """Rows that this run's students learned in a second of work, all together."""
    rows, busy_s = sum(w.rows for w in _students(status)), sum(w.busy_s for w in _students(status))
    return rows / busy_s if busy_s > 1.0 and rows else None
