"""One rule for what is positive, in whatever form a label column is written."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from streaming.sources.label_column import LabelColumn

SOLD = LabelColumn(column="sold")
SAID = [" true ", "TRUE", "yes", "Y", "1", "3", "0.3", "false", "NO", "0", "0.0", "-1", "", None]
POSITIVE = [True] * 7 + [False] * 7


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), "dictionary"])
def test_texts_are_positive_by_what_they_say(kind: Any) -> None:
    column = pa.array(SAID).dictionary_encode() if kind == "dictionary" else pa.array(SAID, kind)
    assert SOLD.positive(column).to_pylist() == POSITIVE
    assert LabelColumn(column="sold", values=("true", " 3")).positive(column).to_pylist() == [
        text is not None and text.strip() in ("true", "3") for text in SAID
    ]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0.3, 3, 1, 0, -1, None]),
        pa.array([0.3, 3, 1, 0, -1, None], pa.float16()),
        pa.array([Decimal("0.3"), Decimal(3), Decimal(1), Decimal(0), Decimal(-1), None]),
    ],
)
def test_a_number_above_0_is_positive_and_what_lies_below_1_is_counted(values: pa.Array) -> None:
    assert SOLD.positive(values).to_pylist() == [True, True, True, False, False, False]
    assert SOLD.between(values) == 1
    named = LabelColumn(column="sold", at_least=1)
    assert (named.positive(values).to_pylist()[:3], named.between(values)) == ([False, True, True], 0)


def test_whole_numbers_are_counts() -> None:
    for kind in (pa.int8(), pa.uint64(), pa.int64()):
        assert SOLD.positive(pa.array([0, 1, 3, None], kind)).to_pylist() == [False, True, True, False]


def test_a_text_that_says_neither_is_named() -> None:
    words = '`sold` is string and holds `maybe`, which cannot be compared with 0; say .* values: ."maybe".}'
    with pytest.raises(ValueError, match=words):
        SOLD.positive(pa.array(["yes", "maybe", "no"]))
