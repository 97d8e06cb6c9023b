"""The Parquet file that the config names: the one that was given where a recorded source can play it, else a copy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import duckdb

from pipelines.init.columns import Seen
from pipelines.init.source import Source
from pipelines.init.times import EventTime
from streaming.tables import MADE, Engine, in_words, quoted, write_in_order


class Prepared(NamedTuple):
    """`event_time` and `unit`: as the file has them. `said`: what was done, in words."""

    path: Path
    event_time: str
    unit: str
    said: tuple[str, ...]


def prepared(
    engine: Engine, source: Source, columns: Mapping[str, Seen], time: EventTime, back: int, copy: Path
) -> Prepared:
    """`back`: rows that are earlier than the row before them. A copy is written to `copy`, in order of time, with the
    columns that a row can hold."""
    reasons = []
    if back:
        reasons.append(f"{back:,} rows were earlier than the row before: sorted on disk by time")
    if time.guess.column is None:
        reasons.append(f"`{MADE}` made of the order of the rows")
    elif not time.as_is:
        reasons.append(f"`{MADE}` made of `{time.guess.column}` ({time.guess.why})")
    records = [name for name, column in columns.items() if column.sql != quoted(name)]
    if records:
        reasons.append(f"fields of records stand as columns: {', '.join(records)}")
    if not reasons:
        if source.made:
            os.replace(source.path, copy)
            return Prepared(copy, str(time.guess.column), time.unit, source.said)
        return Prepared(source.path, str(time.guess.column), time.unit, ())
    kept = [f"{c.sql} AS {quoted(c.name)}" for c in columns.values() if c.kind != "other" and c.name != MADE]
    begun = copy.with_name(f".{copy.name}.begun")
    selected = [*kept, f"({time.sql})::BIGINT AS {MADE}"]
    try:
        write_in_order(engine, source.path, begun, selected, MADE if back else None)
    except duckdb.Error as error:
        begun.unlink(missing_ok=True)
        raise in_words(error, source.path) from None
    os.replace(begun, copy)
    if source.made:
        source.path.unlink()
    return Prepared(copy, MADE, "ms", (*source.said, *reasons))
