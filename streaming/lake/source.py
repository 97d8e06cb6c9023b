"""The lake as a source: rows after a `lake_seq`, as they are committed, of some verticals and columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from streaming.errors import DataLost
from streaming.lake.logit_set import GrowingLogitSet, LogitSet
from streaming.lake.reader import LakeReader
from streaming.lake.withdrawn import Withdrawn
from streaming.messages.source import EndOfStream, Source


class LakeSource(Source[int, pa.Table]):
    """Matching rows in order of `lake_seq`, up to `batch_rows` at a time. Its position is a `lake_seq`: all up to there
    were returned, or skipped because they do not match.

    A lake has no end of its own; `end_seq` is its last row, once the caller knows it. When all known
    commits are read, it looks for new ones, but does not wait for them.
    """

    def __init__(
        self,
        lake: LakeReader,
        *,
        batch_rows: int,
        columns: Sequence[str] | None = None,
        verticals: set[str] | None = None,
        filter: pc.Expression | None = None,
        logits: LogitSet | None = None,
        withdrawn: Withdrawn | None = None,
    ) -> None:
        """Read what `LakeReader.read` reads with these. Sources that share `lake` read a range of it once, where they
        are near. `logits`: the set whose logits rows carry in the place of their own. `withdrawn`: what is left out."""
        self._lake, self._batch_rows, self.logits = lake, batch_rows, logits
        self._withdrawn = withdrawn
        if withdrawn is not None and (kept := withdrawn.kept(lake.schema)) is not None:
            filter = kept if filter is None else filter & kept
        self._cursor = lake.cursor(columns, verticals, filter)
        self.end_seq: int | None = None

    def open(self, position: int | None = None) -> None:
        """Seek to a position; raises DataLost if the lake ends before it (rows deleted by retention raise it at the
        next batch)."""
        self._lake.refresh()
        self.seek(self._lake.first_lake_seq - 1 if position is None else position)

    def seek(self, position: int) -> None:
        self._lake.refresh()
        if position > self._lake.last_lake_seq:
            raise DataLost(
                f"the lake {self._lake.path} ends at lake_seq {self._lake.last_lake_seq:,}, and was read up to "
                f"{position:,}: it was deleted and created anew; use the lake that was read, or start a new run"
            )
        self._cursor.position = position

    def next_batch(self, max_wait_s: float = 0.0) -> pa.Table | None:
        if self.end_seq is not None and self.position() >= self.end_seq:
            raise EndOfStream
        if self.position() >= self._lake.last_lake_seq:
            self._lake.refresh()
        upto = self.end_seq
        if isinstance(self.logits, GrowingLogitSet) and (scored := self.logits.look()) is not None:
            upto = scored if upto is None else min(scored, upto)
            if self.position() >= upto:
                return None
        rows = self._lake.read_from(self._cursor, upto=upto, limit_rows=self._batch_rows).table
        if not rows.num_rows:
            return None
        rows = rows if self._withdrawn is None else self._withdrawn.applied(rows)
        return rows if self.logits is None else self.logits.applied(rows)

    def position(self) -> int:
        return self._cursor.position

    def close(self) -> None:
        self._lake.close_cursor(self._cursor)
