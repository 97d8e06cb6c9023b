"""Cache shared by the students of one process: a reader of the lake, and built features of its rows.

    lake ──► chunks (read once for all that are near) ──► rows of each ──► cuts of each
                └──► stretches (hashed and built once, by feature) ───────────► batches of each

None of it is a student's state: what it learns is the same whoever is there.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from exfm.features.feature_cache import FeatureCache
from streaming.lake.reader import LakeReader
from streaming.schema import RowSchema


class SharedCache:
    """Shared reader and features; `shared_bytes` bounds the rows that some student has yet to reach."""

    def __init__(self, lake: Path, rows: RowSchema, shared_bytes: int) -> None:
        self.lake = LakeReader(lake, rows, shared_bytes=shared_bytes)
        self.stretches = FeatureCache(self._tables)

    def _tables(self) -> list[pa.Table]:
        return [chunk.rows for chunk in self.lake.scan.held]
