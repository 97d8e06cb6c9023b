"""Id features: one embedding table each, looked up by bags of ids, or by ids in order of time."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from exfm.features.calendar import EVENT_TIME, OFFSET, PLACES

SparseTransform = Literal["hash", "index", "bucketize", "hour_of_day", "day_of_week", "hour_of_week"]


GAPS = 32
"""Powers of two of a second: the last is 68 years."""

AGE = "gap_s"
"""What the list of seconds since each event was shown is called."""


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
    rows: int = Field(
        gt=0, description="How many ids there are: rows of the embedding table, unless `embeddings` makes it smaller."
    )
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
        description='For hours and days: the distance of local time from UTC, as in "+02:00".',
    )
    most: int | None = Field(
        default=None,
        gt=0,
        description="For a column of lists: how many ids of a bag are looked up, the first ones; null: all.",
    )
    serve_as: int | float | str | None = Field(
        default=None,
        description="For what is known in training only, such as the position of an ad: the raw value that is taken in "
        "its place wherever the student predicts; serving does not read the column. Null: the logged value, always.",
    )

    @model_validator(mode="before")
    @classmethod
    def _rows_of_buckets(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("table") == "plain":  # as configs had it before `embeddings`
            data = {key: value for key, value in data.items() if key != "table"}
        if "rows" in data:
            return data
        transform, boundaries = data.get("transform"), data.get("boundaries", ())
        if transform == "bucketize" and isinstance(boundaries, list | tuple):
            return {**data, "rows": len(boundaries) + 1}
        if isinstance(transform, str) and transform in PLACES:
            return {**data, "rows": PLACES[transform]}
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
        self._check_served()
        if self.most is not None and (self.columns or self.of_time):
            raise ValueError(f"feature `{self.name}`: `most` is for a column of lists; leave it out")
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

    def _check_served(self) -> None:
        value, of = self.serve_as, f"feature `{self.name}`: serve_as is `{self.serve_as}`"
        if value is None:
            return
        if self.columns or self.of_time:
            raise ValueError(f"{of}, which is for a feature of one column of ids or numbers; leave it out")
        if self.transform == "index" and not (isinstance(value, int) and 0 <= value < self.rows):
            raise ValueError(f"{of}, and its table has rows 0 to {self.rows - 1}; take one of these")
        if self.transform == "hash" and isinstance(value, float):
            raise ValueError(f"{of}, and what is hashed is an integer or a text; take one")
        if self.transform == "bucketize" and isinstance(value, str):
            raise ValueError(f"{of}, and what is cut into buckets is a number; take one")

    @property
    def reads(self) -> tuple[str, ...]:
        """Raw columns that this feature reads."""
        return self.columns or (self.column or (EVENT_TIME if self.of_time else self.name),)

    @property
    def of_time(self) -> bool:
        """True for a feature that is the hour or the day of a time."""
        return self.transform in PLACES


class SequenceFeature(BaseModel):
    """Ids in order of time (a user's last clicks, for instance): one table, looked up for every position of the
    sequence.

    Reads `column` (default: the feature's name), a list of ids with the **most recent last**. Its last `length` ids are
    kept; nulls inside a list count as not there. Unlike a sparse feature's, the embeddings are not summed: attention
    pools them to `units` embeddings of the model's width (exfm/models/units.py), which know the ids' places.

    `transform` is `hash` or `index`, as for sparse features; or `gap`: the column holds times in milliseconds since
    1970, of what is in another sequence perhaps, and row ⌊log₂(1 + s)⌋ is that of s seconds before the event.

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
    transform: Literal["hash", "index", "gap"] = Field(
        default="hash",
        description="`hash` an integer or string modulo `rows`, use an `index` as it is, or, of a list of times in "
        f"milliseconds, how long before the event each was: `gap`, in powers of two of a second ({GAPS} rows).",
    )

    @model_validator(mode="before")
    @classmethod
    def _rows_of_gaps(cls, data: Any) -> Any:
        gaps = isinstance(data, dict) and data.get("transform") == "gap" and "rows" not in data
        return {**data, "rows": GAPS} if gaps else data

    @property
    def reads(self) -> tuple[str, ...]:
        """Raw columns that this feature reads."""
        return (self.column or self.name, *([EVENT_TIME] if self.transform == "gap" else []))

    @property
    def keys(self) -> tuple[str, ...]:
        """Key i of a batch holds the i-th most recent id: 0 is the last of the list."""
        return tuple(f"{self.name}:{i}" for i in range(self.length))


class EventFeature(BaseModel):
    """Earlier events of a row's key. An item's column holds the row's own id, and the list `<name>_<column>` those of
    the events; `<name>_<task>` is 1 where the label had come, and `<name>_gap_s` the seconds since each was shown.

    >>> ad = SparseFeature(name="ad", rows=100)
    >>> EventFeature(name="seen", items=(ad,), tasks=("ctr",), windows_s=(60.0,), length=8).reads
    ('ad', 'seen_ad', 'seen_ctr', 'seen_gap_s')
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="what the names of the lists begin with")
    items: tuple[SparseFeature, ...] = Field(description="how the ids of a token are read")
    tasks: tuple[str, ...] = Field(description="tasks whose labels are actions")
    windows_s: tuple[float, ...] = Field(description="how long a task's label may still come; 0: the list says")
    length: int = Field(description="how many of the last events are read")

    @property
    def lists(self) -> tuple[str, ...]:
        """Columns that hold the events."""
        columns = [feature.reads[0] for feature in self.items]
        return tuple(f"{self.name}_{of}" for of in (*columns, *self.tasks, AGE))

    @property
    def reads(self) -> tuple[str, ...]:
        return (*(feature.reads[0] for feature in self.items), *self.lists)

    @property
    def actions(self) -> int:
        """Number of actions; the last is the candidate's, which has none yet."""
        return 3 ** len(self.tasks) + 1
