"""Tables and transforms against the values that they would meet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from exfm.data import SequenceFeature, SparseFeature, bags_of, dense_of, places_of
from exfm.errors import ConfigError
from pipelines.checks.collisions import shared
from pipelines.config import Config
from pipelines.quality import Finding, note, percent, stop, warn

SHARED_NOTED = 0.01
"""Ids that could have rows of their own are noted where this share of them has not."""


def judge_features(config: Config, rows: pa.Table | None) -> Iterator[Finding]:
    """`rows` in the schema of impressions; None: types alone are judged."""
    looked_at = config.rows.impression.empty_table() if rows is None else rows
    columns = {name: looked_at[name].combine_chunks() for name in config.features.needs_columns()}
    for feature in config.features.all:
        try:
            if isinstance(feature, SparseFeature):
                bags_of(feature, columns)
            elif isinstance(feature, SequenceFeature):
                places_of(feature, columns)
            else:
                dense_of(feature, columns)
        except ConfigError as error:
            yield stop(f"features.{feature.name}", str(error))
            continue
        if isinstance(feature, SequenceFeature) or (
            isinstance(feature, SparseFeature) and feature.transform in ("hash", "index")
        ):
            yield from _judge_table(config, feature, columns)


def _judge_table(
    config: Config, feature: SparseFeature | SequenceFeature, columns: Mapping[str, Any]
) -> Iterator[Finding]:
    """Whether its ids, which it hashes or indexes by, have rows of their own."""
    where, bounds = f"features.{feature.name}", bounds_of(feature, config, columns)
    if feature.transform == "index":
        if bounds is not None and not (bounds.declared and 0 <= bounds.low <= bounds.high < feature.rows):
            yield note(
                where,
                f"it indexes a table of {feature.rows:,} rows: a value outside 0 to {feature.rows - 1:,} makes its row "
                "a dead letter",
                f"declare the column with minimum: 0 and maximum: {feature.rows - 1} to say so",
            )
        return
    ids = distinct(feature.reads, columns)
    share = shared(ids, feature.rows)
    if ids > feature.rows:
        yield warn(
            where,
            f"{ids:,} distinct ids among the rows looked at share {feature.rows:,} rows of its table: "
            f"{percent(share)} of them share theirs with another",
            f"rows: {2 * ids} leaves {percent(shared(ids, 2 * ids))}",
        )
    elif bounds is not None and 0 <= bounds.low <= bounds.high < feature.rows and share >= SHARED_NOTED:
        asked = "" if bounds.declared else f"; declare the column with minimum: 0 and maximum: {feature.rows - 1}, too"
        yield note(
            where,
            f"ids of `{feature.reads[0]}` lie in {bounds.low} to {bounds.high} and fit into the table of "
            f"{feature.rows:,} rows; hashed, {percent(share)} of the {ids:,} seen share a row with another",
            f"transform: index has no collisions{asked}",
        )


class Bounds(NamedTuple):
    """Where the ids of a column lie: as `declared`, or as far as was seen."""

    low: int
    high: int
    declared: bool


def bounds_of(feature: SparseFeature | SequenceFeature, config: Config, columns: Mapping[str, Any]) -> Bounds | None:
    """None where ids are no integers, are crossed, or there are none."""
    (name, *others), declared = feature.reads, {column.name: column for column in config.rows.columns}
    values = _values(columns[name])
    if others or not pa.types.is_integer(values.type):
        return None
    column = declared.get(name)
    if column is not None and column.minimum is not None and column.maximum is not None:
        return Bounds(math.ceil(column.minimum), math.floor(column.maximum), True)
    seen = pc.min_max(values).as_py()
    return None if seen["min"] is None else Bounds(seen["min"], seen["max"], False)


def distinct(names: tuple[str, ...], columns: Mapping[str, Any]) -> int:
    """Distinct values, or combinations of values where there are several columns."""
    if len(names) == 1:
        return int(pc.count_distinct(_values(columns[names[0]])).as_py())
    table = pa.table({name: columns[name] for name in names})
    return int(table.group_by(list(names)).aggregate([]).num_rows)


def _values(column: pa.Array) -> pa.Array:
    return column.flatten() if pa.types.is_list(column.type) else column
