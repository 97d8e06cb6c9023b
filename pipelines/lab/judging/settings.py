"""Settings of judging beyond losses: segments, decisions, bids, and choices with their propensities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from pipelines.core.config.topics import Frozen
from streaming.errors import BadInput

SECOND_HALF = 0.5
"""Settings are chosen before this share of the stream, arms are judged after it."""


class Ranking(Frozen):
    """Logged choices among candidates: rows of one request are its candidates, those that were not shown included
    (their labels are unknown), each with the probability by which the log chose it."""

    request: str = Field(description="column whose value the candidates of one request share")
    propensity: str = Field(description="column: the probability by which the candidate was chosen; 0: it could not be")
    chosen: str | None = Field(
        default=None, description="column that is above 0 for the chosen candidate; null: the one whose label is known"
    )


class Judging(Frozen):
    """The part of a spec that does not influence training."""

    judged_from: float = Field(
        default=SECOND_HALF,
        ge=0,
        lt=1,
        description="share of the stream after which rows are judged; at least "
        f"{SECOND_HALF} where settings are chosen on what comes before",
    )
    points: tuple[Annotated[int, Field(gt=0)], ...] = Field(
        default=(),
        description="rows of the stream, such as [200000, 600000]: what is judged at its end is judged as if it had "
        "ended there, too, so that one long pass tells what fewer rows would have given",
    )
    segments: dict[str, str] = Field(
        default={},
        description="name -> a condition as in `students.*.where`, or a column, which makes a segment of each of its "
        "values. Known besides the columns of rows: hour, weekday, rows_of_<column> (earlier rows of the same value), "
        "label_delay_s, logit_age_s. Empty: hours, new values of the columns of `cluster`, position, delays and ages",
    )
    thresholds: tuple[float, ...] = Field(
        default=(), description="probabilities at which rows are shown, for the table of decisions"
    )
    top: tuple[float, ...] = Field(
        default=(0.01, 0.05, 0.1, 0.25, 0.5),
        description="shares of the rows that are shown, those of the largest predictions, for the table of decisions",
    )
    value: str | None = Field(default=None, description="column that says what a row's click is worth")
    price: str | None = Field(
        default=None, description="column with the highest competing bid, for expected utility; it needs `value`"
    )
    price_beta: float = Field(
        default=10.0,
        gt=0,
        description="how closely competing bids keep to those logged: the rate of their Gamma distribution, in "
        "1 / price",
    )
    ranking: Ranking | None = Field(
        default=None, description="where choices and their propensities are logged: what every arm's choices are worth"
    )

    @model_validator(mode="after")
    def _can_be_judged(self) -> Judging:
        if self.price is not None and self.value is None:
            raise ValueError(f"price is `{self.price}`, and `value` is not given: a bid is what a click is worth")
        for name in ("thresholds", "top"):
            if wrong := [share for share in getattr(self, name) if not 0 < share <= 1]:
                raise ValueError(f"{name} has {wrong[0]:g}; give numbers above 0 and at most 1")
        return self

    def named_columns(self) -> Iterator[tuple[str, str]]:
        """Settings that name a column of the rows, and that column."""
        named = {"value": self.value, "price": self.price}
        if self.ranking is not None:
            named |= {f"ranking.{key}": column for key, column in self.ranking.model_dump().items()}
        yield from ((key, column) for key, column in named.items() if column is not None)

    def check_rows(self, table: pa.Table) -> None:
        """Raise BadInput before training if a named column has unusable values, or the rows end before a point.

        >>> rows = pa.table({"id": [1, 1], "p": [0.5, 0.5]})
        >>> Judging(ranking=Ranking(request="id", propensity="p")).check_rows(rows)
        """
        if (last := max(self.points, default=0)) > table.num_rows:
            raise BadInput(
                f"points has {last:,}, and the stream ends after {table.num_rows:,} rows; leave it out, or take more "
                "rows (`rows`, and `source.impressions` of a generated stream)"
            )
        for key, column in self.named_columns():
            of = table[column].combine_chunks()
            if key != "value" or self.price is not None:
                _refuse(key, column, of.is_null().to_numpy(zero_copy_only=False), "null", _MEANS[key])
            if key == "ranking.request":
                continue
            if not (pa.types.is_integer(of.type) or pa.types.is_floating(of.type) or pa.types.is_boolean(of.type)):
                raise BadInput(f"{key}: column `{column}` holds {of.type}, no numbers; {_MEANS[key]}")
            x = of.cast(pa.float64(), safe=False).fill_null(0).to_numpy()
            _refuse(key, column, ~np.isfinite(x), "no finite number", _MEANS[key])
            if key != "ranking.chosen":
                _refuse(key, column, x < 0, f"below 0, as {x.min(initial=0):g}", _MEANS[key])
            if key == "ranking.propensity":
                _refuse(key, column, x > 1, f"above 1, as {x.max(initial=0):g}", _MEANS[key])


_MEANS = {
    "value": "a click is worth 0 or more",
    "price": "every row needs the highest competing bid, 0 or more, and what its click is worth",
    "ranking.request": "every row is a candidate of a request",
    "ranking.propensity": "a propensity is the probability, 0 to 1, by which a candidate was chosen",
    "ranking.chosen": "above 0 is the candidate that was chosen",
}


def _refuse(key: str, column: str, wrong: np.ndarray, what: str, means: str) -> None:
    if wrong.any():
        count = f"{np.count_nonzero(wrong):,} of {len(wrong):,} rows"
        raise BadInput(f"{key}: {count} of column `{column}` are {what}; {means}")
