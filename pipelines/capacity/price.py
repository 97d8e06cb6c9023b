"""Price of a config at a rate of impressions, and the rate at which one machine ends.

Everything follows from the stream's rate I, impressions a second:

    lake rows R   = labels that settle · rows_per_label          labels: I for each group, feedback for conditional ones
    blocks        = max(R / pace.block_rows, 1 / pace.commit_interval_s); in lockstep the first
    versions      = blocks in lockstep, else R / teacher.publish_every_rows; a block's scorer loads one at most
    student rows  = R · share, and checkpoints = rows / checkpoint_every_rows; each looks for rows all the time

A worker is one process, whose cores are Σ events · CPU seconds; at one core it is full. Feedback and requests grow with
impressions up to there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from exfm.parallel.planning.placement import PlanQuestion
from pipelines.capacity.rates import (
    STUDENT,
    TERMS,
    Job,
    Rates,
    Term,
    engine_seconds,
    labels_per_s,
    raw_row_bytes,
    teachers_of,
)
from pipelines.core.config.sections import Generated
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.live.roster.estimate import COPIES, student_bytes
from pipelines.teacher.plan.question import Part, question_of
from pipelines.teacher.plan.report import tables_to_place
from streaming.errors import BadInput

DAY_S = 86_400
MEASURED_BY = {
    "run": "exfm stream CONFIG --until-end --run-dir RUN, then exfm capacity CONFIG --from RUN",
    "engine": "the same, scaled to the model's size by python -m tests.benchmarks.bench_capacity",
    "plan": "exfm plan CONFIG, and the same of students: counted, not measured",
    "pending": "python -m tests.benchmarks.bench_pending",
    "serving": "python -m tests.benchmarks.bench_serving",
    "processes": "ps -o time,rss of a run's broker and workers; less what they share (smem, or /proc/PID/smaps_rollup)",
    "topics": "du -b RUN/broker/data, over the records of a topic",
}
"""Commands that measure a rate again, by key."""
PARTS: tuple[Part, Part] = ("augmentation", "teacher")
CORES, MEMORY = "cores of a machine", "memory of a machine"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A stream's rate, per second, and how many students learn from it."""

    impressions: float
    feedback: float
    requests: float
    students: int

    def times(self, factor: float) -> Workload:
        """The same stream, faster."""
        return replace(
            self,
            impressions=self.impressions * factor,
            feedback=self.feedback * factor,
            requests=self.requests * factor,
        )


@dataclass(frozen=True)
class Line:
    """A term of the price. `events`: a second, over all students where it is a student's; `cpu_s`: of one event;
    `measured_by`: a key of MEASURED_BY."""

    worker: str
    name: str
    per: str
    events: float
    cpu_s: float
    measured_by: str

    @property
    def cores(self) -> float:
        return self.events * self.cpu_s


@dataclass(frozen=True)
class Size:
    """Bytes of memory, of the network a second, or of the disk; those that `grow` are a day's."""

    name: str
    bytes: float
    measured_by: str
    grows: bool = False


class FullAt(NamedTuple):
    """A worker, whose process has one core, or what a machine has. `impressions`: a second, at which it is full;
    `used`: the share that the workload takes."""

    what: str
    impressions: float
    used: float
    beyond: str


@dataclass(frozen=True, kw_only=True)
class Price:
    """All that a workload takes. `workers`: cores by worker, of students each of the config's once."""

    workload: Workload
    lines: tuple[Line, ...]
    workers: Mapping[str, float]
    memory: tuple[Size, ...]
    network: tuple[Size, ...]
    disk: tuple[Size, ...]
    limits: tuple[FullAt, ...]
    cores_per_machine: float
    memory_per_machine: float

    @property
    def cores(self) -> float:
        return sum(line.cores for line in self.lines)

    @property
    def memory_bytes(self) -> float:
        return sum(size.bytes for size in self.memory)

    @property
    def machines(self) -> int:
        """Machines that hold its cores and its memory, however both are spread."""
        cores, memory = self.cores / self.cores_per_machine, self.memory_bytes / self.memory_per_machine
        return max(1, math.ceil(cores), math.ceil(memory))

    @property
    def extrapolated(self) -> bool:
        """True beyond one machine, or where a worker needs more than one process: no machine here can check it."""
        return self.machines > 1 or any(cores > 1 for cores in self.workers.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": asdict(self.workload),
            "extrapolated": self.extrapolated,
            "machines": self.machines,
            "cores": self.cores,
            "memory_bytes": self.memory_bytes,
            "machine": {"cores": self.cores_per_machine, "memory_bytes": self.memory_per_machine},
            "terms": [asdict(line) | {"cores": line.cores} for line in self.lines],
            "measured_by": MEASURED_BY,
            "workers": dict(self.workers),
            "limits": [limit._asdict() for limit in self.limits],
            **{part: [asdict(size) for size in getattr(self, part)] for part in ("memory", "network", "disk")},
        }


class Pricing:
    """Prices of one config under one table of rates. `students`: how many like the config's; None: those."""

    def __init__(self, config: Config, rates: Rates, students: int | None = None) -> None:
        if students and not config.students:
            raise BadInput("the config has no student whose cost could be multiplied; add one under `students`")
        self._config, self._rates = config, rates
        self._students = len(config.students) if students is None else students
        self._times = self._students / max(1, len(config.students))
        self._alone = engine_seconds(config, rates.engines)
        self._shares = {student.name: _share(config, student, rates.run.shares) for student in config.students}
        self._scores, self._learn = (_teacher_bytes(config, part) for part in PARTS)
        sizes = {student.name: student_bytes(config, student) for student in config.students}
        self._student_bytes = self._times * sum(sizes.values())
        self._ranks = round(self._times * sum(student.ranks for student in config.students))
        self._learning_bytes = self._times * sum(student.ranks * sizes[student.name] for student in config.students)
        """Of all ranks, each of which holds the whole student."""
        self._scaled = raw_row_bytes(config.rows) / rates.run.raw_row_bytes
        """Bytes of a row over those of the measured one."""

    def workload(self, impressions: float, feedback: float | None = None, requests: float = 0.0) -> Workload:
        """A workload, each rate a second. Raises BadInput for a rate that cannot be."""
        if not (math.isfinite(impressions) and impressions > 0):
            raise BadInput(f"--impressions-per-s is {impressions:g}; give a number above 0")
        for name, rate in (("feedback", feedback), ("requests", requests)):
            if rate is not None and not (math.isfinite(rate) and rate >= 0):
                raise BadInput(f"--{name}-per-s is {rate:g}; give 0 or more")
        if feedback is None:
            feedback = impressions * self._rates.run.feedback_per_impression
        return Workload(impressions=impressions, feedback=feedback, requests=requests, students=self._students)

    def price(self, workload: Workload, cores: float, memory: float) -> Price:
        """The price on machines of so many cores and so many bytes of memory each."""
        return Price(
            workload=workload,
            lines=tuple(self._lines(workload)),
            workers=self._workers(workload),
            memory=tuple(self._memory(workload)),
            network=tuple(self._network(workload)),
            disk=tuple(self._disk(workload)),
            limits=tuple(sorted(self._limits(workload, cores, memory), key=lambda limit: limit.impressions)),
            cores_per_machine=cores,
            memory_per_machine=memory,
        )

    def _lake_rows(self, workload: Workload) -> float:
        labels = labels_per_s(self._config.rows, workload.impressions, workload.feedback)
        return labels * self._rates.run.rows_per_label

    def _student_rows(self, workload: Workload) -> float:
        """Rows that all students learn."""
        return self._lake_rows(workload) * sum(self._shares.values()) * self._times

    def _terms(self, job: Job, worker: str, events: Mapping[str, float]) -> list[Line]:
        """Terms of one worker."""
        return [
            Line(
                worker,
                term.name,
                term.per,
                events[term.per],
                self._cost(term, worker),
                "run" if term.engine is None else "engine",
            )
            for term in TERMS
            if term.job == job
        ]

    def _cost(self, term: Term, worker: str) -> float:
        cost = self._rates.run.cpu_s.get(term.id, 0.0)
        return cost if term.engine is None else cost * self._alone["scoring" if term.engine == "scoring" else worker]

    def _of_workers(self, workload: Workload) -> dict[str, list[Line]]:
        """Terms by worker, of students each of the config's once."""
        pace, rows = self._config.pace, self._lake_rows(workload)
        live = pace.mode == "free"
        blocks = max(rows / pace.block_rows, 1 / pace.commit_interval_s if live else 0.0)
        events = {"impression": workload.impressions, "lake row": rows, "block": blocks}
        teachers = teachers_of(self._config)
        versions = {name: rows / of.publish_every_rows if live else blocks for name, of in teachers.items()}
        loaded = events | {"version": min(blocks, versions["teacher"])}
        lines = {"augmentation": self._terms("augmentation", "augmentation", loaded)}
        lines |= {name: self._terms("teacher", name, events | {"version": of}) for name, of in versions.items()}
        for student in self._config.students if self._students else ():
            own = rows * self._shares[student.name]
            of = {"row": own, "checkpoint": own / student.checkpoint_every_rows, "second": 1.0}
            lines[STUDENT + student.name] = self._terms("student", STUDENT + student.name, of)
        return lines

    def _workers(self, workload: Workload) -> dict[str, float]:
        """Cores by worker."""
        return {name: sum(line.cores for line in lines) for name, lines in self._of_workers(workload).items()}

    def _lines(self, workload: Workload) -> list[Line]:
        """Terms of the whole workload, all students as one."""
        of_workers = self._of_workers(workload)
        lines = [line for name, of in of_workers.items() if not name.startswith(STUDENT) for line in of]
        for same in zip(*(of for name, of in of_workers.items() if name.startswith(STUDENT)), strict=True):
            events, cores = (
                self._times * sum(each) for each in zip(*((one.events, one.cores) for one in same), strict=True)
            )
            lines.append(replace(same[0], worker="students", events=events, cpu_s=cores / events if events else 0.0))
        constants = self._rates.constants
        lines.append(
            Line("broker", "take in and hand out", "impression", workload.impressions, constants.broker_s, "processes")
        )
        if workload.requests:
            lines.append(
                Line("serving", "answer 100 candidates", "request", workload.requests, constants.request_s, "serving")
            )
        return lines

    def _memory(self, workload: Workload) -> list[Size]:
        config, constants = self._config, self._rates.constants
        waits_s = (config.rows.groups[-1].window_ms + config.settlement.lateness_ms) / 1000
        known_s = max(0.0, config.settlement.horizon_ms(config.rows) / 1000 - waits_s)
        processes = config.augmentation.processes + len(teachers_of(config)) + self._ranks
        return [
            Size("libraries, coordinator and broker, once a machine", constants.shared_bytes, "processes"),
            Size(f"{processes} processes", processes * constants.process_bytes, "processes"),
            Size("blocks and buffers of augmentation", constants.buffer_bytes, "processes"),
            Size(
                "impressions that wait for their windows",
                workload.impressions * waits_s * constants.waiting_bytes,
                "pending",
            ),
            Size("ids remembered for duplicates", workload.impressions * known_s * constants.known_bytes, "pending"),
            Size("the teacher that scores", self._scores, "plan"),
            Size("teachers, and their checkpoints on the way", COPIES * self._learn, "plan"),
            Size("students and twins, and their checkpoints on the way", COPIES * self._learning_bytes, "plan"),
        ]

    def _topics(self, workload: Workload) -> tuple[float, float]:
        """Bytes a second of the input topics, and of the examples topic."""
        constants = self._rates.constants
        taken_in = workload.impressions * constants.impression_bytes * self._scaled
        examples = self._lake_rows(workload) * constants.example_bytes * self._scaled
        return taken_in + workload.feedback * constants.feedback_bytes, examples

    def _network(self, workload: Workload) -> list[Size]:
        taken_in, examples = self._topics(workload)
        read = self._student_rows(workload) * self._rates.run.lake_row_bytes * self._scaled
        return [
            Size("impressions and feedback, to the broker and on", 2 * taken_in, "topics"),
            Size("examples, to the broker and on", (1 + len(teachers_of(self._config))) * examples, "topics"),
            Size("the lake, to students", read, "run"),
        ]

    def _disk(self, workload: Workload) -> list[Size]:
        config, run = self._config, self._rates.run
        taken_in, examples = self._topics(workload)
        lake = self._lake_rows(workload) * run.lake_row_bytes * self._scaled
        predictions = self._student_rows(workload) * run.prediction_row_bytes
        kept_rows, most = config.kafka.examples_keep_rows, config.resources.predictions_bytes
        example = self._rates.constants.example_bytes * self._scaled
        return [
            Size("lake", DAY_S * lake, "run", grows=True),
            Size("input topics", DAY_S * taken_in, "topics", grows=True),
            Size("examples topic", DAY_S * examples, "topics", grows=True)
            if kept_rows is None
            else Size("examples topic", kept_rows * example, "topics"),
            Size("predictions of students", DAY_S * predictions, "run", grows=True)
            if most is None
            else Size("predictions of students", most * self._students, "run"),
            Size("snapshots and checkpoints of teachers", (2 + config.teacher.keep_snapshots) * self._learn, "plan"),
            Size(
                "checkpoints and versions of students",
                (2 + config.registry.keep_versions) * self._student_bytes,
                "plan",
            ),
        ]

    def _limits(self, workload: Workload, cores: float, memory: float) -> list[FullAt]:
        """Rates at which each process and the machine are full; without those that never are."""

        def used(at: Workload) -> dict[str, float]:
            held = sum(size.bytes for size in self._memory(at)) / memory
            return self._workers(at) | {CORES: sum(line.cores for line in self._lines(at)) / cores, MEMORY: held}

        now, limits = used(workload), []
        for name in now:
            rate = _full_at(workload.impressions, lambda factor, name=name: used(workload.times(factor))[name])  # type: ignore[misc]
            if rate is not None:
                limits.append(FullAt(name, rate, now[name], _beyond(name, now[name])))
        return limits


def _full_at(rate: float, used: Callable[[float], float]) -> float | None:
    """The rate at which a share, `used` of a multiple of `rate`, reaches 1; None where it never does.

    >>> _full_at(1000, lambda times: 0.2 * times + 0.5), _full_at(1000, lambda times: 2.0), _full_at(1, lambda times: 0)
    (2500.0, 0.0, None)
    """
    fixed, slope_at = used(0.0), 1.0
    if fixed >= 1:
        return 0.0
    while used(slope_at) < 1:
        slope_at *= 2
        if slope_at > 2.0**64:
            return None
    low = 0.0
    for _ in range(60):
        middle = (low + slope_at) / 2
        low, slope_at = (middle, slope_at) if used(middle) < 1 else (low, middle)
    return round(rate * slope_at, 3)


def _share(config: Config, student: StudentSettings, measured: Mapping[str, float]) -> float:
    """The share of the lake's rows that a student reads: as measured of one of its name; else that of its verticals, by
    the config's generated source, or as if all verticals were alike. A condition counts as if every row met it."""
    if config.reads_all_rows(student) or student.for_every_row:
        return 1.0
    if (share := measured.get(STUDENT + student.name)) is not None:
        return share
    if not student.row_filter:
        return 1.0
    known = config.source.verticals if isinstance(config.source, Generated) else ()
    sizes = {vertical.name: vertical.share for vertical in known}
    names = config.declared_verticals
    every = sum(sizes.get(name, 1 / len(names)) for name in names)
    return sum(sizes.get(name, 1 / len(names)) for name in student.row_filter) / every


def _teacher_bytes(config: Config, part: Part) -> int:
    """Bytes of the teacher that scores, or of all that learn, as `exfm plan` counts them."""
    return sum(
        _model_bytes(question_of(config.model_copy(update={"teacher": teacher}), part))
        for name, teacher in teachers_of(config).items()
        if part == "teacher" or name == "teacher"
    )


def _model_bytes(question: PlanQuestion) -> int:
    """Bytes of all ranks' tables and dense parts, with optimizers where it learns."""
    tables = [table for part in question.parts for table in tables_to_place(question, part)]
    return sum(t["weight_bytes"] + t["optimizer_bytes"] for t in tables) + question.ranks * question.dense_bytes


def _beyond(what: str, now: float) -> str:
    """Remedy past a limit, in words. `now`: how many of it the workload takes."""
    number = max(2, math.ceil(now))
    if what in (CORES, MEMORY):
        return f"{number} machines, joined by resources.address"
    if what == "augmentation":
        return f"augmentation.workers: {number} (settlement.by: partition), each with rows of its own"
    if what.startswith(STUDENT):
        return (
            f"ranks: {number} of it, which share its steps, or {number} students that share its rows (verticals, where)"
        )
    return f"teacher.ranks: {number}, and what they exchange, which is not priced"
