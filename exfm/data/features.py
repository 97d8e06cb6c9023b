"""Which raw columns a model reads and what becomes of them: sparse features (bags of ids), sequences (ids in order of
time), dense features (floats) and histories (what earlier rows with the same id were)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from exfm.data.calendar import EVENT_TIME, OFFSET, PLACES
from exfm.data.dense import LARGEST_INPUT, DenseFeature

SparseTransform = Literal["hash", "index", "bucketize", "hour_of_day", "day_of_week", "hour_of_week"]
LABEL, LOGIT = "label_", "teacher_logit_"  # what columns of a task begin with


class SparseFeature(BaseModel):
    """One embedding table and the ids that look it up.

    Reads `column` (default: the feature's name), or 2 or more `columns` for a cross. A list column gives bags of
    several ids, summed; a null gives an empty bag, whose embedding is zero.

    transform
        `hash`: any integer or string, hashed and taken modulo `rows`;
        `index`: an integer in [0, rows), used as it is;
        `bucketize`: a number, replaced by how many of the ascending `boundaries` are ≤ it (`rows` = boundaries + 1);
        `hour_of_day`, `day_of_week`, `hour_of_week`: a time in milliseconds since 1970, by default that of the event.

    `width` is the embedding's width; without it the model's own is taken.

    >>> SparseFeature(name="age", transform="bucketize", boundaries=(18, 35, 65)).rows
    4
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(description="Name of the feature and of its embedding table.")
    column: str | None = Field(default=None, description="Raw column to read; default: the feature's name.")
    columns: tuple[str, ...] = Field(default=(), description="Two or more raw columns to cross, instead of one.")
    rows: int = Field(gt=0, description="Rows of the embedding table.")
    width: int | None = Field(
        default=None, gt=0, description="Width of the embedding, a multiple of the model's; default: the model's."
    )
    transform: SparseTransform = Field(
        default="hash",
        description="`hash` an integer or string modulo `rows`, use an `index` as it is, `bucketize` a number, or take "
        "`hour_of_day`, `day_of_week` or `hour_of_week` of a time (`event_time_ms`, unless `column` says otherwise).",
    )
    boundaries: tuple[float, ...] = Field(
        default=(),
        description="For `bucketize`: ascending boundaries; the row is how many of them are at most the value.",
    )
    utc_offset: str = Field(
        default="+00:00",
        pattern=OFFSET,
        exclude_if=lambda offset: offset == "+00:00",
        description='For hours and days: the distance of local time from UTC, as in "+02:00".',
    )

    @model_validator(mode="before")
    @classmethod
    def _rows_of_buckets(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("transform") == "bucketize" and "rows" not in data:
            return {**data, "rows": len(data.get("boundaries", ())) + 1}
        if isinstance(data, dict) and data.get("transform") in PLACES and "rows" not in data:
            return {**data, "rows": PLACES[data["transform"]]}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> SparseFeature:
        if self.columns and self.column is not None:
            raise ValueError(f"feature `{self.name}` has both `column` and `columns`; give `columns` only for a cross")
        if len(self.columns) == 1:
            raise ValueError(f"feature `{self.name}` crosses 1 column; a cross needs 2 or more, else use `column`")
        if self.columns and self.transform != "hash":
            raise ValueError(f"feature `{self.name}` is a cross with transform `{self.transform}`; crosses are hashed")
        if (self.transform == "bucketize") != bool(self.boundaries):
            raise ValueError(f"feature `{self.name}`: `boundaries` and transform `bucketize` go together")
        if self.of_time and self.rows != PLACES[self.transform]:
            raise ValueError(
                f"feature `{self.name}` has {self.rows} rows, and {self.transform} has "
                f"{PLACES[self.transform]} values; leave `rows` out"
            )
        if not self.of_time and self.utc_offset != "+00:00":
            raise ValueError(f"feature `{self.name}`: `utc_offset` belongs to {', '.join(PLACES)}")
        if any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise ValueError(f"feature `{self.name}`: boundaries {list(self.boundaries)} must ascend strictly")
        if self.boundaries and self.rows != len(self.boundaries) + 1:
            raise ValueError(
                f"feature `{self.name}` has {self.rows} rows, but {len(self.boundaries)} boundaries make "
                f"{len(self.boundaries) + 1} buckets; leave `rows` out"
            )
        return self

    @property
    def reads(self) -> tuple[str, ...]:
        """The raw columns this feature is made from."""
        return self.columns or (self.column or (EVENT_TIME if self.of_time else self.name),)

    @property
    def of_time(self) -> bool:
        """Whether it is the hour or the day of a time."""
        return self.transform in PLACES


class SequenceFeature(BaseModel):
    """Ids in order of time, what a user did last for instance: one table, looked up for every place of the sequence.

    Reads `column` (default: the feature's name), a list of ids with the **most recent last**. Its last `length` ids are
    kept; nulls inside a list count as not there. Unlike a sparse feature's, the embeddings are not summed: attention
    pools them to `units` embeddings of the model's width (exfm/layers/pooling.py), which know the ids' places.

    `transform` is `hash` or `index`, as for sparse features.

    >>> SequenceFeature(name="seen", rows=100, length=3).keys
    ('seen:0', 'seen:1', 'seen:2')
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(description="Name of the feature and of its embedding table.")
    column: str | None = Field(
        default=None,
        description="Raw column to read, a list of ids with the most recent last; default: the feature's name.",
    )
    rows: int = Field(gt=0, description="Rows of the embedding table.")
    length: int = Field(gt=0, description="How many of the most recent ids are kept.")
    units: int = Field(
        default=1, gt=0, description="Embeddings of the model's width that attention pools the sequence to."
    )
    transform: Literal["hash", "index"] = Field(
        default="hash", description="`hash` an integer or string modulo `rows`, or use an `index` as it is."
    )

    @property
    def reads(self) -> tuple[str, ...]:
        """The raw column this feature is made from."""
        return (self.column or self.name,)

    @property
    def keys(self) -> tuple[str, ...]:
        """Key i of a batch holds the i-th most recent id: 0 is the last of the list."""
        return tuple(f"{self.name}:{i}" for i in range(self.length))


class HistoryFeature(BaseModel):
    """What a student's earlier rows with the same id were, as two dense inputs (exfm/data/history.py).

    by          the sparse feature whose ids have a history each, by their rows in its table;
    of          what is averaged: `label_<task>` or `teacher_logit_<task>` of a task of the student. None: of nothing,
                both inputs are always 0 (what the twin of a student has, which never saw a teacher);
    prior_rows  an id's average is drawn towards that of all ids as if it had this many more rows of that average;
    half_life_rows  after this many further rows of the same id a row counts half, for streams that run for months.
                None: all count alike. On MovieLens-1M 10, 20 and None do about equally well.
    rows        whose rows are averaged: the student's `own`, or those of `all` verticals that its batches hold.

    >>> HistoryFeature(name="user_ctr", by="user_id", of="label_ctr").task
    'ctr'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(description="Name of the history.")
    by: str = Field(description="The sparse feature whose ids have a history each.")
    of: str | None = Field(
        description="What is averaged: `label_<task>` or `teacher_logit_<task>`; null: nothing, both inputs are 0."
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
    rows: Literal["own", "all"] = Field(
        default="own",
        exclude_if=lambda whose: whose == "own",
        description="`own`: the average of the student's own rows; `all`: of the rows of all verticals. Its twin has "
        "the same.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> HistoryFeature:
        if self.of is not None and not self.task:
            raise ValueError(
                f"history `{self.name}` is of `{self.of}`; it can be of `label_<task>` or of `teacher_logit_<task>`"
            )
        return self

    @property
    def of_teacher(self) -> bool:
        return self.of is not None and self.of.startswith(LOGIT)

    @property
    def task(self) -> str:
        """The task whose labels or logits are averaged; empty for a history of nothing."""
        return next((self.of[len(p) :] for p in (LABEL, LOGIT) if self.of is not None and self.of.startswith(p)), "")


class FeatureSet(BaseModel):
    """Everything a model reads from a row, in the order in which the model sees it. Histories are a student's: they
    are made of its own rows, and a teacher of the same set does without.

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
                    f"there are: {', '.join(self.sparse_names)}"
                )
        return self

    @cached_property
    def sparse_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.sparse)

    @cached_property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.dense)

    @cached_property
    def table_names(self) -> tuple[str, ...]:
        """One embedding table each, in this order: sparse features, then sequences."""
        return (*self.sparse_names, *(feature.name for feature in self.sequence))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of a batch's ids, in order: a sparse feature's name, and the places of every sequence."""
        return (*self.sparse_names, *(key for feature in self.sequence for key in feature.keys))

    @cached_property
    def dense_labels(self) -> tuple[str, ...]:
        """Names of the floats that dense features become, in order."""
        return tuple(label for feature in self.dense for label in feature.labels)

    @cached_property
    def dense_slices(self) -> tuple[slice, ...]:
        """Which of those floats each dense feature is."""
        ends = [0, *accumulate(feature.inputs for feature in self.dense)]
        return tuple(slice(*pair) for pair in pairwise(ends))

    @cached_property
    def online(self) -> tuple[DenseFeature, ...]:
        """Dense features whose statistics are learned (exfm/data/statistics.py)."""
        return tuple(feature for feature in self.dense if feature.online)

    @property
    def dense_inputs(self) -> int:
        """Floats that a student's trunk gets in addition to embeddings: dense features, then two per history."""
        return len(self.dense_labels) + 2 * len(self.history)

    @property
    def all(self) -> tuple[SparseFeature | DenseFeature | SequenceFeature, ...]:
        """Those that are made of the row alone."""
        return (*self.sparse, *self.dense, *self.sequence)

    def needs_columns(self) -> tuple[str, ...]:
        """Raw columns to read, each once, in order of first use."""
        return tuple(dict.fromkeys(column for f in self.all for column in f.reads))

    @property
    def index_rows(self) -> dict[str, int]:
        """Columns that are used as an index, and the rows of the smallest table that each is an index into."""
        tables: list[SparseFeature | SequenceFeature] = [*self.sparse, *self.sequence]
        indexes = [feature for feature in tables if feature.transform == "index"]
        columns = {column for feature in indexes for column in feature.reads}
        return {name: min(f.rows for f in indexes if name in f.reads) for name in sorted(columns)}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Columns of dense features, and the values that all of these can take (`DenseFeature.bounds`); also of the
        weight of a row."""
        found: dict[str, tuple[float, float]] = {"sample_weight": (0.0, float(LARGEST_INPUT))}
        for feature in self.dense:
            (name,) = feature.reads
            if (own := feature.bounds) is not None:
                low, high = found.get(name, own)
                found[name] = max(low, own[0]), min(high, own[1])
        return found

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in (*self.all, *self.history))

    def select(self, names: Collection[str]) -> FeatureSet:
        """Those of the features that are named, in the order in which they stand here."""
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
        """These features, and more of each kind behind them. Raises ValueError as a new set of them does."""
        return FeatureSet(
            sparse=(*self.sparse, *sparse),
            dense=(*self.dense, *dense),
            sequence=(*self.sequence, *sequence),
            history=(*self.history, *history),
        )

    def without_teacher(self) -> FeatureSet:
        """The same inputs, those made of a teacher's logits always 0."""
        if not any(history.of_teacher for history in self.history):
            return self
        history = tuple(h.model_copy(update={"of": None}) if h.of_teacher else h for h in self.history)
        return FeatureSet(sparse=self.sparse, dense=self.dense, sequence=self.sequence, history=history)
