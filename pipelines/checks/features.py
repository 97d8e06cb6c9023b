"""Tables and transforms against the values that they would meet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from exfm.data import SequenceFeature, SparseFeature, bags_of, dense_of, places_of
from exfm.errors import ConfigError
from pipelines.checks.finding import Finding, percent, stop, warn
from pipelines.config import Config


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
        if not isinstance(feature, SparseFeature | SequenceFeature) or feature.transform != "hash":
            continue
        ids = distinct(feature.reads, columns)
        if ids > feature.rows:
            yield warn(
                f"features.{feature.name}",
                f"{ids:,} distinct ids among the rows looked at share {feature.rows:,} rows of its table: "
                f"{percent(shared(ids, feature.rows))} of them share theirs with another",
                f"rows: {2 * ids} leaves {percent(shared(ids, 2 * ids))}",
            )


def shared(ids: int, rows: int) -> float:
    """The expected share of ids whose row of a hash table is another's too.

    >>> round(shared(1000, 1000), 2), round(shared(2, 10**9), 2)
    (0.63, 0.0)
    """
    return float(1 - (1 - 1 / rows) ** (ids - 1)) if ids else 0.0


def distinct(names: tuple[str, ...], columns: Mapping[str, Any]) -> int:
    """Distinct values, or combinations of values where there are several columns."""
    if len(names) == 1:
        column = columns[names[0]]
        values = column.flatten() if pa.types.is_list(column.type) else column
        return int(pc.count_distinct(values).as_py())
    table = pa.table({name: columns[name] for name in names})
    return int(table.group_by(list(names)).aggregate([]).num_rows)
