"""Tables beside the lake, for rows that do not enter it: dead letters and late feedback.

A row is known by its origin (topic, partition, offset, row) and stored once, however often the stream is read again.
For that each *stage* that appends (decoding, settlement…) must go through every partition in order of position, as all
stages do; what it stored last is kept, per partition, as a Delta transaction identifier, and rows at or before that
place are dropped as repeats.

Nothing is lost or doubled over a crash when side tables are appended to *before* the lake commit that covers the same
source rows: a crash between the two repeats the rows, and the repeats are dropped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from streaming.delta_table import CheckedTable, Commit, in_schema
from streaming.errors import StreamingError
from streaming.position import Partition
from streaming.schema import POSITION_FIELDS

DEAD_LETTERS, LATE_FEEDBACK = "dead_letters", "late_feedback"

ROW_BITS = 20
"""An identifier is offset * 2^20 + row: messages of up to 1,048,576 rows, offsets up to 8.8e12."""


class SideTable:
    """The table `folder/name`; `schema` includes POSITION_FIELDS. Created where absent.

    Raises BadInput when the table there has other columns, or the folder cannot be written.

    >>> import tempfile
    >>> from streaming.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, to_batch
    >>> table = SideTable(tempfile.mkdtemp(), DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    >>> letters = to_batch([DeadLetter("impression", "null:age", "ads", 0, 17, row, "", b"") for row in (3, 5)])
    >>> table.append(letters, stage="decode"), table.append(letters, stage="decode")
    (2, 0)
    """

    def __init__(self, folder: str | Path, name: str, schema: pa.Schema) -> None:
        self.path = Path(folder) / name
        self.schema = schema
        self._table = CheckedTable(self.path, schema, statistics=[field.name for field in POSITION_FIELDS])

    def append(self, rows: pa.RecordBatch | pa.Table, *, stage: str) -> int:
        """Store the rows of `rows` that this stage has not stored before; returns how many. One commit, or none.

        Partitions may be mixed; within one, positions rise. Raises StreamingError when they do not, or when the disk
        refuses.
        """
        table = in_schema(pa.table(rows), self.schema)
        if not table.num_rows:
            return 0
        key = self._keys(table)
        members = {f"exfm/{stage}/{p.topic}/{p.partition}": index for p, index in _by_partition(table).items()}
        for name, index in members.items():
            if (np.diff(key[index]) <= 0).any():
                raise StreamingError(f"rows for {self.path} are not in order of position in `{name}`")
        stored = 0

        def prepare() -> Commit | None:
            nonlocal stored
            fresh = np.zeros(table.num_rows, bool)
            for name, index in members.items():
                before = self._table.identifier(name)
                fresh[index] = True if before is None else key[index] > before
            stored = int(fresh.sum())
            ends = {name: int(key[index[-1]]) for name, index in members.items() if fresh[index[-1]]}
            return Commit(table.filter(pa.array(fresh)), ends, {}) if stored else None

        self._table.commit(prepare)
        return stored

    def _keys(self, table: pa.Table) -> np.ndarray:
        offset, row = (table[name].to_numpy().astype(np.int64) for name in ("source_offset", "source_row"))
        if row.max() >= 1 << ROW_BITS or offset.max() >= 1 << (63 - ROW_BITS):
            raise StreamingError(
                f"row {row.max()} at offset {offset.max()} is beyond what a position holds "
                f"({1 << ROW_BITS} rows per message, offsets below {1 << (63 - ROW_BITS)}); make messages smaller"
            )
        keys: np.ndarray = (offset << ROW_BITS) | row
        return keys


def _by_partition(table: pa.Table) -> dict[Partition, np.ndarray]:
    """The indices of each partition's rows, in the order given."""
    topics = table["source_topic"].combine_chunks().dictionary_encode()
    topic = topics.indices.to_numpy()
    partition = table["source_partition"].to_numpy()
    pairs = np.unique(np.stack([topic, partition], axis=1), axis=0)
    return {
        Partition(topics.dictionary[int(t)].as_py(), int(p)): np.flatnonzero((topic == t) & (partition == p))
        for t, p in pairs
    }
