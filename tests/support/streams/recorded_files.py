"""Small recorded files of clicks, and how they are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streaming.schema import Column, RowSchema, Task
from streaming.sources.label_column import LabelColumn
from streaming.sources.recorded import RecordedConfig

SCHEMA = RowSchema(
    columns=(Column(name="user_id"), Column(name="genre", type="string")),
    tasks=(Task(name="ctr", window_s=60), Task(name="cvr", window_s=600, given="ctr")),
)
CLICKS = RecordedConfig(event_time="at", event_time_unit="s", labels={"ctr": LabelColumn(column="clicked")})


def clicks(**changes: object) -> pa.Table:
    """Four rows; `changes`: columns by name, None for none."""
    columns: dict[str, object] = {
        "at": [10, 20, 30, 40],
        "vertical": ["a", "b", "a", "b"],
        "user_id": [1, 2, 3, 4],
        "genre": ["x", "y", "x", "z"],
        "clicked": [0, 1, 1, None],
    }
    return pa.table({name: values for name, values in (columns | changes).items() if values is not None})


def stored(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path
