"""Terms of a run's cost, and their rates: CPU seconds of one event, bytes of one row.

    cores of a term = events a second · CPU seconds of an event

A run's summary.json has CPU seconds by worker and phase. A term sums some phases of a worker, over the number of events
of its kind. A term of a model is a multiple of the seconds that its engine alone takes for a model of that size, so
that it carries over to other sizes:

    seconds a row of the engine = steps · (step_s / B + value_s · V) + flop_s · F

with B rows a step, F FLOPs a row (exfm/parallel/planning/cost.py, as `exfm plan` and `exfm scale` count them) and V the
values looked up for a row. The three are fitted by `tests/benchmarks/bench_capacity.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from exfm.embeddings.composed import physical
from exfm.embeddings.kinds.registry import tables_of
from exfm.features.features import FeatureSet
from exfm.models.student_config import StudentConfig
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.planning.cost import flops_per_example, training_flops_per_example
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config, load
from pipelines.core.config.teacher_and_students import TeacherSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.shipped.files import rates_file
from pipelines.live.status.stored import read_status
from pipelines.live.workers.worker import OTHER_THREADS
from pipelines.report.results.stored import read_summary
from pipelines.report.results.summary import Summary
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from streaming.program import command
from streaming.schema import RowSchema

Job = Literal["augmentation", "teacher", "student"]
Engine = Literal["scoring", "teacher", "student"]


class Term(NamedTuple):
    """One kind of work of a worker. `phases`: those of summary.json that it sums; empty: all that no other term of the
    worker has. `engine`: the model whose size it grows with."""

    job: Job
    name: str
    per: str
    phases: tuple[str, ...] = ()
    engine: Engine | None = None

    @property
    def id(self) -> str:
        return f"{self.job}/{self.name}"


TERMS = (
    Term("augmentation", "read, decode, merge, settle", "impression"),
    Term("augmentation", "score", "lake row", ("score",), "scoring"),
    Term("augmentation", "publish", "lake row", ("publish", "deliver")),
    Term("augmentation", "commit", "block", ("commit", "save state")),
    Term("augmentation", "load a version", "version", ("load",)),
    Term("teacher", "learn", "lake row", ("train",), "teacher"),
    Term("teacher", "read, build batches", "lake row"),
    Term("teacher", "checkpoint and snapshot", "version", ("checkpoint",)),
    Term("student", "learn", "row", ("train", "train twin"), "student"),
    Term("student", "build batches, judge", "row"),
    Term("student", "checkpoint and version", "checkpoint", ("checkpoint", "export")),
    Term("student", "look for rows", "second", ("read", "cut", OTHER_THREADS)),
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineRate(_Frozen):
    """CPU seconds of a model's engine: of a step, a FLOP, a value looked up."""

    step_s: float = Field(gt=0)
    flop_s: float = Field(gt=0)
    value_s: float = Field(ge=0)

    def seconds(self, rows: int, flops: float, values: int, steps: int = 1) -> float:
        """Seconds a row, in steps of `rows`. `flops`: of all `steps` that are taken on it.

        >>> EngineRate(step_s=0.004, flop_s=1e-11, value_s=1e-8).seconds(1000, 1e6, 100, steps=2)
        2e-05
        """
        return round(steps * (self.step_s / rows + self.value_s * values) + self.flop_s * flops, 12)


class RunRates(_Frozen):
    """Rates of one run. `cpu_s`: by term, seconds of one event, or a multiple of its engine's seconds.

    rows_per_label     lake rows for each impression of a group without a condition, and each feedback of others
    shares             by student, the rows of the lake that it reads
    raw_row_bytes      of an impression's columns as they are in memory: bytes of other columns are scaled by it
    """

    measured: str
    cpu_s: Mapping[str, float]
    feedback_per_impression: float = Field(ge=0)
    rows_per_label: float = Field(gt=0)
    shares: Mapping[str, float]
    raw_row_bytes: int = Field(gt=0)
    lake_row_bytes: float = Field(gt=0)
    prediction_row_bytes: float = Field(ge=0)


class Constants(_Frozen):
    """Rates that no summary has, each with the command that measures it (docs/operations/capacity.md).

    impression, feedback and example bytes are those of a record in its topic, compressed; `waiting_bytes` of an
    impression that waits for its windows, `known_bytes` of an id that is remembered after them; a `request` has 100
    candidates.
    """

    broker_s: float
    request_s: float
    impression_bytes: float
    feedback_bytes: float
    example_bytes: float
    waiting_bytes: float
    known_bytes: float
    process_bytes: float
    buffer_bytes: float
    shared_bytes: float


class Rates(_Frozen):
    """All rates that a price is made of."""

    measured: str
    engines: Mapping[Engine, EngineRate]
    run: RunRates
    constants: Constants


def shipped_rates() -> Rates:
    """The table that comes with ExFM."""
    return Rates.model_validate_json(rates_file().read_text(encoding="utf-8"))


def model_seconds(
    rate: EngineRate, model: TeacherConfig | StudentConfig, features: FeatureSet, tasks: int, rows: int, *, learns: bool
) -> float:
    """CPU seconds that an engine alone takes for a row, learned or scored, in steps of `rows`."""
    steps = 1 + model.arm.extra_steps if isinstance(model, StudentConfig) and learns else 1
    flops = (training_flops_per_example if learns else flops_per_example)(model, features, tasks)
    tables = physical(tables_of(features, model.width, model.embeddings))
    values = sum(table.width * len(table.keys) for table in tables)
    return rate.seconds(rows, flops, values, steps)


def teachers_of(config: Config) -> dict[str, TeacherSettings]:
    """Teachers by worker, the first one first."""
    return {"teacher": config.teacher} | {f"teacher-{t.name}": t.as_teacher for t in config.teachers}


def engine_seconds(config: Config, engines: Mapping[Engine, EngineRate]) -> dict[str, float]:
    """CPU seconds of the engines alone for a row: `scoring`, and by worker those of the model that learns. A student's
    twin counts with it, and what a teacher of `teachers` scores."""
    tasks, seconds = len(config.tasks), {}

    def scoring(model: TeacherConfig, features: FeatureSet) -> float:
        return model_seconds(engines["scoring"], model, features, tasks, config.augmentation.score_rows, learns=False)

    for name, teacher in teachers_of(config).items():
        features = config.with_events(config.teacher_features, teacher.model)
        learning = model_seconds(engines["teacher"], teacher.model, features, tasks, teacher.batch_rows, learns=True)
        seconds[name] = learning if name == "teacher" else learning + scoring(teacher.model, features)
    seconds["scoring"] = scoring(config.teacher.model, config.teacher_features)
    for student in config.students:
        features, of = config.student_features(student), len(config.student_tasks(student))
        models = [student.model, *([student.model.without_teacher()] if student.twin else [])]
        seconds[STUDENT + student.name] = sum(
            model_seconds(engines["student"], model, features, of, student.batch_rows, learns=True) for model in models
        )
    return seconds


def raw_row_bytes(rows: RowSchema) -> int:
    """Bytes of an impression's columns in memory, texts and lists counted as 32.

    >>> tasks = [{"name": "ctr", "window_s": 60}]
    >>> raw_row_bytes(RowSchema(columns=[{"name": "ad"}, {"name": "bid", "type": "float32"}], tasks=tasks))
    28
    """
    widths = {"int64": 8, "float32": 4}
    return 16 + sum(
        widths.get(column.type, 4 * column.length if column.length else 32) for column in rows.feature_columns
    )


def labels_per_s(rows: RowSchema, impressions: float, feedback: float) -> float:
    """Rows that could settle: an impression in each group without a condition, a feedback in each of the others."""
    conditional = sum(all(task.given is not None for task in group.tasks) for group in rows.groups)
    return impressions * (len(rows.groups) - conditional) + feedback * conditional


def run_rates(run_dir: RunDir, engines: Mapping[Engine, EngineRate]) -> RunRates:
    """Rates of a finished run. Raises BadInput where it is not finished, or has no CPU seconds by phase."""
    summary = read_summary(run_dir)
    config = load(run_dir.config)
    counts, lake = summary.counts, LakeReader(run_dir.lake, config.rows)
    if not all(worker.cpu_s for worker in summary.workers.values() if worker.rows):
        again = command("exfm", "stream", run_dir.config, "--until-end", "--run-dir", "runs/measured")
        raise BadInput(
            f"{run_dir.summary} has no CPU seconds by phase: this run was made by an earlier ExFM; measure one anew: "
            f"`{again}`"
        )
    if not counts.lake_rows or not counts.impressions_read:
        raise BadInput(f"the run in {run_dir.root} has no row in its lake, so it says nothing of what a row costs")
    students = {name: worker for name, worker in summary.workers.items() if name.startswith(STUDENT)}
    learned = sum(worker.rows for worker in students.values())
    disk = read_status(run_dir.root).disk
    return RunRates(
        measured=f"{run_dir.root}, {counts.impressions_read:,} impressions, {summary.run.started_at[:10]}",
        cpu_s=_seconds_by_term(config, summary, engines, blocks=_blocks(lake)),
        feedback_per_impression=counts.feedback_read / counts.impressions_read,
        rows_per_label=counts.lake_rows / labels_per_s(config.rows, counts.impressions_read, counts.feedback_read),
        shares={name: worker.rows / counts.lake_rows for name, worker in students.items()},
        raw_row_bytes=raw_row_bytes(config.rows),
        lake_row_bytes=lake.bytes / counts.lake_rows,
        prediction_row_bytes=disk["predictions"] / learned if learned else 0.0,
    )


def _blocks(lake: LakeReader) -> int:
    after = max(lake.first_lake_seq, lake.last_lake_seq + 1 - lake.chunk_rows) - 1  # the last row may be erased
    last = lake.read(after, columns=["lake_seq", "block"]).table
    blocks: pa.Scalar = last["block"][-1]
    return int(blocks.as_py()) + 1


def _seconds_by_term(
    config: Config, summary: Summary, engines: Mapping[Engine, EngineRate], blocks: int
) -> dict[str, float]:
    """CPU seconds of an event by term, over the workers that were there from the run's start to its end."""
    alone, counts = engine_seconds(config, engines), summary.counts
    whole = {STUDENT + student.name for student in config.students if not student.joins_at_rows}
    rows = {name: worker.rows for name, worker in summary.workers.items() if name in whole}
    live = config.pace.mode == "free"
    events = {
        "impression": counts.impressions_read,
        "lake row": counts.lake_rows,
        "block": blocks,
        "version": max(1.0, counts.lake_rows / config.teacher.publish_every_rows) if live else blocks,
        "row": sum(rows.values()),
        "checkpoint": sum(1 + rows.get(STUDENT + s.name, 0) // s.checkpoint_every_rows for s in config.students),
        "second": summary.run.wall_s * len(rows),
    }
    learned = sum(own * alone[name] for name, own in rows.items())
    engine_s = {"scoring": alone["scoring"] * counts.lake_rows, "teacher": alone["teacher"] * counts.lake_rows}
    seconds = {}
    for term in TERMS:
        named = {phase for other in TERMS if other.job == term.job for phase in other.phases}
        spent = sum(
            s
            for worker in (rows if term.job == "student" else [term.job])
            for phase, s in summary.workers[worker].cpu_s.items()
            if (phase in term.phases if term.phases else phase not in named)
        )
        done = events[term.per] if term.engine is None else (engine_s | {"student": learned})[term.engine]
        seconds[term.id] = spent / done if done else 0.0
    return seconds


def read_rates(run_dir: RunDir | None) -> Rates:
    """The shipped table, with the rates of a run in it where one is given. Raises BadInput."""
    rates = shipped_rates()
    return rates if run_dir is None else rates.model_copy(update={"run": run_rates(run_dir, rates.engines)})
