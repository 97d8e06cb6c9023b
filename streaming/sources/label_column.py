"""Where a task's label is in a recorded file, and which of its values are positive."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, model_validator

from streaming.messages import Unit


class LabelColumn(BaseModel):
    """Where a task's label is in the file. A row without one (null, or NaN) has an unknown label, not a negative one,
    unless `nulls` says that it is.

    The feedback happens `delay_column` after the impression, or at `time_column`, or at once where neither is named.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    column: str = Field(description="the column that holds the label")
    at_least: float = Field(default=1.0, description="a value of at least this is positive, unless `values` is given")
    values: tuple[int | float | str, ...] = Field(default=(), description="the values that are positive")
    nulls: Literal["unknown", "negative"] = Field(
        default="unknown",
        exclude_if=lambda nulls: nulls == "unknown",
        description="what a row without a value is: of unknown label, or negative",
    )
    delay_column: str | None = Field(
        default=None, description="the column that holds the time from impression to feedback; null: no delay"
    )
    delay_unit: Unit = Field(default="s", description="unit of the delay column")
    time_column: str | None = Field(
        default=None, description="the column that holds the time of the feedback, in the unit of the event time"
    )

    @model_validator(mode="after")
    def _one_time(self) -> LabelColumn:
        if self.delay_column is not None and self.time_column is not None:
            raise ValueError(
                f"delay_column `{self.delay_column}` and time_column `{self.time_column}` both say when; keep one"
            )
        return self

    def positive(self, column: pa.Array) -> pa.Array:
        """Which values are positive, (N,) -> (N,) bool without nulls. Raises ValueError where they cannot be compared.

        >>> LabelColumn(column="stars", at_least=4).positive(pa.array([5, 3, None])).to_pylist()
        [True, False, False]
        """
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        plain = column.cast(pa.int8() if pa.types.is_boolean(kind) else kind)
        try:
            if self.values:
                return pc.is_in(plain, pa.array(self.values).cast(plain.type))
            return pc.greater_equal(plain, pa.scalar(self.at_least)).fill_null(False)
        except pa.ArrowException as error:
            asked = f"values {list(self.values)}" if self.values else f"at least {self.at_least:g}"
            example = '"yes"' if pa.types.is_string(plain.type) else "1"
            raise ValueError(
                f"`{self.column}` is {kind}, which cannot be compared with {asked}; say which of its values are "
                f"positive, for example {{column: {self.column}, values: [{example}]}}"
            ) from error
