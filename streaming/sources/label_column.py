"""Labels in recorded files: their column, and its positive values."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, model_validator

from streaming.messages.times import Unit
from streaming.schema import is_text


class LabelColumn(BaseModel):
    """Location of a task's label in the file. A row without one (null, or NaN) has an unknown label, not a negative
    one, unless `nulls` says that it is.

    The feedback happens `delay_column` after the impression, or at `time_column`, or at once where neither is named.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    column: str = Field(description="the column that holds the label")
    at_least: float | None = Field(
        default=None,
        description="a value of at least this is positive; null, and without `values`: a number above 0 is, and so are "
        "true, yes, y, t in text, in capitals or not; false, no, n, f and an empty text are not, and other texts are "
        "refused",
    )
    values: tuple[int | float | str, ...] = Field(
        default=(), description="the values that are positive, as they are written; blanks around a text do not count"
    )
    nulls: Literal["unknown", "negative"] = Field(
        default="unknown",
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

    @property
    def rule(self) -> str:
        """Describe the positive values, in words.

        >>> LabelColumn(column="stars", at_least=4).rule, LabelColumn(column="sold", values=("yes", 1)).rule
        ('at least 4', '`yes` or `1`')
        """
        if self.values:
            return " or ".join(f"`{value}`" for value in self.values)
        return "above 0" if self.at_least is None else f"at least {self.at_least:g}"

    def positive(self, column: pa.Array) -> pa.Array:
        """Mask of positive values, (N,) -> (N,) bool without nulls. Raises ValueError where they cannot be compared.

        >>> LabelColumn(column="stars", at_least=4).positive(pa.array([5, 3, None])).to_pylist()
        [True, False, False]
        >>> LabelColumn(column="sold").positive(pa.array([" Yes", "TRUE", "0.5", "no", "0", None])).to_pylist()
        [True, True, True, False, False, False]
        """
        plain = _plain(column)
        try:
            if self.values:
                return pc.is_in(plain, pa.array(list(map(_stripped, self.values))).cast(plain.type))
            if pa.types.is_string(plain.type):
                plain = _numbers(plain)
            if self.at_least is None:
                return pc.greater(plain, pa.scalar(0)).fill_null(False)
            return pc.greater_equal(plain, pa.scalar(self.at_least)).fill_null(False)
        except (pa.ArrowException, _NoNumber) as error:
            text = pa.types.is_string(plain.type)
            compared = (
                f"values {list(self.values)}" if self.values else f"{'0' if self.at_least is None else self.rule}"
            )
            holding = f" and holds `{error}`" if isinstance(error, _NoNumber) else ""
            example = f'"{error}"' if isinstance(error, _NoNumber) else '"yes"' if text else "1"
            raise ValueError(
                f"`{self.column}` is {plain.type}{holding}, which cannot be compared with {compared}; say which of its "
                f"values are positive, for example {{column: {self.column}, values: [{example}]}}"
            ) from error

    def between(self, column: pa.Array) -> int:
        """Number of values between 0 and 1 that count as positive only because no threshold is set.

        >>> LabelColumn(column="sold").between(pa.array([0, 0.3, 1, 3, None]))
        1
        """
        plain = _plain(column)
        if self.values or self.at_least is not None or pa.types.is_integer(plain.type):
            return 0
        plain = _numbers(plain) if pa.types.is_string(plain.type) else plain
        inside = pc.and_(pc.greater(plain, pa.scalar(0)), pc.less(plain, pa.scalar(1)))
        return pc.sum(inside).as_py() or 0


class FeedbackFile(BaseModel):
    """A file of feedback, in any supported form."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    path: str = Field(
        description="a file of feedback, relative to the folder of the config; of any form that `source.path` may have"
    )
    written_path: str | None = Field(
        default=None,
        description="written by a run: `path` as the config had it, relative to its folder",
    )
    impression_id: str = Field(default="impression_id", description="the column that holds the impression's id")
    event_time: str = Field(default="event_time_ms", description="the column that holds the time")
    event_time_unit: Unit = Field(default="ms", description="its unit, where it is a number")
    task: str = Field(
        default="task", description="the column that holds the name of the task; `unknown:ctr`: that label is unknown"
    )


class _NoNumber(ValueError):
    """A text that is neither a number nor yes or no."""


YES, NO = ("true", "yes", "y", "t"), ("false", "no", "n", "f", "")


def _plain(column: pa.Array) -> pa.Array:
    """Numbers, or texts without blanks around them; true and false as 1 and 0."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    if pa.types.is_null(kind) or pa.types.is_float16(kind):
        return column.cast(pa.float32())
    return pc.utf8_trim_whitespace(column.cast(pa.string())) if is_text(kind) else column


def _numbers(texts: pa.Array) -> pa.Array:
    """Texts as numbers, yes as 1 and no as 0. Raises _NoNumber with the first that is neither."""
    folded = pc.utf8_lower(texts)
    for words, number in ((YES, "1"), (NO, "0")):
        folded = pc.if_else(pc.is_in(folded, pa.array(words)), number, folded)
    try:
        return folded.cast(pa.float64())
    except pa.ArrowInvalid:
        for text in pc.unique(texts.drop_null()).to_pylist():
            try:
                float(text if text.lower() not in YES + NO else 0)
            except ValueError:
                raise _NoNumber(text) from None
        raise


def _stripped(value: int | float | str) -> int | float | str:
    return value.strip() if isinstance(value, str) else value
