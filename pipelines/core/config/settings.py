"""The whole run's config as one frozen object, read from YAML, with unknown keys refused.

    config = load("configs/demo.yaml", ["source.impressions=100000", "seed=2"])

Nothing is taken from the environment. The resolved config is written into the run directory, and the hash of what a
worker depends on goes into its checkpoints (identity.py), so that none is resumed under another config by accident.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc
import yaml
from pydantic import Field, ValidationError, model_validator

from exfm.embeddings.kinds.managed import Managed
from exfm.embeddings.kinds.registry import check_tables
from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.features.histories.history import unfit_history
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.models.student_config import StudentConfig
from exfm.models.teacher_config import TeacherConfig
from pipelines.core.config.asof import as_written, event_feature, place_asof
from pipelines.core.config.following import begun_at, follows_lake, with_leader
from pipelines.core.config.hash import decisive, hash_of
from pipelines.core.config.identity import identity_of
from pipelines.core.config.sections import (
    AlarmLimits,
    FollowedLake,
    Generated,
    LossLimits,
    MetricsSettings,
    Pace,
    Recorded,
    RegistrySettings,
    Resources,
    Tracking,
)
from pipelines.core.config.teacher_and_students import (
    Augmentation,
    FurtherTeacher,
    OwnFeatures,
    StudentSettings,
    TeacherSettings,
    unfit_constant,
    unfit_length,
)
from pipelines.core.config.text import choices, mapping, merged, override, problems, read_settings
from pipelines.core.config.topics import Frozen, Kafka
from pipelines.core.shipped.files import config_file
from pipelines.live.feeds.own_rows import OwnRows
from streaming.errors import BadInput
from streaming.kafka.secrets import SECRET_KEYS
from streaming.lake.settings import LakeSettings
from streaming.lake.where import Where
from streaming.messages.limits import Limits
from streaming.schema import RowSchema, SettlementGroup
from streaming.settlement.config import FUTURE_SKEW_S, SettlementConfig

WRITTEN_DOWN = {"tasks", "features", "checkpoint_every_rows"}
"""Settings of a student that its section has in every config that a run wrote down."""


class Config(Frozen):
    """The complete config of a run. `rows` says what the stream holds, the rest what is done with it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="names the run and its registered models")
    run_dir: str | None = Field(
        default=None,
        description="where the run lies: a folder, or s3://BUCKET/PATH; null: runs/NAME. --run-dir comes before it",
    )
    seed: int = Field(default=1, description="of initial weights, and of which negatives are sampled")
    rows: RowSchema
    source: Annotated[Generated | Recorded | FollowedLake, Field(discriminator="kind")] | None = Field(
        default=None,
        description="what is fed into the input topics; null: topics that others feed; {lake: RUN, from: SEQ}: no "
        "topics, the lake of another run",
    )
    features: FeatureSet
    pace: Pace = Pace()
    kafka: Kafka = Kafka()
    settlement: SettlementConfig = SettlementConfig()
    augmentation: Augmentation = Augmentation()
    lake: LakeSettings = LakeSettings()
    teacher: TeacherSettings = TeacherSettings()
    teachers: tuple[FurtherTeacher, ...] = Field(
        default=(), description="teachers beside the first; a student learns from one by its name (`logits`)"
    )
    students: tuple[StudentSettings, ...]
    metrics: MetricsSettings = MetricsSettings()
    losses: LossLimits = LossLimits()
    alarms: AlarmLimits = AlarmLimits()
    tracking: Tracking = Tracking()
    registry: RegistrySettings = RegistrySettings()
    resources: Resources = Resources()

    @model_validator(mode="before")
    @classmethod
    def _place_asof(cls, settings: Any) -> Any:
        return _place_representation(place_asof(begun_at(settings))) if isinstance(settings, dict) else settings

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        """Check across sections."""
        self._check_columns()
        if self.plays and "avro" in (self.kafka.impressions.codec, self.kafka.feedback.codec):
            raise ValueError("`source` fills the input topics, and Avro is read only: give them codec arrow or json")
        topics = (self.kafka.impressions, self.kafka.feedback)
        if self.plays and any(t.unwrap is not None or t.impression_id == "key" for t in topics):
            raise ValueError(
                "`source` fills the input topics with rows as they are: unwrap and impression_id are of others"
            )
        self._check_teacher()
        self._check_sharding()
        self._check_tables("teacher", self.teacher_features, self.teacher.model)
        self._check_partitions()
        self._check_pace()
        self._check_verticals()
        for student in self.students:
            self._check_student(student)
        names = [teacher.name for teacher in self.teachers]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"teachers: {', '.join(sorted(twice))} is there twice; give each a name of its own")
        try:
            self.settlement.horizon_ms(self.rows)
        except BadInput as error:
            raise ValueError(f"settlement: {error}") from None
        return self

    def _check_columns(self) -> None:
        columns = {c.name for c in self.rows.feature_columns} | {"vertical", "event_time_ms"}
        read = [
            ("features read", self.features),
            *((f"student `{s.name}` reads", self._known_to(s)) for s in self.students),
        ]
        for who, features in read:
            for column in sorted(set(features.needs_columns()) - columns):
                raise ValueError(f"{who} column `{column}`, which rows do not have; {choices(column, columns)}")
            for dense in features.dense:
                if problem := unfit_length(dense, self.rows):
                    raise ValueError(problem)
            for feature in features.train_only:
                if problem := unfit_constant(feature.name, feature.reads[0], feature.serve_as, self.rows):
                    raise ValueError(problem)
        self.metrics.check(self.rows)

    def _check_verticals(self) -> None:
        named, most = self.declared_verticals, self.lake.max_verticals
        if len(named) > most and self.follows is None:
            raise ValueError(
                f"lake.max_verticals is {most}, and students and source name {len(named)} verticals "
                f"({', '.join(named[:5])}, …), which each get files of their own in the lake; raise it to "
                f"{len(named)}, or name fewer"
            )

    def _check_teacher(self) -> None:
        features = set(self.features.names)
        for feature in self.teacher.only:
            if feature not in features:
                raise ValueError(f"teacher.only names feature `{feature}`; {choices(feature, features)}")
        for sequence in (self.teacher.model.sequence, *(teacher.model.sequence for teacher in self.teachers)):
            if sequence is not None and sequence.privileged:
                raise ValueError(
                    "teacher.model.sequence: as_of is `settlement`, which a run cannot know when a row is shown; leave "
                    "it out, or compare it in a sweep: teachers: {NAME: {model: {sequence: {as_of: settlement}}}}"
                )
        try:
            self.teacher_features.needs_columns()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if self.teacher.ranks > self.kafka.examples.partitions:
            raise ValueError(
                f"teacher.ranks is {self.teacher.ranks}, and kafka.examples has {self.kafka.examples.partitions} "
                f"partitions: each rank reads its own; make kafka.examples.partitions {self.teacher.ranks} or more"
            )

    def _check_sharding(self) -> None:
        optimizer = self.teacher.model.sparse_optimizer
        for name, held, learns in (("teacher", self.teacher, optimizer), ("augmentation", self.augmentation, None)):
            try:
                held.sharding.check(self.features.table_names, learns)
                held.sharding.world(held.ranks)
            except ConfigError as error:
                raise ValueError(f"{name}.sharding: {error}") from None
        if self.teacher.publish_bits is None:
            return
        for table, cuts in self.teacher.sharding.cut_by_columns(self.features.table_names).items():
            raise ValueError(
                f"teacher.publish_bits is {self.teacher.publish_bits}, and table `{table}` may be cut by columns "
                f"({', '.join(cuts)}): rows of few bits are published by the rank that holds them whole. Take "
                "teacher.sharding.types that cut by rows (table_wise, row_wise), or teacher.publish_bits: null"
            )

    def _check_tables(self, whose: str, features: FeatureSet, model: TeacherConfig | StudentConfig) -> None:
        try:
            check_tables(features, model.width, model.embeddings)
        except ConfigError as error:
            raise ValueError(f"{whose}: {error}") from None
        window_s = max(task.window_s for task in self.rows.tasks)
        for name, kind in model.embeddings.items():
            if isinstance(kind, Managed) and kind.after_s is not None and kind.after_s < window_s:
                raise ValueError(
                    f"{whose}: embeddings.{name}.after_s is {kind.after_s:g}, and labels come up to {window_s:g} s "
                    f"after an id was shown: it would lose its row before it is learned; make it {window_s:g} or more"
                )

    def _check_partitions(self) -> None:
        workers, topics = self.augmentation.workers, (self.kafka.impressions, self.kafka.feedback)
        if self.settlement.by == "stream":
            if workers > 1:
                raise ValueError(
                    f"augmentation.workers is {workers}, and settlement.by is stream: one process settles the whole "
                    "stream. Where both topics are keyed by impression_id, set settlement.by to partition"
                )
            return
        impressions, feedback = (topic.partitions for topic in topics)
        if impressions != feedback:
            raise ValueError(
                f"settlement.by is partition, and the topics have {impressions} and {feedback} partitions: an "
                "impression and its feedback would lie under different numbers. Copy them to topics of equal "
                "partitions (examples/repartition_topic.py), or set settlement.by to stream"
            )
        if workers > impressions:
            raise ValueError(
                f"augmentation.workers is {workers}, and the topics have {impressions} partitions; take at most "
                f"{impressions}, or topics with more"
            )
        if self.augmentation.ranks > 1:
            raise ValueError(
                f"augmentation.ranks is {self.augmentation.ranks}, and settlement.by is partition, where each worker "
                "scores with the whole teacher; take ranks: 1, or settlement.by: stream"
            )

    def _check_pace(self) -> None:
        ahead = self.teacher.publish_every_rows + self.pace.block_rows
        if self.pace.mode == "free" and self.pace.max_rows_ahead < ahead:
            raise ValueError(
                f"pace.max_rows_ahead is {self.pace.max_rows_ahead}, and the teacher publishes every "
                f"{self.teacher.publish_every_rows} rows: augmentation and teacher would wait for each other; make it "
                f"{ahead} or more (publish_every_rows + block_rows)"
            )

    def _check_student(self, student: StudentSettings) -> None:
        allowed_features = self._known_to(student)
        features, tasks = set(allowed_features.names), set(self.tasks)
        if [s.name for s in self.students].count(student.name) > 1:
            raise ValueError(f"two students are named `{student.name}`")
        for feature in student.features:
            if feature not in features:
                raise ValueError(f"student `{student.name}` wants feature `{feature}`; {choices(feature, features)}")
        own = set(self.student_tasks(student))
        for task, possible in (*((t, tasks) for t in student.tasks), *((t, own) for t in student.negative_rate)):
            if task not in possible:
                raise ValueError(f"student `{student.name}` wants task `{task}`; {choices(task, possible)}")
        try:
            self.own_rows(student)
        except BadInput as error:
            raise ValueError(f"student `{student.name}`, where: {error}") from None
        self._check_own_indexes(student)
        reads = self._feature_names(student)
        if not set(reads) & set(allowed_features.sparse_names):
            raise ValueError(
                f"student `{student.name}` reads no sparse feature, and needs 1 or more; sparse features: "
                f"{', '.join(allowed_features.sparse_names)}, of which teacher.only keeps {list(self.teacher.only)}"
            )
        if student.learns_from_others and not any("vertical" in f.reads for f in self.student_features(student).all):
            setting = "label_rows" if student.label_rows == "all" else "distillation_rows"
            raise ValueError(
                f"student `{student.name}` learns from rows of other verticals ({setting}: all), and none of its "
                "features reads the column `vertical`: it could not tell them from its own. Add a sparse feature "
                f"`vertical` to what it reads, or set {setting}: own"
            )
        arm = student.model.arm
        sparse = set(reads) & set(allowed_features.sparse_names)
        for feature in arm.residuals_by:
            if feature not in sparse:
                raise ValueError(
                    f"student `{student.name}`: arm.residuals_by names `{feature}`, which is no sparse feature that it "
                    f"reads; {choices(feature, sparse)}"
                )
        if problem := unfit_history(allowed_features, reads, self.student_tasks(student), arm.distils):
            raise ValueError(f"student `{student.name}` {problem}")
        self._check_tables(f"student `{student.name}`", self.student_features(student), student.model)
        k, read = self.rows.teacher_embedding, self.embedding_width(student)
        if read > k:
            has = f"has {k}" if k else "has none"
            raise ValueError(
                f"student `{student.name}` reads {read} values of the teacher's representation (`teacher_embedding`), "
                f"which {has}; set teacher.model.representation to {read} or more, or read fewer"
            )

    def embedding_width(self, student: StudentSettings) -> int:
        """Values of the teacher's representation that a student reads: for histories, and to distil them."""
        arm = student.model.arm
        distilled = arm.representation_width if arm.representation_weight else 0
        return max(self.student_features(student).embedding_width, distilled) if arm.distils else 0

    def _check_own_indexes(self, student: StudentSettings) -> None:
        """Rows that no model looked up by these ids are in the lake already: their columns have to be bounded."""
        columns = {column.name: column for column in self.rows.columns}
        tables: list[SparseFeature | SequenceFeature] = [*student.own_features.sparse, *student.own_features.sequence]
        for feature in tables:
            column = columns.get(feature.reads[0])
            if feature.transform != "index" or column is None:
                continue
            if column.minimum is None or column.minimum < 0 or column.maximum is None or column.maximum >= feature.rows:
                raise ValueError(
                    f"student `{student.name}`: its own feature `{feature.name}` is an index of {feature.rows} rows, "
                    f"and nothing keeps `{column.name}` below that in the lake (rows.columns: minimum, maximum); use "
                    "transform `hash`"
                )

    @property
    def follows(self) -> FollowedLake | None:
        """The lake of another run, where this one follows it."""
        return self.source if isinstance(self.source, FollowedLake) else None

    @property
    def plays(self) -> bool:
        """True if the run feeds its input topics itself."""
        return self.source is not None and self.follows is None

    @property
    def limits(self) -> Limits:
        """Limits of rows that follow from the models; the size of a row is limited by the topics."""
        return Limits(self.features.index_rows, self.features.ranges)

    @property
    def declared_verticals(self) -> tuple[str, ...]:
        """Verticals named by students and a generated source, which are always accepted."""
        source = [vertical.name for vertical in self.source.verticals] if isinstance(self.source, Generated) else []
        return tuple(dict.fromkeys([*(name for student in self.students for name in student.row_filter), *source]))

    @property
    def reads_live(self) -> bool:
        """True if others feed the topics while the run lives, so that this machine's clock decides what is in the
        future."""
        return self.source is None and self.pace.mode == "free"

    @property
    def max_future_skew_s(self) -> float | None:
        """Largest lead of event times over the clock, in seconds; None if unbounded."""
        named = self.settlement.max_future_skew_s
        return FUTURE_SKEW_S if named is None and self.pace.mode == "free" else named

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.rows.tasks)

    @property
    def reader_names(self) -> list[str]:
        """Names of the workers that read the lake."""
        students = [f"student-{student.name}" for student in self.students]
        further = (f"teacher-{teacher.name}" for teacher in self.teachers)
        return students if self.follows is not None else ["teacher", *further, *students]

    def student(self, name: str) -> StudentSettings:
        return next(s for s in self.students if s.name == name)

    def student_tasks(self, student: StudentSettings) -> tuple[str, ...]:
        return student.tasks or self.tasks

    def student_features(self, student: StudentSettings) -> FeatureSet:
        return self._known_to(student).select(self._feature_names(student))

    def own_rows(self, student: StudentSettings) -> OwnRows:
        """The rows that a student is for. Raises BadInput where its condition does not fit the rows."""
        return OwnRows(student.row_filter, None if student.where is None else Where(student.where, self.rows))

    def groups_of(self, student: StudentSettings) -> list[SettlementGroup]:
        """Settlement groups with a task of the student."""
        tasks = self.student_tasks(student)
        return [group for group in self.rows.groups if any(task.name in tasks for task in group.tasks)]

    def settled_for(self, student: StudentSettings) -> pc.Expression:
        """Filter of lake rows that settle a task of the student."""
        return pc.field("settlement").isin([group.name for group in self.groups_of(student)])

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Raw columns that a model reads or that decide whose a row is, each once."""
        needed = [*self.teacher_features.needs_columns()]
        for student in self.students:
            needed += [*self._known_to(student).needs_columns(), *self.own_rows(student).columns]
        return tuple(dict.fromkeys(needed))

    def delays_ms(self, student: StudentSettings) -> dict[str, int]:
        """Time between an impression and the moment its labels have settled, by settlement group of the student."""
        lateness_ms = self.settlement.lateness_ms
        return {group.name: group.window_ms + lateness_ms for group in self.groups_of(student)}

    @property
    def teacher_features(self) -> FeatureSet:
        """Features made of the row itself, thus without histories, which are a student's own."""
        return self.with_events(self.features.select([f.name for f in self.features.all]), self.teacher.model)

    def with_events(self, features: FeatureSet, model: TeacherConfig) -> FeatureSet:
        """Features of a teacher of this model, with the events that it reads. Raises ConfigError."""
        if model.sequence is None:
            return features
        return features.model_copy(update={"events": (event_feature(model.sequence, self.features, self.rows),)})

    def reads_all_rows(self, student: StudentSettings) -> bool:
        """True if a student reads rows that are not its own, to learn from or for histories."""
        of_all = any(history.rows == "all" for history in self.student_features(student).history)
        return student.learns_from_others or (of_all and not student.for_every_row)

    def _feature_names(self, student: StudentSettings) -> tuple[str, ...]:
        return student.features or tuple(n for n in self._known_to(student).names if n not in self.teacher.only)

    def _known_to(self, student: StudentSettings) -> FeatureSet:
        """The features of the run, and the student's own."""
        return self.features.with_more(
            **{kind: getattr(student.own_features, kind) for kind in OwnFeatures.model_fields}
        )

    def having(self, students: Sequence[Mapping[str, Any]], origin: str = "config") -> Config:
        """The same config with these students' sections. Its passwords, which no text of a config holds, stay.

        Raises BadInput where they do not fit.
        """
        settings = self.model_dump(mode="json") | {"students": list(students)}
        return parse(settings, origin).model_copy(update={"kafka": self.kafka})

    @property
    def hash(self) -> str:
        return hash_of(self.model_dump(mode="json"))

    def identity(self, worker: str) -> str:
        """Hash of the settings that the state of `worker` (`teacher`, `student-<name>`, …) depends on."""
        return identity_of(self.model_dump(mode="json"), worker)

    @property
    def decisive(self) -> dict[str, Any]:
        """Settings that decide the run's result, without placement and monitoring."""
        return decisive(self.model_dump(mode="json"))


def _place_representation(settings: dict[str, Any]) -> dict[str, Any]:
    """Make rows carry the representation that the teacher of a config's settings makes.

    >>> _place_representation({"rows": {}, "teacher": {"model": {"representation": 8}}})["rows"]
    {'teacher_embedding': 8}
    """
    rows, model = settings.get("rows"), settings.get("teacher") or {}
    model = (model.get("model") or {}) if isinstance(model, dict) else model
    if not isinstance(rows, dict) or not isinstance(model, dict):
        return settings
    k = model.get("representation", TeacherConfig.model_fields["representation"].default)
    return settings | {"rows": rows | {"teacher_embedding": k or 0}}


def load(path: str | Path, overrides: list[str] | None = None, *, overridden_in: str | Path = ".") -> Config:
    """Read YAML, apply `path=value` overrides, validate.

    `student_defaults` in the file is merged under every student. Files that the config names lie relative to its own
    folder, those that an override names relative to `overridden_in`, by default the working directory.
    Raises BadInput, one line per problem.
    """
    raw = read_settings(path, "config")
    for text in overrides or []:
        override(raw, text)
    overridden = [text.partition("=")[0] for text in overrides or []]
    _place_files(raw, config_file(path).parent, overridden, Path(overridden_in))
    raw = with_leader(raw, str(path))
    defaults = mapping(raw.pop("student_defaults", None) or {}, f"{path}: student_defaults")
    if isinstance(raw.get("students"), list):
        raw["students"] = [merged(defaults, s) if isinstance(s, dict) else s for s in raw["students"]]
        _refuse_no_verticals(raw["students"], str(path))
    return parse(raw, str(path))


def _refuse_no_verticals(students: list[Any], origin: str) -> None:
    """An empty list reads like all or none, and is neither. A section with every setting in it is one that a run has
    written down, where it stands for the default."""
    for student in students:
        if isinstance(student, dict) and student.get("verticals") == [] and not student.keys() >= WRITTEN_DOWN:
            name = student.get("name")
            raise BadInput(
                f"{origin} is not a valid config:\n  students.{name}.verticals: is empty; leave it out for the "
                f"vertical `{name}`, list some, or write `verticals: all`"
            )


def parse(raw: dict[str, Any], origin: str = "config") -> Config:
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise BadInput(
            f"{origin} is not a valid config:\n" + "\n".join(map(as_written, problems(error, Config)))
        ) from None


def dump(config: Config) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def shown(config: Config, *, diff: bool = False) -> str:
    """A config as YAML, with `student_defaults` merged into every student and files named as written; with `diff`
    only what differs from the defaults."""
    settings = config.model_dump(mode="json", exclude_defaults=diff)
    if config.source is not None:
        settings["source"] = {"kind": config.source.kind, **settings["source"]}
        for named in (settings["source"], settings["source"].get("feedback") or {}):
            if "written_path" in named:
                named["path"] = named.pop("written_path")
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)


def _place_files(
    settings: dict[str, Any], folder: Path, overridden: Collection[str] = (), overridden_in: Path = Path()
) -> None:
    """Make the paths of a source's files, and of password files, absolute. One that is relative lies in `folder`; where
    it, or what holds it, is among the `overridden` settings, in `overridden_in`. A source's is kept as `written_path`,
    by which the run is known.

    >>> settings = {"source": {"path": "clicks.parquet", "feedback": {"path": "/data/events.parquet"}}}
    >>> _place_files(settings, Path("/ads"))
    >>> settings["source"]["path"], settings["source"]["written_path"], settings["source"]["feedback"]
    ('/ads/clicks.parquet', 'clicks.parquet', {'path': '/data/events.parquet'})
    """
    _place_secrets(settings, folder, overridden, overridden_in)
    source = settings.get("source")
    feedback = source.get("feedback") if isinstance(source, dict) else None
    if isinstance(source, dict) and follows_lake(settings) and "://" not in str(source["lake"]):
        again = any("source.lake.".startswith(f"{name}.") for name in overridden)
        if isinstance(lake := source["lake"], str):
            source["lake"] = str((overridden_in if again else folder).absolute() / lake)
    for setting, named in (("source.path", source), ("source.feedback.path", feedback)):
        if not isinstance(named, dict) or not isinstance(path := named.get("path"), str):
            continue
        again = any(f"{setting}.".startswith(f"{name}.") for name in overridden)
        if again:
            named.pop("written_path", None)
        if not Path(path).is_absolute():
            named |= {"path": str((overridden_in if again else folder).absolute() / path), "written_path": path}
    teacher = settings.get("teacher")
    if isinstance(teacher, dict) and isinstance(path := teacher.get("init_from"), str):
        again = any("teacher.init_from.".startswith(f"{name}.") for name in overridden)
        teacher["init_from"] = str((overridden_in if again else folder).absolute() / path)
    if isinstance(source, dict) and isinstance(copies := source.get("copies"), str):
        again = any("source.copies.".startswith(f"{name}.") for name in overridden)
        source["copies"] = str((overridden_in if again else folder).absolute() / copies)


def _place_secrets(
    settings: dict[str, Any], folder: Path, overridden: Collection[str] = (), overridden_in: Path = Path()
) -> None:
    kafka = settings.get("kafka")
    security = kafka.get("security") if isinstance(kafka, dict) else None
    if not isinstance(security, dict):
        return
    for name in SECRET_KEYS:
        value = security.get(name)
        if isinstance(value, dict) and isinstance(path := value.get("file"), str):
            again = any(f"kafka.security.{name}.file.".startswith(f"{setting}.") for setting in overridden)
            value["file"] = str((overridden_in if again else folder).absolute() / path)
