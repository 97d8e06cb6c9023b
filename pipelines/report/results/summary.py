"""The results of a finished run: `summary.json`, from exact metrics over every prediction (figures.py)."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from exfm.distillation.arm import Arm
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.erasures import never_learned
from pipelines.core.run_dir.paths import RunDir
from pipelines.data.profile.column import ColumnProfile
from pipelines.live.status.counts import Absent, Counts, counts_of
from pipelines.live.status.losses import Losses, LossSeverity
from pipelines.live.status.status import RunStatus, WorkerStatus
from pipelines.live.training.predictions import count_predictions, read_predictions
from pipelines.live.workers.report import Report
from pipelines.report.cells import Cells
from pipelines.report.results.advice import lost_share, next_step
from pipelines.report.results.age import by_tenth
from pipelines.report.results.cells import summary_cells
from pipelines.report.results.columns_read import columns_read
from pipelines.report.results.figures import TaskFigures, columns_of, judge, no_rows
from pipelines.report.results.losses import LossEvidence, final_losses
from pipelines.report.results.lost_feedback import lost_feedback
from pipelines.report.results.verdict import interval_of
from streaming.errors import BadInput, StreamingError
from streaming.lake.erasure.holes import Holes
from streaming.lake.reader import LakeReader
from streaming.sources.synthetic.truth import Truth, load_truth
from streaming.store.files import read_json

FORMAT = 2
"""Format of summary.json."""

PACKAGES = ("torch", "torchrec", "ray", "pyarrow", "kafka-python", "mlflow", "deltalake", "numpy")


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of a run. `cluster_by`: the columns that intervals are clustered by; `group_by`: that of GAUC; `paused`:
    students that were not to continue when it ended."""

    name: str
    config_hash: str
    versions: Mapping[str, str]
    started_at: str
    wall_s: float
    legs: int
    pace: str
    seed: int
    source: str | None
    group_by: str | None
    cluster_by: Sequence[str]
    predicted: Literal["as learned"] = "as learned"
    paused: Annotated[Sequence[str], Absent] = ()
    arms: Mapping[str, Arm]


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """Work of one process of a worker of several; `cpu_s`: CPU seconds by phase."""

    rank: int
    rows: int
    peak_rss_bytes: int
    cpu_s: Annotated[Mapping[str, float], Absent] = field(default_factory=dict)


Known = Field(exclude_if=lambda value: value is None)
"""A field of workers that have it."""


@dataclass(frozen=True, kw_only=True)
class WorkerTotals:
    """Work of a worker since the run began; `rows_per_s` is the rate of this attempt, replayed rows included.

    Of a model: rows of the whole run whose labels it was given (a teacher: the lake's; a student: those with a
    prediction, those of other verticals where it learns their labels, and those that sampling left out), trained on,
    and left out because a logit, the loss or a gradient was not finite. `freshness`: see training/freshness.py.
    `cpu_s`: CPU seconds by phase, of all attempts and threads.
    """

    rows: int
    busy_s: float
    rows_per_s: float
    peak_rss_bytes: int
    restarts: int
    phases_s: Mapping[str, float]
    ranks: Annotated[Sequence[RankWork], Absent] = ()
    given_rows: Annotated[int | None, Known] = None
    trained_rows: Annotated[int | None, Known] = None
    quarantined_rows: Annotated[int | None, Known] = None
    quarantined_rows_no_teacher: Annotated[int | None, Known] = None
    left_out_by_sampling: Annotated[int | None, Known] = None
    other_rows: Annotated[int | None, Known] = None
    cpu_s: Annotated[Mapping[str, float], Absent] = field(default_factory=dict)
    freshness: Annotated[Mapping[str, Any] | None, Known] = None

    @property
    def holds(self) -> bool:
        """True if trained + quarantined + left out by sampling equals the rows given, or it trains nothing."""
        if self.trained_rows is None:
            return True
        rows = self.trained_rows + (self.quarantined_rows or 0) + (self.left_out_by_sampling or 0)
        return rows == self.given_rows


ReadColumn = Annotated[
    ColumnProfile,
    PlainValidator(ColumnProfile.from_json),
    PlainSerializer(lambda column: {"rows": column.rows, **column.as_json()}),
]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Results of a finished run; `students`: by student and task."""

    run: RunFacts
    counts: Counts
    workers: Mapping[str, WorkerTotals]
    students: Mapping[str, Mapping[str, TaskFigures]]
    columns: Sequence[ReadColumn]
    losses: Losses
    evidence: LossEvidence = field(default_factory=LossEvidence)

    @cached_property
    def cells(self) -> Cells:
        """The students' figures as one table."""
        return Cells(summary_cells(self.students))

    @property
    def next_step(self) -> str | None:
        """The most useful next step, in words."""
        return next_step(self.students, self.run.arms, lost_share(self.counts))

    def losses_under(self, config: Config) -> Losses:
        """Losses under the current limits of `config`."""
        return final_losses(self.counts, self.evidence, self.students, config)

    def as_json(self) -> dict[str, Any]:
        """All of summary.json."""
        value: dict[str, Any] = _JSON.dump_python(self)
        evidence = value.pop("evidence")
        return {"format": FORMAT} | value | {"cells": self.cells.as_json(), "losses": evidence | self.losses.as_json()}

    @staticmethod
    def from_json(value: Any) -> Summary:
        """The summary in a summary.json. Raises BadInput for another format, StreamingError for no summary."""
        try:
            if (stored := value["format"]) != FORMAT:
                raise BadInput(
                    f"it has format {stored}, this ExFM reads {FORMAT}; read it with the version that wrote it, or "
                    "start the run over with --fresh"
                )
            return _JSON.validate_python(value | {"evidence": value["losses"]})
        except (ValidationError, KeyError, TypeError):
            raise StreamingError("it is not a summary that exfm wrote; delete it: the run computes it again") from None


_JSON = TypeAdapter(Summary)


def final_metrics(task: str, figures: TaskFigures) -> dict[str, float]:
    """Final figures as MLflow metrics, of the window that is judged; none that is of too few rows."""
    half = figures.last_half
    flat: dict[str, float | None] = {"positives": half.positives}
    if half.too_few is None:
        flat |= {f"{model}/{name}": figure for model, of in half.models.items() for name, figure in asdict(of).items()}
        flat["transfer_ratio"] = half.transfer_ratio
    if (gain := interval_of(half.gain)) is not None:
        flat |= {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
    return {f"final/{task}/{name}": float(figure) for name, figure in flat.items() if figure is not None}


def students_of(config: Config, run_dir: RunDir, last_seq: int) -> dict[str, dict[str, TaskFigures]]:
    """The figures of every student. Two are worked out at once: a run's cores are free by then, and most of the time
    is numpy's sorting, which holds no lock of Python's."""
    truth = load_truth(run_dir.truth, config.tasks)
    with ThreadPoolExecutor(2) as pool:
        figures = pool.map(lambda student: _student(config, run_dir, student, truth, last_seq), config.students)
        return {student.name: each for student, each in zip(config.students, figures, strict=True)}


def _student(
    config: Config, run_dir: RunDir, student: StudentSettings, truth: Truth | None, last_seq: int
) -> dict[str, TaskFigures]:
    table = read_predictions(run_dir.predictions(student.name))
    models = ("student", *(["no_teacher"] if student.twin else []), "teacher")
    results = {}
    for task in config.student_tasks(student):
        columns = no_rows(models) if table is None else columns_of(table, task, truth)
        results[task] = TaskFigures(
            **vars(judge(columns)),
            rows_left_out=columns.left_out,
            last_half=judge(columns.after(last_seq // 2)),
            by_tenth=by_tenth(columns, last_seq + 1),
        )
    return results


def summarise(config: Config, run_dir: RunDir, status: RunStatus) -> Summary:
    """Results of a run whose workers are done."""
    reports = {name: worker.report for name, worker in status.workers.items() if worker.report is not None}
    counts, columns, evidence = _stream_account(config, run_dir, status)
    students = students_of(config, run_dir, counts.lake_rows - 1)
    labelled_rows = _given_rows(config, run_dir, reports, counts.lake_rows)
    losses = final_losses(counts, evidence, students, config)
    if losses.severity is not LossSeverity.FINE and config.follows is None:
        evidence = replace(evidence, feedback=lost_feedback(config, run_dir))
        losses = final_losses(counts, evidence, students, config)
    return Summary(
        run=RunFacts(
            name=config.name,
            config_hash=config.hash,
            versions={"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
            started_at=status.started_at,
            wall_s=round(status.wall_s, 3),
            legs=status.attempts,
            pace=config.pace.mode,
            seed=config.seed,
            source=None if config.source is None else config.source.kind,
            group_by=config.metrics.group_by,
            cluster_by=config.metrics.clusters,
            paused=sorted(run_dir.roster.paused),
            arms={student.name: student.model.arm for student in config.students},
        ),
        counts=counts,
        workers={
            name: _worker(worker, labelled_rows.get(name)) for name, worker in status.workers.items() if worker.whole
        },
        students=students,
        columns=columns,
        losses=losses,
        evidence=evidence,
    )


class StreamAccount(NamedTuple):
    """Account of a stream's rows: counts, the lake's columns, and evidence of losses."""

    counts: Counts
    columns: Sequence[ColumnProfile]
    evidence: LossEvidence


def _stream_account(config: Config, run_dir: RunDir, status: RunStatus) -> StreamAccount:
    """Account of the stream that the run has read; of a lake that it follows, that of the run which wrote it."""
    if config.follows is not None:
        theirs = Summary.from_json(read_json(run_dir.leader.summary))
        return StreamAccount(theirs.counts, theirs.columns, theirs.evidence)
    (writer,) = (worker.report for worker in status.workers.values() if worker.kind.writes_lake)
    assert writer is not None
    counters = writer.counts or {}
    evidence = LossEvidence(counters["dead_letter_examples"], (), counters.get("unmet_conditions", {}))
    counts = replace(counts_of(counters), erased=Holes.of(run_dir.side_tables).rows)
    return StreamAccount(counts, _columns(config, run_dir, counters), evidence)


def _columns(config: Config, run_dir: RunDir, counters: Mapping[str, Any]) -> list[ColumnProfile]:
    """Profile of every column of the lake; empty for one that cannot be read, which its writer names."""
    try:
        return columns_read(LakeReader(run_dir.lake, config.rows), counters["dead_letters"]["impression"])
    except StreamingError:
        return []


def _given_rows(config: Config, run_dir: RunDir, reports: Mapping[str, Report], lake_rows: int) -> dict[str, int]:
    """Count of the rows that gave labels to each model, as far as the run's files say: a teacher those of the lake, a
    student those with a prediction, and those of other verticals where it learns their labels."""
    labelled_rows = {"teacher": lake_rows - never_learned(run_dir, "teacher")}
    for student in config.students:
        name = f"student-{student.name}"
        labelled_rows[name] = count_predictions(run_dir.predictions(student.name))
        if student.label_rows == "all" and (report := reports.get(name)) is not None:
            labelled_rows[name] += (report.counts or {}).get("other_rows", 0)
    return labelled_rows


def _worker(worker: WorkerStatus, labelled_rows: int | None) -> WorkerTotals:
    """Totals of a worker; `labelled_rows` gave labels to it, if it is a model's."""
    rows, busy_s = sum(r.rows for r in worker.whole), sum(r.busy_s for r in worker.whole)
    counts = {} if labelled_rows is None or worker.report is None else worker.report.counts or {}
    given_rows = None if labelled_rows is None else labelled_rows + counts.get("left_out_by_sampling", 0)
    return WorkerTotals(
        rows=worker.rows,
        busy_s=round(worker.busy_s, 3),
        rows_per_s=round(rows / busy_s, 1) if busy_s else 0.0,
        peak_rss_bytes=worker.peak_rss_bytes,
        restarts=worker.all_restarts,
        phases_s={phase: round(s, 3) for phase, s in worker.phases_s.items()},
        ranks=_ranks(worker.whole),
        given_rows=given_rows,
        trained_rows=counts.get("trained_rows"),
        quarantined_rows=counts.get("quarantined_rows"),
        quarantined_rows_no_teacher=counts.get("quarantined_rows_no_teacher"),
        left_out_by_sampling=counts.get("left_out_by_sampling"),
        other_rows=counts.get("other_rows"),
        cpu_s={phase: round(s, 3) for phase, s in worker.cpu_s.items()},
        freshness=None if worker.report is None else worker.report.freshness,
    )


def _ranks(whole: list[Report]) -> list[RankWork]:
    """Rows, peak memory and CPU seconds of each rank since the coordinator last started; empty for a single process."""
    ranks = sorted({rank.rank for report in whole for rank in report.ranks})
    each = {n: [rank for report in whole for rank in report.ranks if rank.rank == n] for n in ranks}
    return [
        RankWork(
            rank=n,
            rows=sum(r.rows for r in of),
            peak_rss_bytes=max(r.peak_rss_bytes for r in of),
            cpu_s={
                phase: round(sum(r.cpu_s.get(phase, 0.0) for r in of), 3)
                for phase in dict.fromkeys(phase for r in of for phase in r.cpu_s)
            },
        )
        for n, of in each.items()
    ]
