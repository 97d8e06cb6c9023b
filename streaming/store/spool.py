"""Buffer of rows to be written later, in memory up to a bound and on disk beyond it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming.store.files import disk_full_named, make_folder


class Spool:
    """Rows of one schema, in insertion order. What was spilled is lost in a crash, as memory is.

    >>> import tempfile
    >>> schema = pa.schema([("n", pa.int64())])
    >>> spool = Spool(schema, Path(tempfile.mkdtemp()) / "waiting.arrow", memory_bytes=16)
    >>> for n in range(5):
    ...     spool.add(pa.record_batch([[n]], schema=schema))
    >>> spool.num_rows, spool.table()["n"].to_pylist(), spool.memory_bytes
    (5, [0, 1, 2, 3, 4], 16)
    >>> spool.clear()
    """

    def __init__(self, schema: pa.Schema, path: Path, *, memory_bytes: int) -> None:
        """Open an empty spool; a file at `path` from before is deleted once more rows are spilled."""
        self._schema, self._path, self._most = schema, path, memory_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._writer: Any = None
        self.num_rows = self.memory_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows; raises DiskFull if they exceed the memory bound and the disk is full."""
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self.num_rows += rows.num_rows
        self.memory_bytes += rows.nbytes
        if self.memory_bytes > self._most:
            self._spill()

    def _spill(self) -> None:
        make_folder(self._path.parent)
        with disk_full_named(self._path):
            if self._writer is None:
                self._path.unlink(missing_ok=True)  # a table may still be mapped to it
                self._writer = pa.ipc.new_stream(str(self._path), self._schema)
            for rows in self._waiting:
                self._writer.write_batch(rows)
        self._waiting, self.memory_bytes = [], 0

    def table(self) -> pa.Table:
        """All rows; those on disk are mapped, not read. None may be added afterwards."""
        spilled = []
        if self._writer is not None:
            self._writer.close()
            with pa.memory_map(str(self._path)) as file, pa.ipc.open_stream(file) as reader:
                spilled = list(reader)
        return pa.Table.from_batches([*spilled, *self._waiting], self._schema)

    def clear(self) -> None:
        """Drop all rows; tables built from them stay readable."""
        if self._writer is not None:
            self._writer.close()
            self._path.unlink(missing_ok=True)
        self._waiting, self._writer = [], None
        self.num_rows = self.memory_bytes = 0
