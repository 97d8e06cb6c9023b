"""A lake of a config's stream without a run: its settled rows in blocks, with logits of nobody."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.lab.rows import rows_of
from streaming.lake.writer import LakeTable

MADE_HERE = ("teacher_", "scored_", "lake_", "block", "event_date")
SEED = 1


def write_lake(path: Path, config: Config, rows: int, verticals: Sequence[str] = (), first_scored: int = 0) -> None:
    """The first `rows` settled rows; with `verticals` each is dealt to one of these. No snapshot scored the blocks
    before `first_scored`."""
    schema, block_rows = config.rows.augmented, config.pace.block_rows
    columns = [name for name in schema.names if not name.startswith(MADE_HERE)]
    with tempfile.TemporaryDirectory() as folder:
        table = rows_of(config, Path(folder), limit=rows, run_dir=None, advance=lambda n: None, columns=columns).table
    drawn, writer = np.random.default_rng(SEED), LakeTable(path, config.rows).open_writer()
    for block, first in enumerate(range(0, table.num_rows, block_rows)):
        part = table.slice(first, block_rows)
        count = part.num_rows
        given = {name: part[name] for name in columns}
        given["lake_seq"] = pa.array(np.arange(first, first + count))
        if verticals:
            given["vertical"] = pa.array(np.asarray(verticals)[drawn.integers(0, len(verticals), count)])
        constants = {"block": block, "teacher_version": max(1, block - 1), "event_date": "2026-01-01"}
        for field in schema:
            unscored = field.name.startswith("teacher_") and block < first_scored
            if unscored or field.name in ("teacher_embedding", "teacher_space"):
                given[field.name] = pa.nulls(count, field.type)
            elif field.name.startswith("teacher_logit"):
                given[field.name] = pa.array(drawn.normal(-2, 1, count).astype(np.float32))
            elif field.name not in given:
                given[field.name] = pa.array(np.full(count, constants.get(field.name, 0))).cast(field.type)
        writer.commit(pa.table(given).select(schema.names).cast(schema), state=block, metadata={})
