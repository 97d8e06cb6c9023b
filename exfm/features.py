"""Which raw columns a model reads and what becomes of them: sparse features (bags of ids) and dense ones (floats)."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SparseTransform = Literal["hash", "index", "bucketize"]
DenseTransform = Literal["identity", "log1p", "standardise"]


class SparseFeature(BaseModel):
    """One embedding table and the ids that look it up.

    Reads `column` (default: the feature's name), or 2 or more `columns` for a cross. A list column gives bags of
    several ids, summed; a null gives an empty bag, whose embedding is zero.

    transform
        `hash`: any integer or string, hashed and taken modulo `rows`;
        `index`: an integer in [0, rows), used as it is;
        `bucketize`: a number, replaced by how many of the ascending `boundaries` are ≤ it (`rows` = boundaries + 1).

    `width` is the embedding's width; without it the model's own is taken.

    >>> SparseFeature(name="age", transform="bucketize", boundaries=(18, 35, 65)).rows
    4
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    column: str | None = None
    columns: tuple[str, ...] = ()
    rows: int = Field(gt=0)
    width: int | None = Field(default=None, gt=0)
    transform: SparseTransform = "hash"
    boundaries: tuple[float, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _rows_of_buckets(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("transform") == "bucketize" and "rows" not in data:
            return {**data, "rows": len(data.get("boundaries", ())) + 1}
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
        return self.columns or (self.column or self.name,)


class DenseFeature(BaseModel):
    """One float. Reads `column` (default: the feature's name); null becomes 0 after the transform.

    transform: `identity`; `log1p`: sign(x)·log(1 + |x|); `standardise`: (x − mean) / std.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    column: str | None = None
    transform: DenseTransform = "identity"
    mean: float = 0.0
    std: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> DenseFeature:
        if self.transform != "standardise" and (self.mean, self.std) != (0.0, 1.0):
            raise ValueError(f"feature `{self.name}`: `mean` and `std` belong to transform `standardise`")
        return self

    @property
    def reads(self) -> tuple[str, ...]:
        """The raw column this feature is made from."""
        return (self.column or self.name,)


class FeatureSet(BaseModel):
    """Everything a model reads from a row, in the order in which the model sees it.

    >>> features = FeatureSet(
    ...     sparse=[SparseFeature(name="user_id", rows=1000),
    ...             SparseFeature(name="user_x_ad", columns=["user_id", "ad_id"], rows=5000)],
    ...     dense=[DenseFeature(name="age", transform="log1p")])
    >>> features.needs_columns()
    ('user_id', 'ad_id', 'age')
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sparse: tuple[SparseFeature, ...] = Field(min_length=1)
    dense: tuple[DenseFeature, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> FeatureSet:
        for names in (self.sparse_names, self.dense_names):
            for name in names:
                if names.count(name) > 1 or not name or set(name) & set("./"):
                    raise ValueError(f"feature name `{name}` is repeated, empty, or has a `.` or `/` in it")
        return self

    @cached_property
    def sparse_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.sparse)

    @cached_property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.dense)

    @property
    def all(self) -> tuple[SparseFeature | DenseFeature, ...]:
        return (*self.sparse, *self.dense)

    def needs_columns(self) -> tuple[str, ...]:
        """Raw columns to read, each once, in order of first use."""
        return tuple(dict.fromkeys(column for f in self.all for column in f.reads))

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.sparse_names, *self.dense_names)

    def select(self, names: Collection[str]) -> FeatureSet:
        """Those of the features that are named, in the order in which they stand here."""
        return FeatureSet(
            sparse=tuple(feature for feature in self.sparse if feature.name in names),
            dense=tuple(feature for feature in self.dense if feature.name in names),
        )
