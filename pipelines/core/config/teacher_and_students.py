"""Config sections of the trained models: the scoring teacher, the teacher, the students."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from exfm.features.dense import DenseFeature
from exfm.features.features import HistoryFeature
from exfm.features.learned_rows import LearnedRows, Whose
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.models.student_config import StudentConfig
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.layout import Sharding
from exfm.snapshots.changed import Policy
from exfm.snapshots.row_quantisation import Bits
from pipelines.core.config.initial_teacher import InitialTeacher, initial_teacher
from pipelines.core.config.topics import Frozen
from pipelines.live.feeds.growth import Growth, batch_growth
from streaming.schema import RowSchema

FIRST_BATCH_ROWS = 32


class Augmentation(Frozen):
    """Settings of how settled rows are scored before they enter the lake."""

    score_rows: int = Field(default=4096, gt=0, description="rows of one scoring batch")
    buffer_rows: int = Field(default=65_536, gt=0, description="rows read ahead per partition")
    buffer_mb: float = Field(
        default=64.0,
        gt=0,
        description="and their bytes, in MiB: what is decoded ahead of a partition that event time waits for",
    )
    idle_s: float = Field(
        default=5.0, gt=0, description="a partition that the broker confirms to be at its end for this long is idle"
    )
    workers: int = Field(
        default=1,
        ge=1,
        description="processes that share the partitions of the input topics: they read, settle and score them; more "
        "than 1 need `settlement.by: partition`. A run goes on under another number",
    )
    ranks: int = Field(default=1, ge=1, description="processes that hold the scoring teacher together")
    sharding: Sharding = Field(default=Sharding(), description="how the ranks share the tables")

    @property
    def processes(self) -> int:
        """Number of processes: those that share the stream, or those that share the teacher."""
        return max(self.workers, self.ranks)


class TeacherSettings(Frozen):
    """The teacher: its batches, its model, when it is published, and its processes."""

    batch_rows: int = Field(default=512, gt=0, description="rows of one training step, over all ranks")
    first_batch_rows: int = Field(
        default=FIRST_BATCH_ROWS,
        gt=0,
        description="rows of the first steps: they double up to `batch_rows` as the lake grows",
    )
    only: tuple[str, ...] = Field(default=(), description="features that students never see")
    model: TeacherConfig = Field(default=TeacherConfig(), description="the architecture and its optimizers")
    publish_every_rows: int = Field(
        default=16384, gt=0, description="free pace: rows between snapshots; fewer while blocks grow"
    )
    checkpoint_every_blocks: int = Field(default=1, ge=1, description="blocks between two checkpoints")
    keep_snapshots: int = Field(default=8, ge=3, description="published snapshots that stay on disk")
    publish_bits: Bits | None = Field(
        default=None,
        description="bits of a value in published tables: 8, 4, 3, 2; null: float32. Checkpoints are whole",
    )
    saves: Policy = Field(
        default="intermittent",
        description="checkpoints and snapshots hold all rows (whole), or those that changed since a whole one "
        "(one_shot), since the last (consecutive), since a whole one that is renewed once that costs less "
        "(intermittent)",
    )
    init_from: Annotated[
        InitialTeacher | None, BeforeValidator(initial_teacher, json_schema_input_type=InitialTeacher | str | None)
    ] = Field(default=None, description="a folder of `exfm pretrain`: the teacher begins as that one; null: untrained")
    ranks: int = Field(default=1, ge=1, description="processes that hold and train the teacher together")
    sharding: Sharding = Field(default=Sharding(), description="how the ranks share the tables")
    read_ahead: int = Field(
        default=2, ge=0, description="batches that a thread makes ready ahead of the training; 0: no thread"
    )

    @property
    def batches(self) -> Growth:
        """Rows of a training step, by the rows of the lake before it."""
        return batch_growth(self.first_batch_rows, self.batch_rows)

    @property
    def first_version(self) -> int:
        """The first snapshot that has learned anything: 0, of a teacher that begins trained, or 1."""
        return 1 if self.init_from is None else 0

    @property
    def learned_upto_ms(self) -> int | None:
        """Event time of the newest row that it had learned before the stream."""
        return None if self.init_from is None else self.init_from.learned_upto_ms


Named = SparseFeature | DenseFeature | SequenceFeature | HistoryFeature


class OwnFeatures(Frozen):
    """Features of one student only, of any logged column, including one that no model read before. The teacher does
    not read them."""

    sparse: tuple[SparseFeature, ...] = Field(default=(), description="embedding tables and the ids that look them up")
    dense: tuple[DenseFeature, ...] = Field(default=(), description="floats")
    sequence: tuple[SequenceFeature, ...] = Field(default=(), description="ids in order of time")
    history: tuple[HistoryFeature, ...] = Field(default=(), description="running averages of its earlier rows")

    @property
    def names(self) -> tuple[str, ...]:
        lists: tuple[tuple[Named, ...], ...] = (self.sparse, self.dense, self.sequence, self.history)
        return tuple(feature.name for features in lists for feature in features)


class FurtherTeacher(TeacherSettings):
    """A teacher beside the first: it learns the same rows, reads the same features, and scores every row into a logit
    set of its name."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="names worker, checkpoints and logit set")

    @model_validator(mode="after")
    def _one_process(self) -> FurtherTeacher:
        if self.name == "replacement":
            raise ValueError("a teacher of `teachers` is not named `replacement`, which `exfm teacher replace` trains")
        if self.ranks != 1 or self.only or self.init_from is not None:
            raise ValueError(
                f"teacher `{self.name}` of `teachers` has ranks, only or init_from, which belong to the first "
                "(`teacher`); leave them out"
            )
        return self

    @property
    def as_teacher(self) -> TeacherSettings:
        """The same settings as a run's first teacher has them."""
        return TeacherSettings.model_validate(self.model_dump(exclude={"name"}))


class StudentSettings(Frozen):
    """A vertical student: name, row filter (default: the vertical of its name), tasks, features, arm.

    The rows that pass its filter are its own: it is for them, and judged on them. `label_rows` and `distillation_rows`
    say what it learns from the rows of the other verticals in the lake.

    >>> [StudentSettings(name="feed", verticals=asked).row_filter for asked in ((), ("feed", "shop"), "all")]
    [('feed',), ('feed', 'shop'), ()]
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="names worker, checkpoints and exports")
    verticals: tuple[str, ...] | Literal["all"] = Field(
        default=(), description="whose rows it is for; `all`: those of every vertical; left out: the one of its name"
    )
    where: str | None = Field(
        default=None,
        description="a condition on the rows that it is for, such as `bid > 0.5 and device in (1, 2)`; null: none",
    )
    first_seq: int = Field(
        default=0,
        ge=0,
        description="the `lake_seq` at which it begins: rows before it are not learned",
    )
    logits: str | None = Field(
        default=None,
        description="whose logits it learns: a teacher of `teachers`, or a logit set of `exfm rescore`; null, and rows "
        "outside it: as logged",
    )
    joins_at_rows: int = Field(
        default=0,
        ge=0,
        description="rows of the lake at which it joins the run, or at the stream's end where there are fewer; it then "
        "learns from its first row on, as a student that is spawned",
    )
    starts_from: str | None = Field(
        default=None,
        description="the student whose weights it starts with (`exfm spawn --from`); null: those of the seed",
    )
    label_rows: Whose = Field(
        default="own",
        description="`own`: it learns the labels of its own rows; `all`: those of every row in the lake",
    )
    distillation_rows: Whose = Field(
        default="own",
        description="`own`: it distils on its own rows; `all`: on every row in the lake that has a teacher logit",
    )
    tasks: tuple[str, ...] = Field(default=(), description="empty: all tasks")
    features: tuple[str, ...] = Field(default=(), description="empty: all but the teacher's own")
    own_features: OwnFeatures = Field(
        default=OwnFeatures(),
        description="features of its own, besides those of the run; `features` left out, it reads them all",
    )
    batch_rows: int = Field(default=512, gt=0, description="rows of one training step")
    first_batch_rows: int = Field(
        default=FIRST_BATCH_ROWS,
        gt=0,
        description="rows of the first steps: they double up to `batch_rows` as the student learns",
    )
    twin: bool = Field(default=False, description="also train a copy without the teacher, on the same rows")
    baselines: bool = Field(
        default=True,
        description="also train a logistic regression, and count the label rate, on the rows whose labels it learns",
    )
    checkpoint_every_rows: int = Field(default=50_000, gt=0, description="rows learned between two checkpoints")
    negative_rate: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default={}, description="by task: the share of rows with label 0 that is learned; empty: all"
    )
    ranks: int = Field(
        default=1,
        ge=1,
        description="processes that share its steps, where the stream of a large one outgrows a core. A run goes on "
        "under another number",
    )
    model: StudentConfig = Field(default=StudentConfig(), description="size, optimizers and arm")

    @field_validator("verticals", mode="before")
    @classmethod
    def _a_list_or_all(cls, verticals: Any) -> Any:
        if isinstance(verticals, str) and verticals != "all":
            raise ValueError("a list is wanted, as in [a, b], or all")
        return verticals

    @property
    def batches(self) -> Growth:
        """Rows of a training step, by the rows that it learned before."""
        return batch_growth(self.first_batch_rows, self.batch_rows)

    @property
    def row_filter(self) -> tuple[str, ...]:
        """Verticals of its own rows; empty for all."""
        return () if self.verticals == "all" else self.verticals or (self.name,)

    @property
    def for_every_row(self) -> bool:
        """True if every row of the lake is its own."""
        return not self.row_filter and self.where is None

    @property
    def learned_rows(self) -> LearnedRows:
        """Verticals whose labels and logits it learns."""
        return LearnedRows(self.label_rows, self.distillation_rows if self.model.arm.distils else "own")

    @property
    def learns_from_others(self) -> bool:
        """True if it learns from rows that are not its own."""
        return not self.for_every_row and "all" in self.learned_rows


def unfit_constant(feature: str, column: str, value: float | str | None, rows: RowSchema) -> str | None:
    """Reason why a column cannot have the value that a feature is served with; None if it can.

    >>> rows = RowSchema(columns=[{"name": "slot"}], tasks=[{"name": "ctr", "window_s": 60}])
    >>> unfit_constant("position", "slot", "first", rows)
    'feature `position` has serve_as `first`, and its column `slot` is int64'
    """
    kind = next((c.type.removeprefix("list<").removesuffix(">") for c in rows.feature_columns if c.name == column), "")
    kinds: dict[str, tuple[type, ...]] = {"int64": (int, float), "float32": (int, float), "string": (str,), "": (str,)}
    return (
        None
        if isinstance(value, kinds[kind])
        else (f"feature `{feature}` has serve_as `{value}`, and its column `{column}` is {kind or 'text'}")
    )


def unfit_length(feature: DenseFeature, rows: RowSchema) -> str | None:
    """Reason why a column does not hold the lists of floats that a feature reads; None if it does, or if the feature
    reads numbers.

    >>> rows = RowSchema(columns=[{"name": "v", "type": "list<float32>"}], tasks=[{"name": "ctr", "window_s": 60}])
    >>> unfit_length(DenseFeature(name="v", length=8), rows)
    'feature `v` reads lists of 8 floats, and column `v` is list<float32> without `length`; declare it with length: 8'
    """
    (name,) = feature.reads
    column = next((column for column in rows.columns if column.name == name), None)
    if feature.length is None or column is None or column.length == feature.length:
        return None
    of = f"{column.type} " + ("without `length`" if column.length is None else f"of length {column.length}")
    return (
        f"feature `{feature.name}` reads lists of {feature.length} floats, and column `{name}` is {of}; declare it "
        f"with length: {feature.length}"
    )
