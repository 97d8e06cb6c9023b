"""Opening a Delta table, its columns, and the metadata of its commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from streaming.errors import BadInput, StreamingError
from streaming.lake.delta.log import unfinished, unopened
from streaming.lake.delta.remote import committing, fetch_data

METADATA_KEY = "exfm"


def open_table(
    path: Path, schema: pa.Schema | None = None, *, to_commit: bool = False, to_read: bool = False
) -> DeltaTable | None:
    """Newest handle of the table at `path`, None if it does not exist or is `unfinished`. `to_commit`: one to commit
    through, where the table is at a store; others read the log here. `to_read`: its data files are fetched, too.

    A nullable column may be in one of the two alone: those who read without it do not see it, and rows from before it
    came have null. Raises BadInput when the columns differ otherwise from `schema`, StreamingError when its log cannot
    be read (DataLost: it is damaged).
    """
    try:
        handle = committing(path) if to_commit else DeltaTable(path)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        if unfinished(path) is not None:
            return None
        raise unopened(path, error) from error
    if to_read:
        fetch_data(path, handle)
    if schema is None:
        return handle
    differing = _differences(pa.schema(handle.schema().to_arrow()), schema, optional=True)
    if differing:
        raise BadInput(
            f"the table at {path} does not hold the columns of this config: {'; '.join(differing)}. "
            "Use the config it was written with, or another run directory"
        )
    return handle


def _differences(table: pa.Schema, wanted: pa.Schema, *, optional: bool) -> list[str]:
    differing = []
    for name in dict.fromkeys([*wanted.names, *table.names]):
        if name not in table.names:
            if not (optional and wanted.field(name).nullable):
                differing.append(f"`{name}` ({wanted.field(name).type}) is missing")
        elif name not in wanted.names:
            if not (optional and table.field(name).nullable):
                differing.append(f"`{name}` ({table.field(name).type}) is too many")
        elif table.field(name).type != wanted.field(name).type:
            differing.append(f"`{name}` is {table.field(name).type}, not {wanted.field(name).type}")
    return differing


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` under `schema`, no copy. Raises StreamingError unless names, order and types are the same."""
    if rows.schema.names != schema.names or rows.schema.types != schema.types:
        differing = _differences(rows.schema, schema, optional=False) or [
            f"the order is {rows.schema.names}, not {schema.names}"
        ]
        raise StreamingError(f"rows do not fit the table: {'; '.join(differing)}")
    return pa.Table.from_arrays(rows.columns, schema=schema)


def last_metadata(handle: DeltaTable) -> dict[str, Any] | None:
    """Metadata of the newest commit that carries some; None if the log no longer has it."""
    read = 0
    for limit in (1, 16, 256, None):
        commits = handle.history(limit)
        for commit in commits[read:]:
            if METADATA_KEY in commit:
                metadata: dict[str, Any] = json.loads(commit[METADATA_KEY])
                return metadata
        read = len(commits)
    return None
