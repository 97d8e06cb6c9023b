"""Reading the lake by position: rows after a `lake_seq`, in order, at a cost that does not grow with the lake.

Which files hold a range of `lake_seq` is known from the minima and maxima in the Delta log; no file is opened for it.
Files overlap (a commit writes one per vertical and date) and may be out of order inside (compaction), so rows are read
by *window* of `lake_seq`: everything inside a window is read, then sorted. `lake_seq` has no gaps, so a window w wide
holds at most w rows, whatever the files look like: that bounds the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from streaming.delta_table import load
from streaming.errors import BadInput, StreamingError
from streaming.position import NOTHING_YET
from streaming.schema import RowSchema

NARROWEST_WINDOW = 16_384
WIDEST_WINDOW = 262_144

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class LakeRead(NamedTuple):
    """Rows in order of `lake_seq`, and how far they reach.

    `complete_upto`: every matching row from `after` (exclusive) to here (inclusive) is in `table`; the next read starts
    after it, also when nothing matched.
    """

    table: pa.Table
    complete_upto: int


class LakeReader:
    """Reads what was committed when it last looked (`refresh`). Raises BadInput when there is no lake at `path`."""

    def __init__(self, path: str | Path, schema: RowSchema) -> None:
        self.path = Path(path)
        self.schema = schema
        self._format = ds.ParquetFileFormat()
        self._disk = pyarrow.fs.LocalFileSystem()
        self._open()

    def _open(self) -> None:
        handle = load(self.path, self.schema.augmented)
        if handle is None:
            raise BadInput(
                f"no lake at {self.path}; `exfm stream CONFIG` makes one, and `--run-dir` says where an existing run is"
            )
        self._handle = handle
        self._look()

    def _look(self) -> None:
        number = self._handle.transaction_version("exfm/lake_seq")
        if number is None:
            raise BadInput(f"the table at {self.path} has no `exfm/lake_seq`: it is not a lake of exfm")
        self.last_lake_seq: int = number
        self._files = _Files.of(pa.table(self._handle.get_add_actions(flatten=True)))

    @property
    def rows(self) -> int:
        return self.last_lake_seq + 1

    @property
    def files(self) -> int:
        return len(self._files.paths)

    @property
    def bytes(self) -> int:
        return self._files.bytes

    def refresh(self) -> bool:
        """Look for new commits; True when there were any. Costs a listing of the log where there were none."""
        version = self._handle.version()
        self._handle.update_incremental()
        if self._handle.version() == version:
            return False
        self._look()
        return True

    def read(
        self,
        after: int = NOTHING_YET,
        *,
        upto: int | None = None,
        limit_rows: int | None = None,
        columns: Sequence[str] | None = None,
        verticals: set[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> LakeRead:
        """The rows with `after < lake_seq <= upto` that match, in order of `lake_seq`, as of the last `refresh`.

        upto        default: the last row known
        limit_rows  the first so many matching rows only; memory is then bounded by it and by one window
        columns     names, in the order wanted; default all of `schema.augmented`
        verticals   only these; files of others are not opened
        filter      an expression over any columns, also ones not asked for; a null counts as no match

        Raises BadInput for an unknown column, StreamingError when a file of the lake is gone.
        """
        wanted = list(self.schema.augmented.names if columns is None else columns)
        unknown = [name for name in wanted if name not in self.schema.augmented.names]
        if unknown:
            raise BadInput(f"the lake has no column {unknown}; it has {self.schema.augmented.names}")
        ask = _Ask(
            after, self.last_lake_seq if upto is None else min(upto, self.last_lake_seq), wanted, verticals, filter
        )
        for again in (True, False):
            try:
                return self._first(ask, limit_rows) if limit_rows is not None else self._all(ask)
            except FileNotFoundError as error:
                if not again:
                    raise StreamingError(
                        f"a file of the lake is gone: {error}. Files must be removed through Delta (vacuum) only"
                    ) from error
                self._open()  # compacted and vacuumed since the last look: the rows are in newer files
        raise AssertionError("unreachable")

    def _all(self, ask: _Ask) -> LakeRead:
        return LakeRead(self._window(ask, ask.after, ask.upto), max(ask.upto, ask.after))

    def _first(self, ask: _Ask, limit_rows: int) -> LakeRead:
        if limit_rows < 1:
            raise BadInput(f"limit_rows is {limit_rows}; ask for at least 1 row")
        parts: list[pa.Table] = []
        missing = limit_rows
        for low, high in self._windows(ask, limit_rows):
            found = self._window(ask, low, high, keep_seq=True)
            parts.append(found.slice(0, missing).select(ask.columns))
            if found.num_rows >= missing:
                return LakeRead(pa.concat_tables(parts), found["lake_seq"][missing - 1].as_py())
            missing -= found.num_rows
        return LakeRead(pa.concat_tables(parts) if parts else self._nothing(ask), max(ask.upto, ask.after))

    def _windows(self, ask: _Ask, limit_rows: int) -> Iterator[tuple[int, int]]:
        """(low, high] after (low, high], each twice as wide; stretches without a file of the verticals are skipped."""
        width = max(limit_rows, NARROWEST_WINDOW)
        low = ask.after
        while low < ask.upto:
            low = max(low, self._files.next_start(low, ask.verticals) - 1)
            if low >= ask.upto:
                return
            high = min(low + width, ask.upto)
            yield low, high
            low, width = high, max(width, min(2 * width, WIDEST_WINDOW))

    def _window(self, ask: _Ask, low: int, high: int, *, keep_seq: bool = False) -> pa.Table:
        """All matching rows with low < lake_seq <= high, sorted."""
        chosen = self._files.holding(low, high, ask.verticals) if high > low else ()
        if not len(chosen):
            return self._nothing(ask, keep_seq)
        fragments = [
            self._format.make_fragment(
                str(self.path / self._files.paths[i]),
                self._disk,
                (pc.field("vertical") == str(self._files.verticals[i]))
                & (pc.field("event_date") == str(self._files.dates[i])),
            )
            for i in chosen
        ]
        inside = (pc.field("lake_seq") > low) & (pc.field("lake_seq") <= high)
        names = list(dict.fromkeys([*ask.columns, "lake_seq"]))
        rows = ds.FileSystemDataset(fragments, self.schema.augmented, self._format, self._disk).to_table(
            columns=names, filter=inside if ask.filter is None else inside & ask.filter
        )
        seq = rows["lake_seq"].to_numpy()
        if (np.diff(seq) < 0).any():
            rows = rows.take(pa.array(np.argsort(seq, kind="stable")))
        return rows if keep_seq else rows.select(ask.columns)

    def _nothing(self, ask: _Ask, keep_seq: bool = False) -> pa.Table:
        names = list(dict.fromkeys([*ask.columns, "lake_seq"])) if keep_seq else ask.columns
        return pa.schema([self.schema.augmented.field(name) for name in names]).empty_table()


class _Ask(NamedTuple):
    after: int
    upto: int
    columns: list[str]
    verticals: set[str] | None
    filter: pc.Expression | None


class _Files(NamedTuple):
    """The table's files: paths, partition values, and the range of `lake_seq` in each (unbounded where not known)."""

    paths: list[str]
    verticals: np.ndarray
    dates: np.ndarray
    first: np.ndarray
    last: np.ndarray
    bytes: int

    @classmethod
    def of(cls, actions: pa.Table) -> _Files:
        def bound(name: str, unknown: int) -> np.ndarray:
            if name not in actions.column_names:
                return np.full(actions.num_rows, unknown, np.int64)
            return actions[name].cast(pa.int64()).fill_null(unknown).to_numpy()

        def partition(name: str) -> np.ndarray:
            if name not in actions.column_names:  # an empty table
                return np.empty(0, str)
            return np.asarray(actions[name].to_pylist(), str)

        return cls(
            [unquote(path) for path in actions["path"].to_pylist()],
            partition("partition.vertical"),
            partition("partition.event_date"),
            bound("min.lake_seq", _LOWEST),
            bound("max.lake_seq", _HIGHEST),
            pc.sum(actions["size_bytes"]).as_py() or 0,
        )

    def _of(self, verticals: set[str] | None) -> np.ndarray:
        if verticals is None:
            return np.ones(len(self.paths), bool)
        return np.isin(self.verticals, np.asarray(sorted(verticals), str))

    def holding(self, low: int, high: int, verticals: set[str] | None) -> np.ndarray:
        """Indices of the files with rows in (low, high], by their first row."""
        found = np.flatnonzero((self.first <= high) & (self.last > low) & self._of(verticals))
        return found[np.argsort(self.first[found], kind="stable")]

    def next_start(self, low: int, verticals: set[str] | None) -> int:
        """The lowest `lake_seq` beyond `low` that a file of these verticals can hold."""
        ahead = (self.last > low) & self._of(verticals)
        return max(int(self.first[ahead].min()), low + 1) if ahead.any() else _HIGHEST
