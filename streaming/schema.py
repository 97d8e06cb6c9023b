"""Schema of rows: raw features, tasks and their attribution windows, and the derived Arrow schemas.

One `RowSchema` gives all the shapes a row takes on its way:

    impression  ->  settled (labels joined)  ->  augmented (teacher logits, lake position)
"""

from __future__ import annotations

import difflib
import zoneinfo
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

ColumnType = Literal["int64", "string", "float32", "list<int64>", "list<string>", "list<float32>"]

_ARROW: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "string": pa.string(),
    "float32": pa.float32(),
    "list<int64>": pa.list_(pa.int64()),
    "list<string>": pa.list_(pa.string()),
    "list<float32>": pa.list_(pa.float32()),
}

SAMPLE_WEIGHT = "sample_weight"
"""A column of this name says what its row counts: in every loss and in every metric."""

UNKNOWN = "unknown:"
"""Before a task's name, in the `task` of feedback: what the label of that task is will never be known."""

MERGE_TIME = "merge_time_ms"
"""The merge key at which an impression was shown: what counts for as-of features, its own and others'."""

FEEDBACK_TIME = "feedback_time_ms_"
"""Before a task's name: the merge key at which the label came; null where none did."""

LABEL_PREFIXES = ("label_", "teacher_logit_", FEEDBACK_TIME)
"""Columns of tasks begin with these."""

RESERVED_NAMES = frozenset(
    {"impression_id", "event_time_ms", "vertical", "lake_seq", "block", "settlement", "teacher_version"}
    | {"teacher_embedding", "teacher_space"}
    | {"scored_at_ms", "event_date", MERGE_TIME, "source_topic", "source_partition", "source_offset", "source_row"}
)
"""Columns that every lake has."""

_ASOF_KINDS = ("rate", "count", "residual", "since", "last")

POSITION_FIELDS = (
    pa.field("source_topic", pa.string(), nullable=False),
    pa.field("source_partition", pa.int32(), nullable=False),
    pa.field("source_offset", pa.int64(), nullable=False),
    pa.field("source_row", pa.int32(), nullable=False),
)

EMBEDDING_FIELDS = (pa.field("teacher_embedding", pa.binary()), pa.field("teacher_space", pa.int32()))


class Column(BaseModel):
    """One raw feature column, stored in the lake as received.

    A value outside `minimum` and `maximum` makes its row a dead letter (`out_of_range:<name>`), and so does a list of
    more than `max_length` values (`too_long:<name>`), or of floats with another number of them than `length`
    (`wrong_length:<name>`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(description="name of the column, as in the messages")
    type: ColumnType = Field(default="int64", description="type of its values")
    nullable: bool = Field(default=False, description="whether a row may lack it")
    minimum: int | float | None = Field(
        default=None, description="columns of numbers: a smaller value makes its row a dead letter"
    )
    maximum: int | float | None = Field(
        default=None, description="columns of numbers: a larger value makes its row a dead letter"
    )
    max_length: int | None = Field(
        default=None,
        gt=0,
        description="list columns: a longer list makes its row a dead letter; null: as many values as the examples "
        "topic can carry in one row",
    )

    length: int | None = Field(
        default=None,
        gt=0,
        description="list<float32> columns, such as embeddings: the number of values that every list has; another "
        "makes its row a dead letter",
    )

    @model_validator(mode="before")
    @classmethod
    def _whole_weights(cls, data: Any) -> Any:
        """Weights of 1 and 4 are written as whole numbers, and are read as floats like any others."""
        whole = isinstance(data, dict) and data.get("name") == SAMPLE_WEIGHT and data.get("type", "int64") == "int64"
        return data | {"type": "float32"} if whole else data

    @model_validator(mode="after")
    def _consistent(self) -> Column:
        if self.length is not None and self.type != "list<float32>":
            raise ValueError(f"column `{self.name}` is {self.type}; `length` is for list<float32>")
        if self.length is not None and self.max_length is not None:
            raise ValueError(f"column `{self.name}` has `length` and `max_length`; leave one of them out")
        if self.max_length is not None and not self.type.startswith("list<"):
            raise ValueError(f"column `{self.name}` is {self.type}; `max_length` is for lists")
        return self

    @property
    def arrow_type(self) -> pa.DataType:
        return _ARROW[self.type]


class Task(BaseModel):
    """One binary target. Its label is settled `window_s` seconds of event time after the impression.

    `given` names the task it is conditional on (a conversion is defined on clicked rows only).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(description="name of the task, as in the feedback")
    window_s: float = Field(
        gt=0, description="attribution window: seconds of event time after the impression in which feedback counts"
    )
    given: str | None = Field(
        default=None, description="the task that this one is conditional on: rows without its label are not applicable"
    )

    @property
    def window_ms(self) -> int:
        return round(self.window_s * 1000)


class AsOfFeature(BaseModel):
    """Feature of what was known of a row's key when the row was shown: `rate`, `count`, `residual`, `since` or `last`.

    >>> AsOfFeature(name="user_rate", by="user_id", rate="ctr", half_life_s=600).by
    ('user_id',)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(description="name of the feature; its columns begin with it")
    by: tuple[str, ...] = Field(
        description="the key: a column, or several that are crossed; a rate is smoothed towards that of the key "
        "without its last column"
    )
    rate: str | None = Field(default=None, description="the share of impressions of the key with this task's label")
    count: str | None = Field(default=None, description="how many: `shown` counts impressions, a task its labels")
    residual: str | None = Field(
        default=None, description="how far the key's rate of this task lies above what the rate `against` predicts"
    )
    since: str | None = Field(
        default=None, description="seconds from the last impression (`shown`), or label of a task, to the tick"
    )
    last: int | None = Field(default=None, gt=0, le=1024, description="the last impressions of the key, newest last")
    of: tuple[str, ...] = Field(
        default=(),
        description="for `last`, what to list of each: int64 columns, tasks (1 where the label has come), and `gap_s`, "
        "the seconds between it and the tick",
    )
    having: str | None = Field(
        default=None, description="for `last`: only impressions with this task's label, once it has come; null: all"
    )
    against: str | None = Field(
        default=None, description="for `residual`: name of the as-of rate that predicts, such as that of the other side"
    )
    half_life_s: float | None = Field(
        default=None, gt=0, description="for rate, count and residual: impressions count half after so long; null: full"
    )
    prior: float = Field(
        default=10.0, gt=0, description="impressions that a rate's parent counts for, where the key has few of its own"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_column(cls, data: Any) -> Any:
        return data | {"by": (data["by"],)} if isinstance(data, dict) and isinstance(data.get("by"), str) else data

    @model_validator(mode="after")
    def _consistent(self) -> AsOfFeature:
        kinds = [kind for kind in _ASOF_KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(
                f"as-of feature `{self.name}` has {' and '.join(kinds) or 'no kind'}; give it one of {_ASOF_KINDS}"
            )
        if not self.by or len(set(self.by)) < len(self.by):
            raise ValueError(f"as-of feature `{self.name}`: `by` needs one column or more, each once")
        for setting, of in (("of", "last"), ("against", "residual")):
            if bool(getattr(self, setting)) != (self.kind == of):
                raise ValueError(f"as-of feature `{self.name}`: `{of}` needs `{setting}`, and no other kind has it")
        if self.having is not None and self.kind != "last":
            raise ValueError(f"as-of feature `{self.name}`: `having` is for `last`")
        if self.half_life_s is not None and self.kind in ("since", "last"):
            raise ValueError(f"as-of feature `{self.name}`: `half_life_s` is for rate, count and residual")
        return self

    @property
    def kind(self) -> str:
        """Name of the one of `rate`, `count`, `residual`, `since`, `last` that is set."""
        return next(kind for kind in _ASOF_KINDS if getattr(self, kind) is not None)

    @property
    def event(self) -> str:
        """Name of the events that are counted: `shown`, or a task."""
        return self.having or "shown" if self.kind == "last" else str(getattr(self, self.kind))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lake's columns that the feature fills."""
        if self.kind == "last":
            kinds: dict[str, ColumnType] = {"gap_s": "list<float32>"}
            return tuple(Column(name=f"{self.name}_{item}", type=kinds.get(item, "list<int64>")) for item in self.of)
        value = Column(name=self.name, type="float32", nullable=self.kind == "since")
        counted = (Column(name=f"{self.name}_shown", type="float32"),) if self.kind in ("rate", "residual") else ()
        return (value, *counted)


class AsOf(BaseModel):
    """Settings of a stream's as-of features, which say what was known at the last tick before a row was shown.

    >>> AsOf(features=[AsOfFeature(name="user_rate", by="user_id", rate="ctr")]).columns[1].name
    'user_rate_shown'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tick_s: float = Field(
        default=10.0,
        gt=0,
        description="seconds of event time between ticks: a row knows what had happened by the last one before it",
    )
    max_keys: int = Field(
        default=1_000_000, ge=4, description="keys remembered of each `by`; a quarter, the longest unseen, makes room"
    )
    expire_s: float = Field(
        default=30 * 86_400.0,
        gt=0,
        description="seconds of event time after its last impression when a key is forgotten",
    )
    features: tuple[AsOfFeature, ...] = Field(default=(), description="the features")

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lake's columns that the features fill."""
        return tuple(column for feature in self.features for column in feature.columns)

    @property
    def tick_ms(self) -> int:
        return round(self.tick_s * 1000)

    @property
    def expire_ms(self) -> int:
        return round(self.expire_s * 1000)


class SettlementGroup(BaseModel):
    """Tasks of equal window: they settle together, in one row of the lake. Named after its first task."""

    model_config = ConfigDict(frozen=True)

    name: str
    window_ms: int
    tasks: tuple[Task, ...]


def known_zone(name: str) -> str:
    """Validate the name of an IANA time zone. Raises ValueError for another, with one that is close.

    >>> known_zone("Europe/Berln")
    Traceback (most recent call last):
    ...
    ValueError: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`? IANA names are taken, and UTC
    """
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("ms")), name)
    except pa.ArrowException:
        folded = {zone.lower(): zone for zone in zoneinfo.available_timezones()}
        near = difflib.get_close_matches(name.lower(), folded, n=1)
        meant = f"did you mean `{folded[near[0]]}`? " if near else ""
        raise ValueError(f"unknown time zone `{name}`; {meant}IANA names are taken, and UTC") from None
    return name


Zone = Annotated[str, AfterValidator(known_zone)]


class RowSchema(BaseModel):
    """The columns and tasks of a stream.

    >>> schema = RowSchema(columns=[Column(name="user_id")], tasks=[Task(name="ctr", window_s=60)])
    >>> schema.impression.names
    ['impression_id', 'event_time_ms', 'vertical', 'user_id']
    >>> [group.name for group in schema.groups]
    ['ctr']
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    impression_id: Literal["int64", "string"] = Field(default="int64", description="type of the ids")
    columns: tuple[Column, ...] = Field(description="the raw feature columns")
    tasks: tuple[Task, ...] = Field(description="the tasks, each with its attribution window")
    undeclared: Literal["drop", "keep"] = Field(
        default="drop",
        description="columns that messages have and `columns` does not name: `drop`, or `keep`: a new one joins the "
        "lake while the stream runs, nullable, its type that of its first value",
    )

    asof: AsOf = Field(
        default=AsOf(), description="what was known when a row was shown; written under `features.asof` and `asof`"
    )
    teacher_embedding: int = Field(
        default=0,
        ge=0,
        description="values of a teacher's representation that rows carry beside its logits; written under "
        "`teacher.model.representation`",
    )
    event_time_zone: Zone | None = Field(
        default=None,
        description="the IANA zone, such as Europe/Berlin, of times in messages and requests that are texts or "
        "timestamps without an offset; null: UTC",
    )

    @model_validator(mode="after")
    def _consistent(self) -> RowSchema:
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1 or name in RESERVED_NAMES or name.startswith(LABEL_PREFIXES):
                raise ValueError(f"column `{name}` is declared twice, or has a reserved name")
        weights = [c for c in self.columns if c.name == SAMPLE_WEIGHT]
        if any(c.type != "float32" or c.nullable for c in weights):
            raise ValueError(
                f"column `{SAMPLE_WEIGHT}` says what a row counts, and is {weights[0].type}"
                f"{', nullable' if weights[0].nullable else ''}; it needs type float32, and a value in every row"
            )
        tasks = {task.name: task for task in self.tasks}
        if len(tasks) != len(self.tasks) or not tasks:
            raise ValueError("tasks need at least one entry and distinct names")
        for task in self.tasks:
            if task.name.startswith(UNKNOWN):
                raise ValueError(f"task `{task.name}` begins with `{UNKNOWN}`, which feedback uses; name it otherwise")
            if task.given is not None and task.given not in tasks:
                raise ValueError(
                    f"task `{task.name}` is given `{task.given}`, which is not a task; tasks: {', '.join(tasks)}"
                )
            if task.given is not None and tasks[task.given].window_s > task.window_s:
                raise ValueError(
                    f"task `{task.name}` settles after {task.window_s:g} s, before its condition `{task.given}` "
                    f"({tasks[task.given].window_s:g} s); give it a window at least as long"
                )
        self._check_asof()
        return self

    def _check_asof(self) -> None:
        tasks, columns = [task.name for task in self.tasks], {column.name: column for column in self.columns}
        names = [*columns, *(column.name for column in self.asof.columns)]
        rates = {feature.name: feature for feature in self.asof.features if feature.kind == "rate"}
        for feature in self.asof.features:
            of = f"as-of feature `{feature.name}`"
            for column in feature.columns:
                if (
                    names.count(column.name) > 1
                    or column.name in RESERVED_NAMES
                    or column.name.startswith(LABEL_PREFIXES)
                ):
                    raise ValueError(f"{of} fills column `{column.name}`, a name that is taken; give it another name")
            for name in feature.by:
                if name != "vertical" and (name not in columns or columns[name].type not in ("int64", "string")):
                    kind = f"is {columns[name].type}" if name in columns else "is no column of `rows.columns`"
                    keys = [name for name, column in columns.items() if column.type in ("int64", "string")]
                    raise ValueError(
                        f"{of}: `by` names `{name}`, which {kind}; keys can be: vertical, {', '.join(keys)}"
                    )
            events = tasks if feature.kind in ("rate", "residual") else ["shown", *tasks]
            if feature.event not in events:
                raise ValueError(f"{of}: {feature.kind} of `{feature.event}`; it can be of: {', '.join(events)}")
            listable = [name for name, column in columns.items() if column.type == "int64"]
            for item in feature.of:
                if item not in (*listable, *tasks, "gap_s") or (item in tasks and item in columns):
                    raise ValueError(
                        f"{of}: `of` names `{item}`; it can name int64 columns, tasks and gap_s: "
                        f"{', '.join([*listable, *tasks, 'gap_s'])}"
                    )
            if feature.against is not None:
                if feature.against not in rates or rates[feature.against].rate != feature.residual:
                    able = [name for name, rate in rates.items() if rate.rate == feature.residual]
                    raise ValueError(
                        f"{of}: `against` names `{feature.against}`; as-of rates of `{feature.residual}`: "
                        f"{', '.join(able) or 'none yet'}"
                    )
                if feature.residual in self.given:
                    raise ValueError(f"{of}: `{feature.residual}` is conditional; residuals are of tasks of every row")

    def with_columns(self, more: Iterable[Column]) -> RowSchema:
        """The same schema with those columns of `more` appended that it lacks."""
        names = {column.name for column in self.columns}
        columns = (*self.columns, *(column for column in more if column.name not in names))
        return RowSchema(
            impression_id=self.impression_id,
            columns=columns,
            tasks=self.tasks,
            undeclared=self.undeclared,
            event_time_zone=self.event_time_zone,
            asof=self.asof,
            teacher_embedding=self.teacher_embedding,
        )

    @property
    def feature_columns(self) -> tuple[Column, ...]:
        """Columns that features can be made of: those of messages, and those that as-of features fill."""
        return (*self.columns, *self.asof.columns)

    @property
    def weighted(self) -> bool:
        """True if rows have a sample weight."""
        return any(column.name == SAMPLE_WEIGHT for column in self.columns)

    @property
    def given(self) -> dict[str, str]:
        """Condition of each conditional task, by name."""
        return {task.name: task.given for task in self.tasks if task.given is not None}

    @property
    def id_type(self) -> pa.DataType:
        return _ARROW[self.impression_id]

    @cached_property
    def groups(self) -> tuple[SettlementGroup, ...]:
        """Settlement groups, shortest window first."""
        windows = sorted({task.window_ms for task in self.tasks})
        grouped = [(w, tuple(t for t in self.tasks if t.window_ms == w)) for w in windows]
        return tuple(SettlementGroup(name=tasks[0].name, window_ms=w, tasks=tasks) for w, tasks in grouped)

    @property
    def feedback_tasks(self) -> tuple[str, ...]:
        """Allowed values of `task` in feedback: every task, then every task as unknown."""
        names = tuple(task.name for task in self.tasks)
        return (*names, *(UNKNOWN + name for name in names))

    @cached_property
    def _identity(self) -> tuple[pa.Field, ...]:
        return (
            pa.field("impression_id", self.id_type, nullable=False),
            pa.field("event_time_ms", pa.int64(), nullable=False),
            pa.field("vertical", pa.string(), nullable=False),
        )

    @cached_property
    def _raw(self) -> tuple[pa.Field, ...]:
        return tuple(pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in self.columns)

    @cached_property
    def impression(self) -> pa.Schema:
        """An impression as received: identity and raw features."""
        return pa.schema([*self._identity, *self._raw])

    @cached_property
    def admitted(self) -> pa.Schema:
        """An impression with the values of its as-of features."""
        asof = (pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in self.asof.columns)
        return pa.schema([*self.impression, *asof])

    @cached_property
    def feedback(self) -> pa.Schema:
        """A click, conversion…: its impression, time, and one of `feedback_tasks`."""
        return pa.schema(
            [
                pa.field("impression_id", self.id_type, nullable=False),
                pa.field("event_time_ms", pa.int64(), nullable=False),
                pa.field("task", pa.string(), nullable=False),
            ]
        )

    @cached_property
    def settled(self) -> pa.Schema:
        """A row whose labels are final for one settlement group. Null: a label of another group, one that does not
        apply, or one that is unknown."""
        labels = (pa.field(f"label_{t.name}", pa.int8()) for t in self.tasks)
        times = (pa.field(f"{FEEDBACK_TIME}{t.name}", pa.int64()) for t in self.tasks)
        return pa.schema(
            [
                *self.admitted,
                pa.field("settlement", pa.string(), nullable=False),
                *labels,
                pa.field(MERGE_TIME, pa.int64(), nullable=False),
                *times,
                *POSITION_FIELDS,
            ]
        )

    @cached_property
    def augmented(self) -> pa.Schema:
        """A lake row: a settled row with its position in the log, its block, the teacher's logits and, where it has
        one, its representation of the row (exfm/features/representation.py) and whose space that is in."""
        logits = (pa.field(f"teacher_logit_{t.name}", pa.float32()) for t in self.tasks)
        return pa.schema(
            [
                pa.field("lake_seq", pa.int64(), nullable=False),
                pa.field("block", pa.int64(), nullable=False),
                *self.settled,
                *logits,
                *(EMBEDDING_FIELDS if self.teacher_embedding else ()),
                pa.field("teacher_version", pa.int64()),
                pa.field("scored_at_ms", pa.int64(), nullable=False),
                pa.field("event_date", pa.string(), nullable=False),
            ]
        )


def is_text(kind: pa.DataType) -> bool:
    """True for texts, however Arrow stores them."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_list(kind: pa.DataType) -> bool:
    """True for lists, however Arrow stores them."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
