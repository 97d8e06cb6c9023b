"""Dense features: one raw number of a row, or a list of floats, and the floats they turn into.

    clip         x ← min(max(x, low), high)
    transform    `identity`, `log1p`, `logit`, `standardise`, `quantiles`; of a time `hour_of_day`, `hour_of_week`
    sigmas       of a standardised value: y ← min(max(y, −sigmas), sigmas)

Mean and standard deviation are settings, or with `statistics: online` those of the rows that the model has learned so
far, as quantiles always are (exfm/features/statistics.py).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from exfm.errors import ConfigError
from exfm.features.calendar import EVENT_TIME, OFFSET, PLACES

DenseTransform = Literal["identity", "log1p", "logit", "standardise", "quantiles", "hour_of_day", "hour_of_week"]

LARGEST_INPUT = 2**24
"""The largest size of a dense feature after its transform, and of a row's weight. Beyond it float32 holds whole numbers
only: in every sum that such a value enters, what inputs of order 1 contribute is rounded away."""

LEAST_RATE = 1e-6
"""Rates nearer to 0 or 1 count as this near for `logit`."""

SIGMAS, BUCKETS = 10.0, 8
"""Of a feature with statistics learned online, where its config does not say."""


class DenseFeature(BaseModel):
    """A number. Reads `column` (default: the feature's name); null becomes 0 after the transform.

    >>> DenseFeature(name="price", transform="log1p", statistics="online").inputs
    1
    >>> DenseFeature(name="price", transform="quantiles", buckets=3).labels
    ('price:0', 'price:1', 'price:2')
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(description="Name of the feature.")
    column: str | None = Field(default=None, description="Raw column to read; default: the feature's name.")
    transform: DenseTransform = Field(
        default="identity",
        description="`identity`, `log1p`: sign(x)·log(1 + |x|), `logit`: log(x / (1 − x)) of a rate, `standardise`: "
        "(x − mean) / std, `quantiles`: a 1 in one of `buckets` inputs, which each hold as many of the rows learned so "
        "far; or of a time (`event_time_ms` unless `column` is given) `hour_of_day` or `hour_of_week`: sine and cosine "
        "of its place in day or week.",
    )
    mean: float = Field(default=0.0, description="For `standardise`: the mean.")
    std: float = Field(default=1.0, gt=0, description="For `standardise`: the standard deviation.")
    statistics: Literal["fixed", "online"] = Field(
        default="fixed",
        description="`online`: mean and standard deviation are those of the rows learned so far, and `standardise`, "
        "`log1p` and `logit` are standardised by them; `fixed`: they are `mean` and `std`.",
    )
    clip: tuple[float, float] | None = Field(
        default=None,
        description="The least and the greatest raw value: what lies beyond becomes that. Null: any number.",
    )
    sigmas: float | None = Field(
        default=None,
        gt=0,
        le=LARGEST_INPUT,
        description=f"Standard deviations at which a standardised value is cut off; null: {SIGMAS:g} with `statistics: "
        "online`, else none.",
    )
    length: int | None = Field(
        default=None,
        gt=0,
        description="For a column of lists of floats, such as embeddings made elsewhere: how many values every list "
        "has. Each is an input, so that the first layer projects them; a null list is zeros.",
    )
    buckets: int | None = Field(
        default=None,
        ge=2,
        le=256,
        description=f"For `quantiles`: how many inputs there are; null: {BUCKETS}.",
    )

    utc_offset: str = Field(
        default="+00:00",
        pattern=OFFSET,
        description='For `hour_of_day` and `hour_of_week`: the distance of local time from UTC, as in "+02:00".',
    )

    serve_as: float | None = Field(
        default=None,
        description="For what is known in training only, such as the position of an ad: the raw value that is taken in "
        "its place wherever the student predicts; serving does not read the column. Null: the logged value, always.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> DenseFeature:
        of = f"feature `{self.name}`"
        if self.transform != "standardise" and (self.mean, self.std) != (0.0, 1.0):
            raise ValueError(f"{of}: `mean` and `std` belong to transform `standardise`")
        if self.statistics == "online" and self.transform not in ("standardise", "log1p", "logit"):
            raise ValueError(
                f"{of}: `statistics: online` belongs to transform `standardise`, `log1p` or `logit`, and this one's is "
                f"`{self.transform}`"
            )
        if self.statistics == "online" and (self.mean, self.std) != (0.0, 1.0):
            raise ValueError(f"{of}: `mean` and `std` are learned with `statistics: online`; leave one of them out")
        if self.sigmas is not None and not (self.transform == "standardise" or self.statistics == "online"):
            raise ValueError(f"{of}: `sigmas` belongs to transform `standardise`, or to `statistics: online`")
        if self.buckets is not None and self.transform != "quantiles":
            raise ValueError(f"{of}: `buckets` belongs to transform `quantiles`")
        if self.length is not None and (self.transform != "identity" or self.serve_as is not None):
            raise ValueError(f"{of}: a list of floats (`length`) is taken as it is, with `clip` at most")
        if not self.of_time and self.utc_offset != "+00:00":
            raise ValueError(f"{of}: `utc_offset` belongs to `hour_of_day` and `hour_of_week`")
        if self.of_time and self.clip is not None:
            raise ValueError(f"{of}: `clip` is for numbers, and its transform is `{self.transform}`")
        if self.of_time and self.serve_as is not None:
            raise ValueError(f"{of}: `serve_as` is for numbers; without it a server takes the time of the request")
        if self.clip is not None:
            self._check_clip(*self.clip)
        return self

    def _check_clip(self, low: float, high: float) -> None:
        if not low < high:
            raise ValueError(f"feature `{self.name}`: clip [{low:g}, {high:g}] has to go from a number to a larger one")
        if (able := self._bearable) is not None and not able[0] <= low < high <= able[1]:
            raise ValueError(
                f"feature `{self.name}`: clip [{low:g}, {high:g}] leaves values that are larger than {LARGEST_INPUT:,} "
                f"after the transform; it can lie in [{able[0]:g}, {able[1]:g}]"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """The raw column this feature is made from."""
        return (self.column or (EVENT_TIME if self.of_time else self.name),)

    @property
    def of_time(self) -> bool:
        """True for a feature that is the hour of a time."""
        return self.transform in PLACES

    @property
    def online(self) -> bool:
        """True if the feature's floats depend on rows learned so far, not only on the row itself."""
        return self.statistics == "online" or self.transform == "quantiles"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the floats that the feature turns into."""
        if self.transform == "quantiles":
            return tuple(f"{self.name}:{bucket}" for bucket in range(self.buckets or BUCKETS))
        if self.length is not None:
            return tuple(f"{self.name}:{place}" for place in range(self.length))
        if self.of_time:
            return f"{self.name}:sin", f"{self.name}:cos"
        return (self.name,)

    @property
    def inputs(self) -> int:
        """Number of floats that the feature turns into."""
        return len(self.labels)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the greatest raw value whose transform is at most LARGEST_INPUT in size; None if any number is
        allowed.

        >>> DenseFeature(name="age", transform="standardise", mean=40, std=0.5).bounds
        (-8388568.0, 8388648.0)
        >>> DenseFeature(name="price", transform="log1p").bounds is None
        True
        """
        return None if self.clip is not None else self._bearable

    @property
    def _bearable(self) -> tuple[float, float] | None:
        """`bounds`, were there no clip."""
        if self.online or self.of_time or self.transform in ("log1p", "logit") or self.sigmas is not None:
            return None
        return self.mean - LARGEST_INPUT * self.std, self.mean + LARGEST_INPUT * self.std


def on_its_scale(transform: DenseTransform, x: np.ndarray) -> np.ndarray:
    """Apply `log1p` or `logit` to raw values, of any shape; other transforms leave them as they are.

    >>> on_its_scale("logit", np.array([0.5, 1.0])).round(2).tolist()
    [0.0, 13.82]
    """
    if transform == "log1p":
        return np.asarray(np.sign(x) * np.log1p(np.abs(x)))
    if transform == "logit":
        p = np.clip(x, LEAST_RATE, 1 - LEAST_RATE)
        return np.asarray(np.log(p) - np.log1p(-p))
    return x


def check_number(feature: DenseFeature, kind: str, *, number: bool) -> None:
    """Raise ConfigError if the column that a feature reads holds no numbers."""
    if not number:
        raise ConfigError(
            f"dense feature `{feature.name}` reads column `{feature.reads[0]}` of type {kind}; it needs a number"
        )
