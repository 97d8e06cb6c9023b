"""Features of a model, by the raw columns they read: sparse (bags of ids), sequences (ids in order of time), dense
(floats) and histories (running averages over earlier rows with the same id)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from exfm.errors import ConfigError
from exfm.features.dense import LARGEST_INPUT, DenseFeature
from exfm.features.representation import EMBEDDING
from exfm.features.sparse import EventFeature, SequenceFeature, SparseFeature

D = TypeVar("D", SparseFeature, DenseFeature)
LABEL, LOGIT = "label_", "teacher_logit_"  # what columns of a task begin with
WIDTH = 16
"""Values of a representation that a history is of, unless it says otherwise."""


MOST_AVERAGED = 2**32
"""Ids of a feature that a history is by, at most."""


class HistoryFeature(BaseModel):
    """Running averages over a student's earlier rows with the same id, as dense inputs (exfm/features/histories).

    by          the sparse feature, a cross perhaps, whose ids have a history each, by their rows in its table;
    of          what is averaged: `label_<task>` or `teacher_logit_<task>` of a task of the student, or
                `teacher_embedding`, the teacher's representation of the rows. None: of nothing, all inputs are always 0
                (what the twin of a student has, which never saw a teacher);
    width       of `teacher_embedding`, how many of its values, the first ones, each of which is an input `average`;
    prior_rows  an id's average is drawn towards that of all ids as if it had this many more rows of that average;
    half_life_rows  after this many further rows of the same id a row counts half, for streams that run for months.
                None: all count alike. On MovieLens-1M 10, 20 and None do about equally well.
    half_life_s the same by event time: so many seconds later a row counts half, whatever came in between.
    rows        whose rows are averaged: the student's `own`, or those of `all` verticals that its batches hold;
    pool        `attention`: of `teacher_embedding`, the `last` rows, weighed by the row that asks.

    >>> HistoryFeature(name="user_ctr", by="user_id", of="label_ctr").task
    'ctr'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(description="Name of the history.")
    by: str = Field(description="The sparse feature whose ids have a history each.")
    of: str | None = Field(
        description="What is averaged: `label_<task>`, `teacher_logit_<task>`, or `teacher_embedding`, the teacher's "
        "representation; null: nothing, all inputs are 0."
    )
    width: int = Field(
        default=1,
        gt=0,
        description="Of `teacher_embedding`: how many of its values are averaged, the first ones, each an input; 16 "
        "where it is left out. Of anything else 1.",
    )
    prior_rows: float = Field(
        default=5.0,
        gt=0,
        allow_inf_nan=False,
        description="An id's average is drawn towards that of all ids as if the id had this many rows more.",
    )
    half_life_rows: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="After this many further rows of an id, a row counts half; null: all rows count alike.",
    )
    half_life_s: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="After so many seconds of event time a row counts half; null: time does not matter.",
    )
    inputs: tuple[Literal["average", "rows", "positives"], ...] = Field(
        default=("average", "rows"),
        min_length=1,
        description="What becomes an input: the `average` (of labels, the rate), how many `rows` it is of (of ctr, "
        "impressions), and of labels how many were `positives` (clicks).",
    )
    rows: Literal["own", "all"] = Field(
        default="own",
        description="`own`: the average of the student's own rows; `all`: of the rows of all verticals. Its twin has "
        "the same.",
    )

    pool: Literal["decay", "attention"] = Field(
        default="decay",
        description="`decay`: a running average; `attention`, of `teacher_embedding`: the `last` rows of the id, "
        "weighed by what the row that asks is.",
    )
    last: int | None = Field(
        default=None, gt=0, le=64, description="With `pool: attention`: how many of the last rows of an id are kept."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_vectors(cls, data: Any) -> Any:
        return {"width": WIDTH} | data if isinstance(data, dict) and data.get("of") == EMBEDDING else data

    @model_validator(mode="after")
    def _consistent(self) -> HistoryFeature:
        if self.of is not None and not self.task and self.of != EMBEDDING:
            raise ValueError(
                f"history `{self.name}` is of `{self.of}`; it can be of `label_<task>`, `teacher_logit_<task>` or "
                f"`{EMBEDDING}`"
            )
        if self.task and self.width != 1:
            raise ValueError(
                f"history `{self.name}` is of `{self.of}`, one value a row, and its width is {self.width}; leave it out"
            )
        if self.half_life_rows is not None and self.half_life_s is not None:
            raise ValueError(
                f"history `{self.name}` has `half_life_rows` {self.half_life_rows:g} and `half_life_s` "
                f"{self.half_life_s:g}: it forgets by rows or by time; leave one of them out"
            )
        attends, forgets = self.pool == "attention", self.half_life_rows is not None or self.half_life_s is not None
        if attends != (self.last is not None) or (attends and (forgets or bool(self.task))):
            raise ValueError(
                f"history `{self.name}`: `pool: attention` is of `{EMBEDDING}`, has `last`, the number of rows it "
                "reads, and no half-life; `decay` has no `last`"
            )
        if len(set(self.inputs)) < len(self.inputs) or (self.of_teacher and "positives" in self.inputs):
            raise ValueError(
                f"history `{self.name}` of `{self.of}` has inputs {', '.join(self.inputs)}; each may stand there once, "
                "and `positives` are of labels"
            )
        return self

    @property
    def of_teacher(self) -> bool:
        """True if it is made of what the teacher says, which a student that does not distil never reads."""
        return self.of is not None and (self.of.startswith(LOGIT) or self.of == EMBEDDING)

    @property
    def input_count(self) -> int:
        """Number of floats that it turns into: each of `inputs` is one, and the average one for each of its values."""
        return len(self.inputs) + ("average" in self.inputs) * (self.width - 1)

    @property
    def task(self) -> str:
        """The task whose labels or logits are averaged; empty for a history of anything else."""
        return next((self.of[len(p) :] for p in (LABEL, LOGIT) if self.of is not None and self.of.startswith(p)), "")


class FeatureSet(BaseModel):
    """All features that a model reads from a row, in the model's order. Histories are a student's: they are made of its
    own rows, and a teacher of the same set does without.

    >>> features = FeatureSet(
    ...     sparse=[SparseFeature(name="user_id", rows=1000),
    ...             SparseFeature(name="user_x_ad", columns=["user_id", "ad_id"], rows=5000)],
    ...     dense=[DenseFeature(name="age", transform="log1p")])
    >>> features.needs_columns()
    ('user_id', 'ad_id', 'age')
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    sparse: tuple[SparseFeature, ...] = Field(
        min_length=1, description="Features with an embedding table, looked up by ids."
    )
    dense: tuple[DenseFeature, ...] = Field(default=(), description="Features that are one float each.")
    sequence: tuple[SequenceFeature, ...] = Field(default=(), description="Features that are ids in order of time.")
    history: tuple[HistoryFeature, ...] = Field(
        default=(), description="Running averages of a student's earlier rows; teachers do without."
    )
    events: tuple[EventFeature, ...] = Field(
        default=(), max_length=1, description="Made of `teacher.model.sequence`, for the teacher alone; leave it out."
    )

    @model_validator(mode="after")
    def _consistent(self) -> FeatureSet:
        for names in (self.table_names, self.dense_names):
            for name in names:
                if names.count(name) > 1 or not name or set(name) & set("./"):
                    raise ValueError(f"feature name `{name}` is repeated, empty, or has a `.` or `/` in it")
        for label in self.dense_labels:
            if self.dense_labels.count(label) > 1:
                raise ValueError(f"feature name `{label}` is also that of an input of another feature; choose another")
        for key in self.sparse_names:
            if self.keys.count(key) > 1:
                raise ValueError(f"feature name `{key}` is also that of a place of a sequence; choose another")
        for history in self.history:
            if self.names.count(history.name) > 1 or not history.name or set(history.name) & set("./"):
                raise ValueError(f"history name `{history.name}` is repeated, empty, or has a `.` or `/` in it")
            if history.by not in self.sparse_names:
                raise ValueError(
                    f"history `{history.name}` is by `{history.by}`, which is not one of its sparse features; "
                    f"choose from {', '.join(self.sparse_names)}"
                )
            rows = self.sparse[self.sparse_names.index(history.by)].rows
            if rows > MOST_AVERAGED:
                raise ValueError(
                    f"history `{history.name}` is by `{history.by}`, which has {rows:,} ids, and keeps an average of "
                    f"each: at most {MOST_AVERAGED:,}; make it by a feature of fewer `rows` of the same column"
                )
        return self

    @cached_property
    def sparse_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.sparse)

    @cached_property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.dense)

    @property
    def tabled(self) -> tuple[SparseFeature | SequenceFeature, ...]:
        """Features with an embedding table: sparse features, then sequences."""
        return (*self.sparse, *self.sequence)

    @cached_property
    def table_names(self) -> tuple[str, ...]:
        """Names of the embedding tables, in order."""
        return tuple(feature.name for feature in self.tabled)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Keys of a batch's ids, in order: one per sparse feature, then one per position of every sequence."""
        return (*self.sparse_names, *(key for feature in self.sequence for key in feature.keys))

    @cached_property
    def dense_labels(self) -> tuple[str, ...]:
        """Names of the floats that dense features turn into, in order."""
        return tuple(label for feature in self.dense for label in feature.labels)

    @cached_property
    def dense_slices(self) -> tuple[slice, ...]:
        """Slice of the dense floats that each dense feature fills."""
        ends = [0, *accumulate(feature.inputs for feature in self.dense)]
        return tuple(slice(*pair) for pair in pairwise(ends))

    @cached_property
    def online(self) -> tuple[DenseFeature, ...]:
        """Dense features whose statistics are learned (exfm/features/statistics.py)."""
        return tuple(feature for feature in self.dense if feature.online)

    @property
    def dense_inputs(self) -> int:
        """Number of floats that a student's trunk gets besides embeddings: dense features, then histories."""
        return len(self.dense_labels) + sum(history.input_count for history in self.history)

    def unit_count(self, width: int) -> int:
        """Number of embeddings of `width` that sparse features and sequences make for a trunk (exfm/models/units.py).
        Raises ConfigError where a width is not a multiple of it.

        >>> FeatureSet(sparse=[SparseFeature(name="ad", rows=9, width=32)]).unit_count(8)
        4
        """
        for feature in self.sparse:
            if feature.width and feature.width % width:
                raise ConfigError(
                    f"feature `{feature.name}` is {feature.width} wide, the model {width}; make it a multiple of "
                    f"{width}, or leave its width out"
                )
        sparse = sum((feature.width or width) // width for feature in self.sparse)
        return sparse + sum(feature.units for feature in self.sequence)

    @property
    def timed(self) -> bool:
        """True if a history forgets by event time, so that learned rows need event times."""
        return any(history.half_life_s is not None for history in self.history)

    @property
    def embedding_width(self) -> int:
        """Values of the teacher's representation that its histories are of; 0: none is."""
        return max((history.width for history in self.history if history.of == EMBEDDING), default=0)

    @property
    def all(self) -> tuple[SparseFeature | DenseFeature | SequenceFeature, ...]:
        """Features made from the row itself: all but histories."""
        return (*self.sparse, *self.dense, *self.sequence)

    def needs_columns(self) -> tuple[str, ...]:
        """Raw columns to read, each once, in order of first use."""
        return tuple(dict.fromkeys(column for f in (*self.all, *self.events) for column in f.reads))

    @cached_property
    def train_only(self) -> tuple[SparseFeature | DenseFeature, ...]:
        """Features known in training only; when serving, a constant stands for them (exfm/features/as_served.py)."""
        candidates: list[SparseFeature | DenseFeature] = [*self.sparse, *self.dense]
        return tuple(feature for feature in candidates if feature.serve_as is not None)

    def serving_columns(self) -> tuple[str, ...]:
        """Raw columns to read for prediction only."""
        served = (feature for feature in self.all if feature not in self.train_only)
        return tuple(dict.fromkeys(column for feature in served for column in feature.reads))

    @cached_property
    def as_served(self) -> FeatureSet:
        """The same features, with those known in training only read from columns of constants."""

        def of(feature: D) -> D:
            column = {"column": served_column(feature.name)}
            return feature if feature.serve_as is None else feature.model_copy(update=column)

        if not self.train_only:
            return self
        sparse, dense = tuple(map(of, self.sparse)), tuple(map(of, self.dense))
        return FeatureSet(sparse=sparse, dense=dense, sequence=self.sequence, history=self.history)

    @property
    def index_rows(self) -> dict[str, int]:
        """Columns that are used as an index, with the rows of the smallest table that each indexes."""
        tables: list[SparseFeature | SequenceFeature] = [*self.sparse, *self.sequence]
        indexes = [feature for feature in tables if feature.transform == "index"]
        columns = {column for feature in indexes for column in feature.reads}
        return {name: min(f.rows for f in indexes if name in f.reads) for name in sorted(columns)}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Columns of dense features with the range of values that all of their features accept
        (`DenseFeature.bounds`); includes the column of row weights."""
        limits: dict[str, tuple[float, float]] = {"sample_weight": (0.0, float(LARGEST_INPUT))}
        for feature in self.dense:
            (name,) = feature.reads
            if (own := feature.bounds) is not None:
                low, high = limits.get(name, own)
                limits[name] = max(low, own[0]), min(high, own[1])
        return limits

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in (*self.all, *self.history))

    def select(self, names: Collection[str]) -> FeatureSet:
        """Select features by name, in the set's order."""
        return FeatureSet(
            sparse=tuple(feature for feature in self.sparse if feature.name in names),
            dense=tuple(feature for feature in self.dense if feature.name in names),
            sequence=tuple(feature for feature in self.sequence if feature.name in names),
            history=tuple(feature for feature in self.history if feature.name in names),
        )

    def with_more(
        self,
        sparse: Sequence[SparseFeature] = (),
        dense: Sequence[DenseFeature] = (),
        sequence: Sequence[SequenceFeature] = (),
        history: Sequence[HistoryFeature] = (),
    ) -> FeatureSet:
        """Append features of each kind to the set. Raises ValueError as a new set of them does."""
        return FeatureSet(
            sparse=(*self.sparse, *sparse),
            dense=(*self.dense, *dense),
            sequence=(*self.sequence, *sequence),
            history=(*self.history, *history),
        )

    def without_teacher(self) -> FeatureSet:
        """The same inputs, with those made of what a teacher says always 0."""
        if not any(history.of_teacher for history in self.history):
            return self
        history = tuple(h.model_copy(update={"of": None}) if h.of_teacher else h for h in self.history)
        return FeatureSet(sparse=self.sparse, dense=self.dense, sequence=self.sequence, history=history)


def served_column(name: str) -> str:
    """Name of the column that holds a feature's constant."""
    return f"{name}, as served"
