"""Rows evenly taken over the whole file, in order of time, as `pipelines.data.profile` examines them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa

from pipelines.data.profile.examine import Examined, examined
from pipelines.data.propose.columns import Seen
from pipelines.data.propose.labels import Label
from pipelines.data.propose.roles import Roles
from pipelines.data.propose.times import EventTime
from streaming.sources.tables.engine import Engine, parquet, quoted
from streaming.sources.tables.in_order import ROW

VALUES = 4_000_000
LEAST, MOST = 50_000, 200_000


def examine_sample(
    engine: Engine,
    path: Path,
    columns: Mapping[str, Seen],
    time: EventTime,
    labels: list[Label],
    roles: Roles,
    left_out: Collection[str],
) -> Examined:
    """What `pipelines.data.profile` finds of columns that are neither `left_out` nor labels. Features stand under
    their own names."""
    seen = [c for c in columns.values() if c.name not in left_out and c.kind not in ("other", "time")]
    rows = next(iter(columns.values())).rows
    wanted = min(MOST, max(LEAST, VALUES // max(1, len(seen))))
    step = -(-rows // wanted)
    selected = [f"{time.sql} AS event_time_ms"]
    selected += [f"({label.sql})::TINYINT AS {quoted(f'label_{label.task}')}" for label in labels]
    if roles.vertical.column is not None:
        selected.append(f"{columns[roles.vertical.column].sql}::VARCHAR AS vertical")
    names = {"vertical", "event_time_ms", *(f"label_{label.task}" for label in labels)}
    selected += [f"{c.sql} AS {quoted(c.name)}" for c in seen if c.name not in names]
    table = engine.arrow(
        f"SELECT * FROM (SELECT {', '.join(selected)}, {ROW} AS impression_id FROM {parquet(path)} "
        f"WHERE {ROW} % {step} = 0) ORDER BY event_time_ms, impression_id"
    )
    return examined(_plain(table))


def _plain(table: pa.Table) -> pa.Table:
    """Decimals as floats, and texts by their codes: what is asked of them is only which are equal."""
    arrays = []
    for column in table.columns:
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        arrays.append(column)
    return pa.table(arrays, names=table.column_names)
