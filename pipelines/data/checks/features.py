"""Rules of features: tables and transforms against the values that they would meet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.errors import ConfigError
from exfm.features.dense import DenseFeature
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.features.transforms import bags_of, dense_of, places_of
from pipelines.core.config.sections import Recorded
from pipelines.core.config.settings import Config
from pipelines.data.checks.collisions import shared
from pipelines.data.findings import Finding, Rules, percent

RULES = Rules("""
stop  feature.unreadable  features.{feature}
    {problem}
note  feature.large  features.{feature}
    1 % of the values are beyond {large:,.4g} after its transform, and a model learns from inputs of about 1
    -> transform: log1p or standardise with statistics: online brings them there; clip cuts them off
warn  feature.made-up-time  features.{feature}
    its {transform} is that of times that are made up: the file has none, rows are a second apart
    -> leave it out
warn  feature.served-as  features.{feature}
    it is served as {value}, and no row looked at has that: what is served of it is never learned
    -> take a value that rows have
note  feature.index-bounds  features.{feature}
    it indexes a table of {rows:,} rows: a value outside 0 to {last:,} makes its row a dead letter
    -> declare the column with minimum: 0 and maximum: {last} to say so
warn  feature.small-table  features.{feature}
    {ids:,} distinct ids among the rows looked at share {rows:,} rows of its table: {share} of them share theirs with
    another
    -> rows: {more} leaves {share_then}
note  feature.could-index  features.{feature}
    ids of `{column}` lie in {low} to {high} and fit into the table of {rows:,} rows; hashed, {share} of the {ids:,}
    seen share a row with another
    -> transform: index has no collisions{declare}
""")

LARGE = 100.0
"""Values of dense features that are noted."""
Feature = SparseFeature | DenseFeature | SequenceFeature
EVENT_TIME = "event_time_ms"
SHARED_NOTED = 0.01
"""Ids that could have rows of their own are noted where this share of them has not."""


def judge_features(config: Config, rows: pa.Table | None) -> Iterator[Finding]:
    """Check features against `rows` in the schema of impressions; None checks types only, as of what is known only when
    rows are joined (`RowSchema.asof`)."""
    nothing, joined = config.rows.admitted.empty_table(), {column.name for column in config.rows.asof.columns}
    columns = {
        name: (nothing if rows is None or name in joined else rows)[name].combine_chunks()
        for name in config.features.needs_columns()
    }
    for feature in config.features.all:
        try:
            if isinstance(feature, SparseFeature):
                bags_of(feature, columns)
            elif isinstance(feature, SequenceFeature):
                places_of(feature, columns)
            else:
                yield from _judge_number(feature, dense_of(feature, columns))
        except ConfigError as error:
            yield RULES("feature.unreadable", feature=feature.name, problem=error)
            continue
        if joined & set(feature.reads):
            continue
        yield from _judge_time(config, feature)
        yield from _judge_constant(feature, columns)
        if isinstance(feature, SparseFeature | SequenceFeature) and feature.transform in ("hash", "index"):
            yield from _judge_table(config, feature, columns)


def _judge_number(feature: DenseFeature, made: np.ndarray) -> Iterator[Finding]:
    """Judge whether a transformed number is of the order of 1, as the weights of a model are."""
    if not feature.online and len(made) and (large := float(np.quantile(np.abs(made), 0.99))) > LARGE:
        yield RULES("feature.large", feature=feature.name, large=large)


def _judge_time(config: Config, feature: Feature) -> Iterator[Finding]:
    """Judge whether there is a time whose hours mean anything."""
    source = config.source
    if isinstance(feature, SequenceFeature) or not feature.of_time or feature.reads != (EVENT_TIME,):
        return
    if isinstance(source, Recorded) and source.event_time is None:
        yield RULES("feature.made-up-time", feature=feature.name, transform=feature.transform)


def _judge_constant(feature: Feature, columns: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge whether a feature is served with a value that it learns."""
    if not isinstance(feature, SparseFeature) or feature.serve_as is None:
        return
    values = _values(columns[feature.reads[0]])
    served, learned = (_ids(feature, of) for of in (pa.array([feature.serve_as]), values))
    if len(values) and not (served[0] == learned).any():
        yield RULES("feature.served-as", feature=feature.name, value=feature.serve_as)


def _ids(feature: SparseFeature, values: pa.Array) -> np.ndarray:
    return bags_of(feature, {feature.reads[0]: values}).values


def _judge_table(
    config: Config, feature: SparseFeature | SequenceFeature, columns: Mapping[str, Any]
) -> Iterator[Finding]:
    """Judge whether ids, which are hashed or indexed by, have rows of their own."""
    bounds, last = bounds_of(feature, config, columns), feature.rows - 1
    about = {"feature": feature.name, "rows": feature.rows}
    fit = bounds is not None and 0 <= bounds.low <= bounds.high <= last
    if feature.transform == "index":
        if bounds is not None and not (bounds.declared and fit):
            yield RULES("feature.index-bounds", **about, last=last)
        return
    ids = distinct(feature.reads, columns)
    share, about["ids"] = shared(ids, feature.rows), ids
    if ids > feature.rows:
        then = percent(shared(ids, 2 * ids))
        yield RULES("feature.small-table", **about, share=percent(share), more=2 * ids, share_then=then)
    elif bounds is not None and fit and share >= SHARED_NOTED:
        declare = "" if bounds.declared else f"; declare the column with minimum: 0 and maximum: {last}, too"
        about |= {"column": feature.reads[0], "low": bounds.low, "high": bounds.high}
        yield RULES("feature.could-index", **about, share=percent(share), declare=declare)


class Bounds(NamedTuple):
    """Smallest and largest id of a column: as `declared`, or as far as was seen."""

    low: int
    high: int
    declared: bool


def bounds_of(feature: SparseFeature | SequenceFeature, config: Config, columns: Mapping[str, Any]) -> Bounds | None:
    """Range of a feature's ids; None if they are not integers, are crossed, or there are none."""
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
    """Number of distinct values, or combinations of values of several columns."""
    if len(names) == 1:
        return int(pc.count_distinct(_values(columns[names[0]])).as_py())
    table = pa.table({name: columns[name] for name in names})
    return int(table.group_by(list(names)).aggregate([]).num_rows)


def _values(column: pa.Array) -> pa.Array:
    return column.flatten() if pa.types.is_list(column.type) else column
