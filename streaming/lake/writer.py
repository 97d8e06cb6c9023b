"""The lake: the log of augmented examples, a Delta table that is appended to by one writer.

Every row has a `lake_seq`, 0, 1, 2… without a gap, in the order of emission. A commit is atomic and carries, as Delta
transaction identifiers, how far it goes and what belongs to it:

    exfm/lake_seq   the last `lake_seq` in the table, -1 when empty
    exfm/block      the last block in the table, -1 when empty; a commit holds whole blocks only
    exfm/epoch      how many writers have been opened; a writer that meets a higher one than its own stops
    exfm/state      the settlement state from which the next row is made, -1 before the first

and a small JSON object, the commit's metadata: counters and source positions as they were at its last row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from streaming.errors import StreamingError
from streaming.lake.delta import remote
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.handle import in_schema
from streaming.lake.delta.identifiers import BLOCK, EPOCH, LAKE_SEQ, STATE
from streaming.lake.delta.table import CheckedTable, RowsElsewhere, TableCommit
from streaming.lake.layout import DATES, at_first
from streaming.lake.reader import LakeReader
from streaming.lake.settings import Layout
from streaming.position import NOTHING_YET
from streaming.schema import RowSchema

Rows: TypeAlias = pa.RecordBatch | pa.Table | Sequence[pa.RecordBatch]


class LakeTable:
    """The lake at `path` (`<run>/lake/augmented_examples`), with rows of `schema.augmented`; `layout` applies to a new
    lake.

    >>> import tempfile
    >>> from streaming.schema import Column, RowSchema, Task
    >>> schema = RowSchema(columns=[Column(name="user_id")], tasks=[Task(name="ctr", window_s=60)])
    >>> lake = LakeTable(tempfile.mkdtemp() + "/augmented_examples", schema)
    >>> writer = lake.open_writer()
    >>> writer.last_lake_seq, writer.last_block, writer.epoch
    (-1, -1, 1)
    >>> lake.open_reader().last_lake_seq
    -1
    """

    def __init__(self, path: str | Path, schema: RowSchema, layout: Layout = "auto") -> None:
        self.path = Path(path)
        self.schema = schema
        self.layout = layout

    def open_writer(self) -> LakeWriter:
        """Become the lake's only writer: an earlier one is fenced at its next commit. Creates the table where absent.

        Raises BadInput when the table there has other columns, or its folder cannot be written.
        """
        return LakeWriter(self.path, self.schema, self.layout)

    def open_reader(self) -> LakeReader:
        """A new reader, independent of the writer. Raises BadInput when there is no lake yet."""
        return LakeReader(self.path, self.schema)


class LakeWriter:
    """Appends whole blocks. Opened through `LakeTable.open_writer`, which raises the epoch.

    `last_lake_seq`, `last_block` and `state` are what the last commit says (-1: none), `metadata` its JSON object:
    {} for a new lake, None when the log no longer holds it (log files were removed by hand; take the counters from the
    settlement state then).
    """

    def __init__(self, path: Path, schema: RowSchema, layout: Layout = "auto") -> None:
        self.schema = schema
        self._layout: Layout = layout
        self._table = CheckedTable(
            path,
            schema.augmented,
            partition_by=DATES,
            statistics=("lake_seq", "impression_id", "event_time_ms"),
            identifiers={LAKE_SEQ: NOTHING_YET, BLOCK: NOTHING_YET, EPOCH: 0, STATE: NOTHING_YET},
        )
        remote.check_fence(path)  # a coordinator that was taken over may not have noticed, and begun this process
        self._table.commit(self._take_over)
        remote.check_fence(path)  # was it meanwhile, the log may name states that are on another machine
        self.last_lake_seq = self._number(LAKE_SEQ)
        self.last_block = self._number(BLOCK)
        self.state = self._number(STATE)

    @property
    def id(self) -> str:
        """The lake's unique id."""
        return self._table.id

    def _take_over(self) -> TableCommit:
        """Raise the epoch, carrying the last metadata along so that it stays the newest in the log."""
        self.epoch = self._number(EPOCH) + 1
        self.metadata = self._table.last_metadata()
        return TableCommit(self.schema.augmented.empty_table(), {EPOCH: self.epoch}, self.metadata)

    def commit(
        self, rows: Rows | None, *, state: int, metadata: Mapping[str, Any], elsewhere: RowsElsewhere | None = None
    ) -> int:
        """Append `rows`, atomically with `state` and `metadata`; returns the last `lake_seq` of the lake.

        rows      of `schema.augmented`, exactly; `lake_seq` going on from `last_lake_seq` without a gap, `block` beyond
                  `last_block` and never falling; None or no rows: a commit of progress alone
        state     a number that names the settlement state belonging to the last row
        metadata  counters and source positions at the last row; a small JSON object
        elsewhere in place of `rows`, with the facts `lake_seq`, `block`, `event_time_ms` and `vertical`

        A commit that a compaction overtook goes through. Raises StreamingError when a newer writer exists (also one
        that came while we committed: what follows the commit is its business then), on a gap or overlap, and when the
        disk refuses; DiskFull when it has no room. The rows may be committed again then, by this writer or another.
        """
        table = self._checked(rows) if elsewhere is None else self._going_on(elsewhere.facts)
        last_seq, last_block = self.last_lake_seq, self.last_block
        if table.num_rows:
            last_seq, last_block = table["lake_seq"][-1].as_py(), table["block"][-1].as_py()
        numbers = {LAKE_SEQ: last_seq, BLOCK: last_block, EPOCH: self.epoch, STATE: state}

        def prepare() -> TableCommit | None:
            self._same_epoch()
            seq = self._number(LAKE_SEQ)
            if seq == last_seq and table.num_rows:
                return None  # our own try was reported as failed after it had been stored
            if seq != self.last_lake_seq:
                raise StreamingError(
                    f"the lake {self._table.path} ends at lake_seq {seq}, its writer had written up to "
                    f"{self.last_lake_seq}; it was written to by something else. Open it again"
                )
            return TableCommit(table if elsewhere is None else self._checked(None), numbers, metadata, elsewhere)

        if table.num_rows and self.last_lake_seq == NOTHING_YET:
            self._lay_out(table)
        self._table.commit(prepare)
        self.check()
        self.last_lake_seq, self.last_block, self.state = last_seq, last_block, state
        self.metadata = dict(metadata)
        return last_seq

    def _lay_out(self, first_rows: pa.Table) -> None:
        """Before the first rows are committed, lay the lake out by them."""
        files, wanted = TableFiles(self._table.path), at_first(self._layout, first_rows)
        while wanted != files.partition_by and not files.files:
            files.repartition(wanted, [])

    def check(self) -> None:
        """Check that no newer writer exists; raises StreamingError otherwise. To be asked before anything is done
        outside the lake that only the one writer may do: a process can be stopped for hours between two lines."""
        self._table.refresh()
        self._same_epoch()

    def _same_epoch(self) -> None:
        epoch = self._number(EPOCH)
        if epoch != self.epoch:
            raise StreamingError(
                f"fenced: this writer of {self._table.path} has epoch {self.epoch}, the lake has {epoch}; "
                "a newer augmentation worker took over, this one must end"
            )

    def _number(self, name: str) -> int:
        number = self._table.identifier(name)
        if number is None:
            raise StreamingError(f"the table at {self._table.path} has no `{name}`: it is not a lake of exfm")
        return number

    def _checked(self, rows: Rows | None) -> pa.Table:
        if rows is None:
            return self.schema.augmented.empty_table()
        batches = [rows] if isinstance(rows, pa.RecordBatch) else rows
        table = in_schema(rows if isinstance(rows, pa.Table) else pa.Table.from_batches(batches), self.schema.augmented)
        return self._going_on(table) if table.num_rows else table

    def _going_on(self, table: pa.Table) -> pa.Table:
        lake_seq, block = table["lake_seq"].to_numpy(), table["block"].to_numpy()
        if lake_seq[0] != self.last_lake_seq + 1:
            fault = "a gap" if lake_seq[0] > self.last_lake_seq else "an overlap"
            raise StreamingError(
                f"{fault}: the lake ends at lake_seq {self.last_lake_seq}, so the next row is "
                f"{self.last_lake_seq + 1}; these rows begin at {lake_seq[0]}"
            )
        steps = np.diff(lake_seq)
        if (steps != 1).any():
            at = int(np.argmax(steps != 1))
            raise StreamingError(
                f"lake_seq goes from {lake_seq[at]} to {lake_seq[at + 1]} inside the rows given; it must rise by 1"
            )
        if block[0] <= self.last_block or (np.diff(block) < 0).any():
            raise StreamingError(
                f"the lake holds block {self.last_block} already and a commit holds whole blocks in order; "
                f"these rows have blocks {block.min()} to {block.max()}"
            )
        return table
