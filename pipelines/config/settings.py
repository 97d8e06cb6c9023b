"""The whole run as one frozen object, read from YAML, refused when a key is unknown.

    config = load("configs/demo.yaml", ["source.impressions=100000", "seed=2"])

Nothing is taken from the environment. The resolved config is written into the run directory, and the hash of what a
worker depends on goes into its checkpoints (identity.py), so that none is resumed under another config by accident.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from exfm.data import FeatureSet, unfit_history
from exfm.errors import ConfigError
from exfm.models import StudentConfig, TeacherConfig
from exfm.parallel import Sharding
from pipelines.config.hash import decisive, hash_of
from pipelines.config.identity import identity_of
from pipelines.config.text import choices, mapping, merged, override, problems, read_settings
from pipelines.training import MetricsConfig
from streaming.errors import BadInput
from streaming.kafka import KafkaSettings
from streaming.lake import LakeSettings
from streaming.schema import RowSchema
from streaming.settlement import SettlementConfig
from streaming.sources import RecordedConfig
from streaming.sources.synthetic import GeneratorConfig


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pace(Frozen):
    """How emitted rows, teacher snapshots and scoring keep step (SEMANTICS: `lockstep` and `free`)."""

    mode: Literal["lockstep", "free"] = Field(
        default="free", description="lockstep: a function of input, config and seed; free: for live streams"
    )
    block_rows: int = Field(default=16384, gt=0, description="lockstep: rows of a block; free: at most so many")
    lag: int = Field(default=2, ge=1, description="lockstep: block k is scored by the snapshot of blocks <= k - lag")
    commit_interval_s: float = Field(default=5.0, gt=0, description="free: a block is cut after so long")
    catchup_rows: int = Field(default=200_000, gt=0, description="free: further behind than this is catching up")
    max_rows_ahead: int = Field(default=500_000, gt=0, description="free, catching up: wait for a newer snapshot")
    max_age_s: float | None = Field(default=None, gt=0, description="free: older snapshots write null logits")


class Topic(Frozen):
    """A topic: its name, its partitions, and how its messages are written."""

    topic: str = Field(description="name of the topic")
    partitions: int = Field(default=1, ge=1, description="number of its partitions")
    codec: Literal["arrow", "json"] = Field(
        default="arrow", description="arrow: IPC micro-batches of many rows; json: one object per message"
    )


class Kafka(KafkaSettings):
    """Broker and topics. Without `bootstrap_servers` an embedded broker runs under the run directory."""

    impressions: Topic = Topic(topic="impressions", partitions=2)
    feedback: Topic = Topic(topic="feedback", partitions=2)
    examples: Topic = Topic(topic="examples")
    dead_letters: Topic = Topic(topic="dead-letters", codec="json")
    port: int | None = Field(default=None, description="embedded broker: a fixed port instead of a free one")
    heap_mb: int = Field(default=384, ge=128, description="embedded broker: memory of its Java heap")
    downtime_s: float = Field(
        default=3600.0, ge=0, description="topics must keep their messages for the longest window and so much downtime"
    )

    @model_validator(mode="before")
    @classmethod
    def _names_by_default(cls, data: Any) -> Any:
        """`kafka.examples.partitions=4` alone leaves the topic its name."""
        if not isinstance(data, dict):
            return data
        defaults = {key: field.default for key, field in cls.model_fields.items() if isinstance(field.default, Topic)}
        given = {key: data[key] for key in defaults if isinstance(data.get(key), dict)}
        return data | {key: {"topic": defaults[key].topic} | topic for key, topic in given.items()}

    @model_validator(mode="after")
    def _co_partitioned(self) -> Kafka:
        if self.impressions.partitions != self.feedback.partitions:
            raise ValueError(
                f"impressions have {self.impressions.partitions} partitions and feedback {self.feedback.partitions}; "
                "both are keyed by impression_id and need equal counts"
            )
        names = [t.topic for t in (self.impressions, self.feedback, self.examples, self.dead_letters)]
        if len(set(names)) < len(names):
            raise ValueError(f"topics need distinct names, got {', '.join(names)}")
        return self


class Generated(GeneratorConfig):
    """The synthetic ads stream."""

    kind: Literal["generated"] = Field(default="generated", description="tells this source from the others")
    rate: str = Field(default="full", description='"full", rows per second ("5000"), or times event time ("60x")')
    chunk_rows: int = Field(default=8192, gt=0, description="impressions that are sent, and held back, at a time")


class Recorded(RecordedConfig):
    """A recorded stream from a Parquet file, played as impressions and feedback."""

    kind: Literal["recorded"] = Field(default="recorded", description="tells this source from the others")
    path: str = Field(description="the Parquet file, one row per impression in order of event time")
    rate: str = Field(default="full", description='"full", rows per second ("5000"), or times event time ("60x")')
    chunk_rows: int = Field(default=8192, gt=0, description="impressions that are sent, and held back, at a time")


class Augmentation(Frozen):
    """The service that joins labels, scores rows and commits them to the lake."""

    score_rows: int = Field(default=4096, gt=0, description="rows of one scoring batch")
    buffer_rows: int = Field(default=65_536, gt=0, description="rows read ahead per partition")
    idle_s: float = Field(default=5.0, gt=0, description="a partition confirmed at its end so long is idle")
    ranks: int = Field(default=1, ge=1, description="processes that hold the scoring teacher together")
    sharding: Sharding = Sharding()


class Teacher(Frozen):
    """The large model: what it reads, how it trains, and how many ranks hold it."""

    batch_rows: int = Field(default=2048, gt=0, description="rows of one step, over all ranks")
    only: tuple[str, ...] = Field(default=(), description="features that students never see")
    model: TeacherConfig = TeacherConfig()
    publish_every_rows: int = Field(default=16384, gt=0, description="free pace: rows between snapshots")
    checkpoint_every_blocks: int = Field(default=1, ge=1, description="blocks learned between two checkpoints")
    keep_snapshots: int = Field(default=8, ge=3, description="published snapshots that stay on the disk, the newest")
    ranks: int = Field(default=1, ge=1, description="processes that hold and train the teacher together")
    sharding: Sharding = Sharding()
    read_ahead: int = Field(default=2, ge=0, description="batches made ready in a thread of its own; 0: no thread")


class Student(Frozen):
    """A vertical student: name, row filter (default: the vertical of its name), tasks, features, arm."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="of the student, its worker and its served model"
    )
    verticals: tuple[str, ...] = Field(default=(), description="empty: the vertical named like the student")
    tasks: tuple[str, ...] = Field(default=(), description="empty: all tasks")
    features: tuple[str, ...] = Field(default=(), description="empty: all but the teacher's own")
    batch_rows: int = Field(default=512, gt=0, description="rows of one step that pass the filter")
    twin: bool = Field(default=False, description="also train a copy without the teacher, on the same rows")
    checkpoint_every_rows: int = Field(default=50_000, gt=0, description="rows learned between two checkpoints")
    negative_rate: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default={}, description="by task: of rows with label 0 so large a share is learned; empty: all"
    )
    model: StudentConfig = StudentConfig()

    @property
    def row_filter(self) -> tuple[str, ...]:
        return self.verticals or (self.name,)


class Tracking(Frozen):
    """What goes to MLflow. It never delays training."""

    enabled: bool = Field(default=True, description="false: nothing is written to MLflow")
    uri: str | None = Field(default=None, description="null: sqlite in the run directory")
    interval_s: float = Field(default=5.0, gt=0, description="time between two writes of metrics")
    queue_entries: int = Field(default=20_000, gt=0, description="waiting for the store; what does not fit is dropped")


class Resources(Frozen):
    """What Ray may use. Threads are per worker and exact; CPU requests are fractions of a core."""

    address: str | None = Field(default=None, description="null: a Ray of this run's own; or a cluster's address")
    threads: int = Field(default=1, ge=1, description="threads that every worker computes with")
    cpus_per_worker: float = Field(default=0.2, gt=0, description="share of a core that Ray reserves for a worker")
    placement_timeout_s: float = Field(default=60.0, gt=0, description="Ray must find room for a worker in this time")
    object_store_mb: int = Field(default=100, ge=80, description="memory of Ray's object store")
    max_restarts: int = Field(default=5, ge=0, description="of one worker within `restart_window_s`")
    restart_window_s: float = Field(default=600.0, gt=0, description="crashes longer ago are forgotten")
    hang_s: float = Field(default=300.0, gt=0, description="a worker silent for so long is killed and started again")
    min_free_disk_gb: float = Field(default=1.0, ge=0, description="a disk with less free space counts as full")
    disk_give_up_s: float = Field(default=600.0, gt=0, description="a full disk is waited for so long")
    checkpoint_queue: int = Field(default=1, ge=1, description="checkpoints of a worker that wait to be written")
    read_rows: int = Field(default=32_768, gt=0, description="rows a student takes from the lake at a time")
    read_ahead: int = Field(default=0, ge=0, description="batches a student has made ready in a thread; 0: no thread")
    max_quarantined_in_a_row: int = Field(
        default=16, ge=1, description="batches that are not finite, one after the other, before a worker gives up"
    )


class Config(Frozen):
    """Everything about a run. `rows` says what the stream holds, the rest what is done with it."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="of the run: its default folder is runs/NAME, its served models are NAME-STUDENT",
    )
    seed: int = Field(default=1, description="of all models; a generated source has one of its own")
    rows: RowSchema
    source: Annotated[Generated | Recorded, Field(discriminator="kind")] | None = Field(
        default=None, description="what is fed into the input topics; null: a stream that is there already"
    )
    features: FeatureSet
    pace: Pace = Pace()
    kafka: Kafka = Kafka()
    settlement: SettlementConfig = SettlementConfig()
    augmentation: Augmentation = Augmentation()
    lake: LakeSettings = LakeSettings()
    teacher: Teacher = Teacher()
    students: tuple[Student, ...]
    metrics: MetricsConfig = MetricsConfig()
    tracking: Tracking = Tracking()
    resources: Resources = Resources()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        columns = {c.name for c in self.rows.columns} | {"vertical", "event_time_ms"}
        for column in sorted(set(self.features.needs_columns()) - columns):
            raise ValueError(f"features read column `{column}`, which rows do not have; {choices(column, columns)}")
        self.metrics.check(self.rows)
        features, tasks = set(self.features.names), {t.name for t in self.rows.tasks}
        for feature in self.teacher.only:
            if feature not in features:
                raise ValueError(f"teacher.only names feature `{feature}`; {choices(feature, features)}")
        ahead = self.teacher.publish_every_rows + self.pace.block_rows
        if self.teacher.ranks > self.kafka.examples.partitions:
            raise ValueError(
                f"teacher.ranks is {self.teacher.ranks}, and kafka.examples has {self.kafka.examples.partitions} "
                f"partitions: each rank reads its own; make kafka.examples.partitions {self.teacher.ranks} or more"
            )
        optimizer = self.teacher.model.sparse_optimizer
        for name, held, learns in (("teacher", self.teacher, optimizer), ("augmentation", self.augmentation, None)):
            try:
                held.sharding.check(self.features.table_names, learns)
                held.sharding.world(held.ranks)
            except ConfigError as error:
                raise ValueError(f"{name}.sharding: {error}") from None
        if self.pace.mode == "free" and self.pace.max_rows_ahead < ahead:
            raise ValueError(
                f"pace.max_rows_ahead is {self.pace.max_rows_ahead}, and the teacher publishes every "
                f"{self.teacher.publish_every_rows} rows: augmentation and teacher would wait for each other; make it "
                f"{ahead} or more (publish_every_rows + block_rows)"
            )
        names = [s.name for s in self.students]
        for student in self.students:
            if names.count(student.name) > 1:
                raise ValueError(f"two students are named `{student.name}`")
            for feature in student.features:
                if feature not in features:
                    raise ValueError(
                        f"student `{student.name}` wants feature `{feature}`; {choices(feature, features)}"
                    )
            own = set(self.student_tasks(student))
            for task, possible in (*((t, tasks) for t in student.tasks), *((t, own) for t in student.negative_rate)):
                if task not in possible:
                    raise ValueError(f"student `{student.name}` wants task `{task}`; {choices(task, possible)}")
            if not set(self._feature_names(student)) & set(self.features.sparse_names):
                raise ValueError(
                    f"student `{student.name}` reads no sparse feature, and needs 1 or more; sparse features: "
                    f"{', '.join(self.features.sparse_names)}, of which teacher.only keeps {list(self.teacher.only)}"
                )
            arm = student.model.arm
            reads = self._feature_names(student)
            if problem := unfit_history(self.features, reads, self.student_tasks(student), arm.distils):
                raise ValueError(f"student `{student.name}` {problem}")
        try:
            self.settlement.horizon_ms(self.rows)
        except BadInput as error:
            raise ValueError(f"settlement: {error}") from None
        return self

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.rows.tasks)

    @property
    def reader_names(self) -> list[str]:
        """Who reads the lake, by the names of the workers."""
        return ["teacher", *(f"student-{student.name}" for student in self.students)]

    def student(self, name: str) -> Student:
        return next(s for s in self.students if s.name == name)

    def student_tasks(self, student: Student) -> tuple[str, ...]:
        return student.tasks or self.tasks

    def student_features(self, student: Student) -> FeatureSet:
        return self.features.select(self._feature_names(student))

    @property
    def teacher_features(self) -> FeatureSet:
        """All that are made of a row alone: histories are a student's own."""
        return self.features.select([feature.name for feature in self.features.all])

    def _feature_names(self, student: Student) -> tuple[str, ...]:
        return student.features or tuple(n for n in self.features.names if n not in self.teacher.only)

    @property
    def hash(self) -> str:
        return hash_of(self.model_dump(mode="json"))

    def identity(self, worker: str) -> str:
        """The hash of what the state of `worker` (`teacher`, `student-<name>`, …) depends on."""
        return identity_of(self.model_dump(mode="json"), worker)

    @property
    def decisive(self) -> dict[str, Any]:
        """Everything that decides what the run computes: not where it runs, nor how it is watched."""
        return decisive(self.model_dump(mode="json"))


def load(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Read YAML, apply `path=value` overrides, validate.

    `student_defaults` in the file is merged under every student. Raises BadInput, one line per problem.
    """
    raw = read_settings(path, "config")
    for text in overrides or []:
        override(raw, text)
    defaults = mapping(raw.pop("student_defaults", None) or {}, f"{path}: student_defaults")
    if isinstance(raw.get("students"), list):
        raw["students"] = [merged(defaults, s) if isinstance(s, dict) else s for s in raw["students"]]
    return parse(raw, str(path))


def parse(raw: dict[str, Any], origin: str = "config") -> Config:
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise BadInput(f"{origin} is not a valid config:\n" + "\n".join(problems(error, Config))) from None


def dump(config: Config) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
