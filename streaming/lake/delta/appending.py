"""Rows appended to a Delta table: a Parquet file for each partition, then one entry in the log that names them all.

The files are written here and not by deltalake, which has one codec for all columns of a file (`encodings`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake

from streaming.lake.delta.encodings import Form
from streaming.lake.delta.files import ColumnStatistics, DataFile, add_actions, flush_files, new_name, statistics_of
from streaming.store.files import make_folder

ROW_GROUP_ROWS = 65_536


def append_rows(
    handle: DeltaTable,
    rows: pa.Table,
    *,
    path: Path,
    commit_properties: CommitProperties,
    post_commithook_properties: PostCommitHookProperties,
) -> None:
    """Append `rows` to the table at `path`, which `handle` is of. Columns that it lacks are added to it, and
    those of `rows` that may be null may be so from now on; columns of it that `rows` lack are null in them.

    Raises CommitFailedError where others have committed identifiers of the same names since the handle was loaded."""
    if not _covers(pa.schema(handle.schema().to_arrow()), rows.schema):
        _add_columns(handle, rows.schema, commit_properties)
    by, statistics = handle.metadata().partition_columns, statistics_of(handle)
    form = Form.of(rows)
    added = [_written(path, values, part, form, statistics) for values, part in _partitions(rows, by) if part.num_rows]
    flush_files(path / file.path for file in added)
    handle.create_write_transaction(
        add_actions(added, rows_change=True),
        mode="append",
        schema=handle.schema(),
        partition_by=by or None,
        commit_properties=commit_properties,
        post_commithook_properties=post_commithook_properties,
    )
    handle.update_incremental()


def _covers(found: pa.Schema, wanted: pa.Schema) -> bool:
    """True if rows of `wanted` can be appended to a table of `found` as it is."""
    names = set(found.names)
    return all(field.name in names and (found.field(field.name).nullable or not field.nullable) for field in wanted)


def _add_columns(handle: DeltaTable, schema: pa.Schema, commit_properties: CommitProperties) -> None:
    """A commit of its own, under the identifiers as they are: Delta refuses it where they were raised meanwhile."""
    names = [transaction.app_id for transaction in commit_properties.app_transactions or ()]
    numbers = [(name, number) for name in names if (number := handle.transaction_version(name)) is not None]
    write_deltalake(
        handle,
        schema.empty_table(),
        mode="append",
        schema_mode="merge",
        commit_properties=CommitProperties(app_transactions=[Transaction(*pair) for pair in numbers]),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
    )


def _partitions(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[Mapping[str, str], pa.Table]]:
    """The rows of every partition, in their order, without the columns that all of them have in common.

    >>> ads = pa.table({"vertical": ["news", "shop", "news"], "ad": [1, 2, 3]})
    >>> [(values, part["ad"].to_pylist()) for values, part in _partitions(ads, ["vertical"])]
    [({'vertical': 'news'}, [1, 3]), ({'vertical': 'shop'}, [2])]
    """
    others = rows.drop_columns(list(by))
    if not by or not rows.num_rows:
        yield {}, others
        return
    codes = np.zeros(rows.num_rows, np.int64)
    for name in by:
        encoded = rows[name].combine_chunks().dictionary_encode()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    distinct, firsts = np.unique(codes, return_index=True)
    for code, first in zip(distinct, firsts, strict=True):
        values = {name: rows[name][first.item()].as_py() for name in by}
        yield values, others if len(distinct) == 1 else others.filter(pa.array(codes == code))


def _written(path: Path, values: Mapping[str, str], rows: pa.Table, form: Form, statistics: Sequence[str]) -> DataFile:
    """A file with these rows of a partition."""
    folders = [f"{name}={quote(value, safe='')}" for name, value in values.items()]  # as deltalake names them
    name = new_name(folders)
    place = path / name
    if not place.parent.is_dir():
        make_folder(place.parent)
    with form.writer(place, rows.schema, statistics) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
    known = ColumnStatistics(statistics)
    known.add(rows)
    return DataFile(
        name,
        tuple(values.items()),
        place.stat().st_size,
        rows.num_rows,
        0.0,
        known.low,
        known.high,
        known.nulls,
    )
