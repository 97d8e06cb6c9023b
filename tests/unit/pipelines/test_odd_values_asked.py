"""What no column can hold is refused with the column's name and what it is, not with Python's words."""

from __future__ import annotations

import pyarrow as pa
import pytest

from exfm.features.features import FeatureSet
from pipelines.serve.prediction_request import JSON, parse_request
from pipelines.served_rows import checked_columns, serving_rules
from streaming.schema import RowSchema

SCHEMA = RowSchema(columns=[{"name": "age"}, {"name": "city", "type": "string"}], tasks=[{"name": "c", "window_s": 60}])
FEATURES = FeatureSet(sparse=[{"name": "age", "rows": 10}, {"name": "city", "rows": 10}])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b'{"age": ' + b"9" * 5000 + b', "city": "a"}', "`age` is an integer beyond 64 bits, not int64"),
        (b'{"age": 3, "city": "a\\ud800"}', "`city` is text with half a character in it (a lone surrogate)"),
    ],
)
def test_such_a_value_is_refused_by_name(row, words):
    asked = parse_request(b'{"rows": [' + row + b', {"age": 3, "city": "b"}]}', JSON, only={"age", "city"}, max_rows=9)
    batch, refusals = checked_columns(asked.columns, asked.context, asked.size, serving_rules(SCHEMA, FEATURES))
    assert list(refusals) == [0]
    assert refusals[0].detail.startswith(words)
    assert pa.types.is_string(batch.schema.field("city").type)
